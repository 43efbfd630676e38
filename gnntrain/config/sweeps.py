"""The keys of a sweep: what becomes of many runs that are asked for at once."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Tag

from gnntrain.config.types import OneOrMore, Section, Seed, Variants, name_in


class SweepConfig(Section):
    """All combinations of the values."""

    name: Literal["basic"] = "basic"
    """All combinations of the values."""
    jobs: Literal["auto"] | OneOrMore = "auto"
    """Trials to train at the same time; auto: one a GPU, and on the CPU one after another."""


class OptunaSweepConfig(Section):
    """A search by Optuna (Akiba et al., 2019) for the best validation metric."""

    name: Literal["optuna"] = "optuna"
    """A search by Optuna."""
    jobs: Literal["auto"] | OneOrMore = "auto"
    """Trials to train at the same time; auto: one a GPU, and on the CPU one after another."""
    trials: OneOrMore = 20
    """Number of trials."""
    sampler: Literal["tpe", "random"] = "tpe"
    """What draws the values: tpe (Bergstra et al., 2011) learns from the trials so far."""
    pruner: Literal["median", "none"] = "median"
    """median: end a trial early if its best validation metric so far is below the median of the
    others; none: train every trial to its end."""
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
