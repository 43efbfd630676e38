"""The overrides of a sweep: the trials of a grid, the space of a search."""

from __future__ import annotations

from pathlib import Path

import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from gnntrain.app import Sources
from gnntrain.config import Config, ConfigError, Problem, model_names
from gnntrain.groups import config_groups
from gnntrain.sweep.plan import SweepOverrides, check_sweep, grid
from gnntrain.sweep.search_space import (
    Space,
    boundary_values,
    parsed_value,
    search_space,
    value_text,
)


def trials_of(*overrides: str) -> list[list[str]]:
    problems: list[Problem] = []
    sweep = SweepOverrides.parse(overrides, config_groups(), problems)
    return [[*sweep.fixed, *varied] for varied in grid(sweep, problems)]


def test_a_grid_is_the_product_in_order() -> None:
    assert trials_of("model=sage,gcn", "trainer.epochs=2", "trainer.seed=range(1,3)") == [
        ["trainer.epochs=2", "model=sage", "trainer.seed=1"],
        ["trainer.epochs=2", "model=sage", "trainer.seed=2"],
        ["trainer.epochs=2", "model=gcn", "trainer.seed=1"],
        ["trainer.epochs=2", "model=gcn", "trainer.seed=2"],
    ]


@pytest.mark.parametrize(
    ("override", "trials"),
    [
        ("trainer.lr=choice(1,2)", ["trainer.lr=1", "trainer.lr=2"]),
        ("model=glob(gat*)", ["model=gat", "model=gatv2"]),
        ("model=glob(*)", [f"model={name}" for name in model_names()]),
        ("+trainer.lr=1,2", ["+trainer.lr=1", "+trainer.lr=2"]),
        ("sampler.fan_outs=[5,5],[3,3]", ["sampler.fan_outs=[5,5]", "sampler.fan_outs=[3,3]"]),
        ("dataset.root=~/a", ["dataset.root=~/a"]),
        ("trainer.lr=1", ["trainer.lr=1"]),
    ],
)
def test_each_kind_of_sweep_goes_through_its_values(override: str, trials: list[str]) -> None:
    assert trials_of(override) == [[trial] for trial in trials]


def test_of_a_key_that_is_typed_twice_the_last_counts() -> None:
    assert trials_of("trainer.lr=1,2", "trainer.lr=3,4") == [["trainer.lr=3"], ["trainer.lr=4"]]


ENDLESS = "range(1,1000000000)"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["trainer.lr=interval(0,1)"], None),
        (["model=glob(zzz*)"], None),
        (["trainer.lr=glob(*)"], None),
        (["model"], None),
        *(
            ([f"trainer.seed={values}"], "a range of 1 to 10,000 values")
            for values in (ENDLESS, f"shuffle({ENDLESS})", "range(0,1,0)", "range(0,1,1e-9)")
        ),
        (
            [f"trainer.{key}=range(1,100)" for key in ("seed", "epochs", "patience")],
            "at most 10,000 trials",  # before they are listed
        ),
        *(
            ([f"trainer.seed={values}"], "none of them may be a sweep of its own")
            for values in ("null,shuffle(1,2,3)", "1,range(1,3)", "[a],choice(1,2)")
        ),
    ],
)
def test_a_sweep_through_no_values_or_too_many_is_refused_at_once(
    overrides: list[str], words: str | None
) -> None:
    with pytest.raises(ConfigError, match=words):
        trials_of(*overrides)


def test_a_file_of_a_whole_configuration_is_part_of_every_trial() -> None:
    trials = trials_of("trainer.seed=1,2", "best.yaml")
    assert trials == [["best.yaml", "trainer.seed=1"], ["best.yaml", "trainer.seed=2"]]


@pytest.mark.parametrize("text", ["sweep: optuna\n", "sweep: {name: optuna, trials: 20}\n"])
def test_a_file_may_ask_for_a_search(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    plan = check_sweep([str(file), "trainer.lr=interval(0.1,1)"], Sources())
    assert plan.num_trials == 20
    assert plan.space is not None


def test_a_search_without_values_to_draw_from_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one key with values to search"):
        check_sweep(["sweep=optuna", "trainer.seed=1"], Sources())


# A search


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
