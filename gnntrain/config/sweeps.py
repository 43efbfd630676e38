"""The keys of a sweep: what becomes of many runs that are asked for at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Tag

from gnntrain.config.types import OneOrMore, Section, Seed, Variants, name_in


class SweepConfig(Section):
    """All combinations of the values."""

    name: Literal["basic"] = "basic"
    """Which trials there are: all combinations (basic), or those a search draws (optuna)."""
    jobs: Literal["auto"] | OneOrMore = "auto"
    """Trials trained at the same time; auto: one a GPU, on the CPU one after another."""


class OptunaSweepConfig(Section):
    """A search by Optuna (Akiba et al., 2019) for the best validation metric."""

    name: Literal["optuna"] = "optuna"
    """Which trials there are: all combinations (basic), or those a search draws (optuna)."""
    jobs: Literal["auto"] | OneOrMore = "auto"
    """Trials trained at the same time; auto: one a GPU, on the CPU one after another."""
    trials: OneOrMore = 20
    """Trials of the search in all."""
    sampler: Literal["tpe", "random"] = "tpe"
    """What draws the values: tpe (Bergstra et al., 2011) learns from the trials so far."""
    pruner: Literal["median", "none"] = "median"
    """Ends a trial early whose best val metric so far is below the median of the others."""
    seed: Seed = 0
    """Seed of the drawn values; with one trial at a time the same seed gives the same search."""


_CLASSES: Mapping[str, type[Section]] = {"basic": SweepConfig, "optuna": OptunaSweepConfig}


def _choose(keys: object) -> type[Section]:
    return _CLASSES.get(name_in(keys, "basic"), SweepConfig)


SWEEP_VARIANTS = Variants(lambda: tuple(_CLASSES), _choose)

AnySweepConfig = Annotated[
    Annotated[SweepConfig, Tag("SweepConfig")]
    | Annotated[OptunaSweepConfig, Tag("OptunaSweepConfig")],
    Discriminator(SWEEP_VARIANTS.tag),
]
