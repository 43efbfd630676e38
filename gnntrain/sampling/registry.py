"""Which sampler a name stands for."""

from __future__ import annotations

from gnntrain.config.samplers import SAMPLER_GROUP, sampler_entry_points
from gnntrain.errors import UserError
from gnntrain.sampling.base import Sampler


def sampler_class(name: str) -> type[Sampler]:
    """The class behind `sampler.backend=name`; imported now, so that Triton need not be installed.

    Raises:
        UserError: No sampler has that name, it cannot be imported, or it is no `Sampler`.
    """
    points = sampler_entry_points()
    if name not in points:
        raise UserError(f"no sampler is called {name!r}", f"there are {', '.join(points)}")
    try:
        sampler = points[name].load()
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"sampler {name!r} ({points[name].value}) cannot be imported: {error}",
            f"install or mend the package that declares the entry point {name!r} "
            f"in the group {SAMPLER_GROUP!r}",
        ) from error
    if not (isinstance(sampler, type) and issubclass(sampler, Sampler)):
        raise UserError(
            f"sampler {name!r} ({points[name].value}) is no subclass of Sampler",
            "the entry point must name a subclass of gnntrain.sampling.base.Sampler",
        )
    return sampler
