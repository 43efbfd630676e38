"""Samplers by name."""

from __future__ import annotations

from importlib import import_module

from gnntrain.config.names import SAMPLER_CLASSES
from gnntrain.errors import UserError
from gnntrain.plugins import SAMPLERS, load_plugin
from gnntrain.sampling.base import Sampler


def sampler_class(name: str) -> type[Sampler]:
    """The class behind `sampler.backend=name`: one of ours, or one of an installed package.

    Imports its module (for `triton` also Triton).

    Raises:
        UserError: No sampler has that name, it cannot be imported, or it is no `Sampler`.
    """
    if name in SAMPLER_CLASSES:
        module, _, attribute = SAMPLER_CLASSES[name].partition(":")
        sampler = getattr(import_module(module), attribute)
    else:
        sampler = load_plugin(SAMPLERS, name)
    if not (isinstance(sampler, type) and issubclass(sampler, Sampler)):
        raise UserError(
            f"sampler {name!r} is no subclass of {Sampler.__name__}",
            f"its entry point must name a subclass of {Sampler.__module__}.{Sampler.__name__}",
        )
    return sampler
