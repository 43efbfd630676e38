"""What a sweep goes through, and the space of a search."""

from __future__ import annotations

import pytest

from gnntrain.app import compose_config
from gnntrain.config import Config, ConfigError, model_names
from gnntrain.search_space import (
    Choices,
    Dimension,
    Interval,
    example_values,
    expand_sweep,
    first_trial,
    fixed_overrides,
    search_space,
)


def test_a_sweep_is_the_product_in_order() -> None:
    trials = expand_sweep(["model=sage,gcn", "trainer.epochs=2", "trainer.seed=range(1,3)"])
    assert trials == [
        ["model=sage", "trainer.epochs=2", "trainer.seed=1"],
        ["model=sage", "trainer.epochs=2", "trainer.seed=2"],
        ["model=gcn", "trainer.epochs=2", "trainer.seed=1"],
        ["model=gcn", "trainer.epochs=2", "trainer.seed=2"],
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
    assert expand_sweep([override]) == [[job] for job in trials]


@pytest.mark.parametrize(
    "override", ["trainer.lr=interval(0,1)", "model=glob(zzz*)", "trainer.lr=glob(*)", "model"]
)
def test_a_sweep_through_no_values_is_refused(override: str) -> None:
    with pytest.raises(ConfigError):
        expand_sweep([override])


@pytest.mark.parametrize(
    "value",
    ["range(1,1000000000)", "shuffle(range(1,1000000000))", "range(0,1,0)", "range(0,1,1e-9)"],
)
def test_a_sweep_through_endlessly_many_values_is_refused_at_once(value: str) -> None:
    with pytest.raises(ConfigError, match="a range of 1 to 10,000 values"):
        expand_sweep([f"trainer.seed={value}"])


def test_a_sweep_of_too_many_trials_is_refused_before_they_are_listed() -> None:
    with pytest.raises(ConfigError, match="at most 10,000 trials"):
        expand_sweep([f"trainer.{key}=range(1,100)" for key in ("seed", "epochs", "patience")])


def test_a_file_of_a_whole_configuration_is_part_of_every_trial() -> None:
    trials = expand_sweep(["trainer.seed=1,2", "best.yaml"])
    assert trials == [["best.yaml", "trainer.seed=1"], ["best.yaml", "trainer.seed=2"]]


@pytest.mark.parametrize(
    ("override", "dimension"),
    [
        ("trainer.lr=interval(1e-4,1e-1)", Interval("trainer.lr", 1e-4, 1e-1)),
        ("trainer.lr=tag(log,interval(1e-4,1e-1))", Interval("trainer.lr", 1e-4, 1e-1, log=True)),
        # The schema says that it is a whole number; Hydra has lost it.
        (
            "model.hidden_channels=interval(16,512)",
            Interval("model.hidden_channels", 16, 512, 1, is_integer=True),
        ),
        ("model.dropout=interval(0,0.9)", Interval("model.dropout", 0, 0.9)),
        (
            "trainer.epochs=int(interval(3,9))",
            Interval("trainer.epochs", 3, 9, 1, is_integer=True),
        ),
        # As in a sweep, the end of a range is not in it.
        ("trainer.epochs=range(1,10,3)", Interval("trainer.epochs", 1, 7, 3, is_integer=True)),
        ("trainer.lr=range(0.125,0.5,0.125)", Interval("trainer.lr", 0.125, 0.375, 0.125)),
        ("trainer.seed=shuffle(range(0,3))", None),
        ("model=sage,gcn", Choices("model", ("sage", "gcn"))),
        ("model=glob(gat*)", Choices("model", ("gat", "gatv2"))),
        ("model.hidden_channels=choice(8,16,8)", Choices("model.hidden_channels", ("8", "16"))),
        ("trainer.epochs=range(3,4)", Choices("trainer.epochs", ("3",))),
    ],
)
def test_a_search_draws_from_what_the_words_mean(
    override: str, dimension: Choices | Interval | None
) -> None:
    (found,) = search_space([override, "trainer.patience=3"], Config())
    if dimension is None:
        assert isinstance(found, Choices)
        assert sorted(found.values) == ["0", "1", "2"]
    else:
        assert found == dimension


@pytest.mark.parametrize(
    ("override", "expects"),
    [
        ("trainer.lr=interval(0.1,0.01)", "from a lower to a higher number"),
        ("trainer.lr=tag(log,interval(0,1))", "above 0"),
        ("model.hidden_channels=interval(1.5,8)", "between whole numbers"),
        ("trainer.lr=tag(log,choice(1,2))", "log with an interval"),
        ("trainer.seed=1", "at least one key with values to search"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused(override: str, expects: str) -> None:
    with pytest.raises(ConfigError, match=expects):
        search_space([override], Config())


def test_values_are_typed_as_the_schema_takes_them() -> None:
    assert Interval("trainer.lr", 1e-4, 1e-1).text(0.00123456789) == "0.00123456789"
    assert Interval("trainer.lr", 0.1, 0.4, 0.1).text(0.30000000000000004) == "0.3"
    assert Interval("trainer.epochs", 1, 9, 1, is_integer=True).text(4.0) == "4"


def test_the_first_trial_has_the_first_of_all_values_and_composes() -> None:
    overrides = [
        "model=gcn,sage",
        "trainer.lr=tag(log,interval(1e-4,1))",
        "trainer.seed=range(5,9)",
    ]
    overrides += ["model.hidden_channels=interval(16,32)", "trainer.epochs=3"]
    first = first_trial(overrides)
    expected = ["model=gcn", "trainer.lr=0.0001", "trainer.seed=5", "model.hidden_channels=16"]
    assert first == [*expected, "trainer.epochs=3"]
    assert compose_config(first).config.model.name == "gcn"
    assert fixed_overrides(overrides) == ["trainer.epochs=3"]


def test_both_ends_of_every_dimension_are_tried_once() -> None:
    space: list[Dimension] = [
        Interval("a", 1, 2, 1, is_integer=True),
        Choices("b", ("x", "y", "z")),
    ]
    assert example_values(space) == [
        {"a": "1", "b": "x"},
        {"a": "2", "b": "x"},
        {"a": "1", "b": "y"},
        {"a": "1", "b": "z"},
    ]


@pytest.mark.parametrize("value", ["null,shuffle(1,2,3)", "1,range(1,3)", "[a],choice(1,2)"])
def test_a_sweep_inside_a_sweep_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="none of them may be a sweep of its own"):
        expand_sweep([f"trainer.seed={value}"])
