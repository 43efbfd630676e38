"""The keys of a sweep."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Tag

from gnntrain.config.types import OneOrMore, Section, Seed, Variants, name_in


class SweepConfig(Section):
    """A grid: all combinations of the values."""

    name: Literal["basic"] = "basic"
    """Which trials there are: all combinations (basic), or those that a search draws (optuna)."""
    jobs: Literal["auto"] | OneOrMore = "auto"
    """Trials that this machine trains at the same time; auto: one a GPU, on the CPU one."""


class OptunaSweepConfig(Section):
    """A search by Optuna (Akiba et al., 2019) for the best validation metric."""

    name: Literal["optuna"] = "optuna"
    """Which trials there are: all combinations (basic), or those that a search draws (optuna)."""
    jobs: Literal["auto"] | OneOrMore = "auto"
    """Trials that this machine trains at the same time; auto: one a GPU, on the CPU one."""
    trials: OneOrMore = 20
    """Trials in all."""
    sampler: Literal["tpe", "random"] = "tpe"
    """Draws the values: tpe (Bergstra et al., 2011) learns from the trials so far."""
    pruner: Literal["median", "none"] = "median"
    """median ends a trial whose best val metric so far is below the median of the others."""
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
