"""The overrides of a sweep, and the trials of a grid."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnntrain.app import Sources
from gnntrain.config import ConfigError, Problem, model_names
from gnntrain.groups import config_groups
from gnntrain.sweep.plan import SweepOverrides, check_sweep, grid


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


@pytest.mark.parametrize(
    "override", ["trainer.lr=interval(0,1)", "model=glob(zzz*)", "trainer.lr=glob(*)", "model"]
)
def test_a_sweep_through_no_values_is_refused(override: str) -> None:
    with pytest.raises(ConfigError):
        trials_of(override)


@pytest.mark.parametrize(
    "value",
    ["range(1,1000000000)", "shuffle(range(1,1000000000))", "range(0,1,0)", "range(0,1,1e-9)"],
)
def test_a_sweep_through_endlessly_many_values_is_refused_at_once(value: str) -> None:
    with pytest.raises(ConfigError, match="a range of 1 to 10,000 values"):
        trials_of(f"trainer.seed={value}")


def test_a_grid_of_too_many_trials_is_refused_before_they_are_listed() -> None:
    with pytest.raises(ConfigError, match="at most 10,000 trials"):
        trials_of(*(f"trainer.{key}=range(1,100)" for key in ("seed", "epochs", "patience")))


def test_a_file_of_a_whole_configuration_is_part_of_every_trial() -> None:
    trials = trials_of("trainer.seed=1,2", "best.yaml")
    assert trials == [["best.yaml", "trainer.seed=1"], ["best.yaml", "trainer.seed=2"]]


@pytest.mark.parametrize("value", ["null,shuffle(1,2,3)", "1,range(1,3)", "[a],choice(1,2)"])
def test_a_sweep_inside_a_sweep_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="none of them may be a sweep of its own"):
        trials_of(f"trainer.seed={value}")


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
