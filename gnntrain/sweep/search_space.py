"""The search space of a sweep: Optuna's distributions from Hydra's syntax, and values as text."""

from __future__ import annotations

from collections.abc import Mapping

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from gnntrain.app.overrides import sides_of
from gnntrain.config import Config, Problem
from gnntrain.sweep.plan import SweepOverrides, swept_values

Space = Mapping[str, BaseDistribution]
"""Distributions by key."""


def search_space(sweep: SweepOverrides, config: Config, problems: list[Problem]) -> Space:
    """The distributions that a search draws from; `config`, the first trial's, says which keys have
    integers. Every override that says nothing to draw from is added to `problems`."""
    space = {key: _distribution(one, config, sweep, problems) for key, one in sweep.swept.items()}
    return {key: distribution for key, distribution in space.items() if distribution is not None}


def value_text(distribution: BaseDistribution, value: object) -> str:
    """A value as it is typed."""
    if isinstance(distribution, FloatDistribution) and distribution.step is not None:
        return f"{value:.12g}"
    return str(value)


def parsed_value(distribution: BaseDistribution, text: str) -> object:
    """The value that Optuna knows by the text."""
    if isinstance(distribution, CategoricalDistribution):
        return text
    return distribution.to_external_repr(float(text))


def described(distribution: BaseDistribution) -> str:
    """The distribution in a few words: `0.0001 to 0.1, log`."""
    if isinstance(distribution, CategoricalDistribution):
        return ", ".join(map(str, distribution.choices))
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    by = f", step {distribution.step:g}" if distribution.step not in (None, 1) else ""
    log = ", log" if distribution.log else ""
    return f"{distribution.low:g} to {distribution.high:g}{by}{log}"


def boundary_values(space: Space) -> list[list[str]]:
    """Varied overrides that must all be valid before a search begins: each choice, and both ends
    of each interval, once."""
    texts = {}
    for key, one in space.items():
        if isinstance(one, CategoricalDistribution):
            texts[key] = [str(choice) for choice in one.choices]
        else:
            assert isinstance(one, IntDistribution | FloatDistribution)
            texts[key] = [value_text(one, end) for end in (one.low, one.high)]
    first = {key: values[0] for key, values in texts.items()}
    others = [{**first, key: text} for key, values in texts.items() for text in values[1:]]
    return [[f"{key}={text}" for key, text in values.items()] for values in (first, *others)]


def _distribution(
    override: Override, config: Config, sweep: SweepOverrides, problems: list[Problem]
) -> BaseDistribution | None:
    value, (key, text), expects = override.value(), sides_of(override), None
    log = "log" in getattr(value, "tags", ())
    if isinstance(value, IntervalSweep):
        low, high = float(value.start or 0), float(value.end or 0)
        section, _, name = key.rpartition(".")
        in_first_trial = getattr(getattr(config, section, None), name, None)
        is_integer = isinstance(value.start, int) or isinstance(in_first_trial, int)
        if not low < high:
            expects = "an interval from a lower to a higher number"
        elif log and low <= 0:
            expects = "an interval above 0: it is drawn over the logarithm"
        elif is_integer and not (low.is_integer() and high.is_integer()):
            expects = "an interval between whole numbers"
        elif is_integer:
            return IntDistribution(int(low), int(high), log=log)
        else:
            return FloatDistribution(low, high, log=log)
    elif log:
        expects = "log with an interval, as in tag(log,interval(1e-4,1e-1))"
    if expects is not None:
        problems.append(Problem(key, text, expects))
        return None
    texts = swept_values(override, sweep.groups, problems)
    if isinstance(value, RangeSweep) and not value.shuffle and len(texts) > 1:
        low, high, step = float(texts[0]), float(texts[-1]), float(value.step)
        if low < high and all(isinstance(end, int) for end in (value.start, value.step)):
            return IntDistribution(int(low), int(high), step=int(step))
        if low < high:
            return FloatDistribution(low, high, step=step)
    return CategoricalDistribution(list(dict.fromkeys(texts))) if texts else None
