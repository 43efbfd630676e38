"""Samplers by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from gnntrain.config.names import HETERO_SAMPLER_CLASSES, SAMPLER_CLASSES
from gnntrain.errors import UserError
from gnntrain.plugins import SAMPLERS, load_plugin
from gnntrain.sampling.base import Sampler
from gnntrain.sampling.hetero import HeteroSampler


def sampler_class(name: str) -> type[Sampler]:
    """The class behind `sampler.backend=name`: one of ours, or one of an installed package.

    Imports its module (for `triton` also Triton).

    Raises:
        UserError: No sampler has that name, it cannot be imported, or it is no `Sampler`.
    """
    sampler = _named(name, SAMPLER_CLASSES)
    if not (isinstance(sampler, type) and issubclass(sampler, Sampler)):
        raise _no_subclass(name, Sampler)
    return sampler


def hetero_sampler_class(name: str) -> type[HeteroSampler]:
    """As `sampler_class`, of the samplers of typed graphs."""
    sampler = _named(name, HETERO_SAMPLER_CLASSES)
    if not (isinstance(sampler, type) and issubclass(sampler, HeteroSampler)):
        raise _no_subclass(name, HeteroSampler)
    return sampler


def _named(name: str, own: Mapping[str, str]) -> object:
    if name not in own:
        return load_plugin(SAMPLERS, name)
    module, _, attribute = own[name].partition(":")
    return getattr(import_module(module), attribute)


def _no_subclass(name: str, base: type) -> UserError:
    return UserError(
        f"sampler {name!r} is no subclass of {base.__name__}",
        f"its entry point must name a subclass of {base.__module__}.{base.__name__}",
    )
