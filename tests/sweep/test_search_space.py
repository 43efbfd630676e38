"""The space of a search."""

from __future__ import annotations

import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from gnntrain.config import Config, Problem
from gnntrain.groups import config_groups
from gnntrain.sweep.plan import SweepOverrides
from gnntrain.sweep.search_space import (
    Space,
    boundary_values,
    parsed_value,
    search_space,
    value_text,
)


def space_of(*overrides: str) -> tuple[Space, list[Problem]]:
    problems: list[Problem] = []
    sweep = SweepOverrides.parse(overrides, config_groups(), problems)
    return search_space(sweep, Config(), problems), problems


@pytest.mark.parametrize(
    ("override", "distribution"),
    [
        ("trainer.lr=interval(1e-4,1e-1)", FloatDistribution(1e-4, 1e-1)),
        ("trainer.lr=tag(log,interval(1e-4,1e-1))", FloatDistribution(1e-4, 1e-1, log=True)),
        # The schema says that it is a whole number; Hydra has lost it.
        ("model.hidden_channels=interval(16,512)", IntDistribution(16, 512)),
        ("model.dropout=interval(0,0.9)", FloatDistribution(0, 0.9)),
        ("trainer.epochs=int(interval(3,9))", IntDistribution(3, 9)),
        # As in a grid, the end of a range is not in it.
        ("trainer.epochs=range(1,10,3)", IntDistribution(1, 7, step=3)),
        ("trainer.lr=range(0.125,0.5,0.125)", FloatDistribution(0.125, 0.375, step=0.125)),
        ("model=sage,gcn", CategoricalDistribution(["sage", "gcn"])),
        ("model=glob(gat*)", CategoricalDistribution(["gat", "gatv2"])),
        ("model.hidden_channels=choice(8,16,8)", CategoricalDistribution(["8", "16"])),
        ("trainer.epochs=range(3,4)", CategoricalDistribution(["3"])),
    ],
)
def test_a_search_draws_from_what_the_words_mean(
    override: str, distribution: BaseDistribution
) -> None:
    space, problems = space_of(override, "trainer.patience=3")
    assert problems == []
    assert list(space.values()) == [distribution]


@pytest.mark.parametrize(
    ("override", "expects"),
    [
        ("trainer.lr=interval(0.1,0.01)", "from a lower to a higher number"),
        ("trainer.lr=tag(log,interval(0,1))", "above 0"),
        ("model.hidden_channels=interval(1.5,8)", "between whole numbers"),
        ("trainer.lr=tag(log,choice(1,2))", "log with an interval"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused(override: str, expects: str) -> None:
    (problem,) = space_of(override)[1]
    assert expects in problem.expected


@pytest.mark.parametrize(
    ("distribution", "value", "text"),
    [
        (FloatDistribution(1e-4, 1e-1), 0.00123456789, "0.00123456789"),
        (FloatDistribution(0.1, 0.4, step=0.1), 0.30000000000000004, "0.3"),
        (IntDistribution(1, 9), 4, "4"),
        (CategoricalDistribution(["1e-4", "x"]), "1e-4", "1e-4"),
    ],
)
def test_values_are_typed_as_the_schema_takes_them(
    distribution: BaseDistribution, value: object, text: str
) -> None:
    assert value_text(distribution, value) == text
    assert parsed_value(distribution, text) == pytest.approx(value)
    assert type(parsed_value(distribution, text)) is type(value)


def test_both_ends_of_every_dimension_are_tried_once() -> None:
    space = {"a": IntDistribution(1, 2), "b": CategoricalDistribution(["x", "y", "z"])}
    assert boundary_values(space) == [
        ["a=1", "b=x"],
        ["a=2", "b=x"],
        ["a=1", "b=y"],
        ["a=1", "b=z"],
    ]
