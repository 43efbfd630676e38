"""The samplers by name. Nothing heavy is imported: a name can be checked without torch."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

SAMPLER_GROUP = "gnntrain.samplers"
"""Entry-point group in which another package offers its samplers."""

_BUILT_IN = {
    "numba": "gnntrain.sampling.cpu:CPUSampler",
    "triton": "gnntrain.sampling.gpu:GPUSampler",
    "pyg": "gnntrain.sampling.pyg:PyGSampler",
}


def sampler_entry_points() -> dict[str, EntryPoint]:
    """Every sampler by name: the package's own, then those of installed packages."""
    points = {name: EntryPoint(name, at, SAMPLER_GROUP) for name, at in _BUILT_IN.items()}
    for point in entry_points(group=SAMPLER_GROUP):
        points.setdefault(point.name, point)
    return points


def sampler_names() -> tuple[str, ...]:
    """The values of `sampler.backend` beside `auto`."""
    return tuple(sampler_entry_points())
