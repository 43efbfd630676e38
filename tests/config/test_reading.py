"""Plain data becomes a configuration, or all of its mistakes are told at once."""

from __future__ import annotations

import json
import pickle
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.config import Config, ConfigError, FilesConfig, PluginConfig, SamplerConfig, from_dict
from gnntrain.config.checks import changed_meaning
from gnntrain.config.models import model_names
from gnntrain.config.section import in_words, key_schema
from gnntrain.config.yaml_files import read_yaml
from gnntrain.errors import UserError
from scripts.config_reference import tables
from tests.config.problems import only_problem, problems_of
from tests.examples import examples


def test_an_empty_mapping_gives_the_defaults() -> None:
    assert from_dict({}) == Config()


def test_every_key_has_a_description_and_a_default() -> None:
    for _, _, section, keys in tables():
        assert all(key.meaning and key.accepts for key in keys)
        assert not any(field.is_required() for field in section.model_fields.values())


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(UserError, match="frozen"):
        Config().trainer.epochs = 3


@pytest.mark.parametrize(
    ("key", "value", "read_as"),
    [
        ("trainer.lr", 1, 1.0),
        ("trainer.lr", "1e-3", 1e-3),
        ("run.name", 2024, "2024"),
        ("sampler.fan_outs", [25, -1], (25, -1)),
        ("sampler.fan_outs", {"a/b/c": [1, 2]}, {"a/b/c": (1, 2)}),
        ("trainer.gpus", "auto", "auto"),
        ("trainer.gpus", 0, 0),
        ("trainer.clip_norm", None, None),
        ("evaluation.ranks", 0, "0"),
    ],
)
def test_values_are_read_as_what_they_mean(key: str, value: object, read_as: object) -> None:
    section, name = key.split(".")
    raw: Any = {section: {name: value}}
    found = getattr(getattr(Config(**raw), section), name)
    assert found == read_as
    assert type(found) is type(read_as)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.epochs", True),
        ("trainer.epochs", 1.5),
        ("trainer.epochs", 0),
        ("trainer.lr", 0),
        ("trainer.lr", float("nan")),
        ("trainer.lr", "fast"),
        ("trainer.drop_last", 1),
        ("trainer.precision", "fp8"),
        ("trainer.gpus", True),
        ("model.dropout", 1),
        ("sampler.fan_outs", 10),
        ("sampler.fan_outs", [10, 0]),
        ("sampler.fan_outs", [10, 2**31]),
        ("trainer.epochs", 10**30),
        ("trainer.lr", 10**400),
        ("sampler.fan_outs", []),
        ("sampler.fan_outs", {}),
        ("sampler.fan_outs", {"writes": [5, 0]}),
        ("dataset.homophily", 1.1),
        ("run.name", "../up"),
        ("run.name", "latest"),
        ("run.dir", ""),
    ],
)
def test_a_wrong_value_is_told_with_what_is_expected(key: str, value: object) -> None:
    section, name = key.split(".")
    problem = only_problem({section: {name: value}})
    assert problem.key == key
    assert problem.expected == in_words(key_schema(type(getattr(Config(), section)), name))


SCREEN = Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8")


def test_all_mistakes_come_in_one_message_with_exit_code_2() -> None:
    raw = {
        "trainer": {"epoch": 3, "lr": -1, "precision": "bf61"},
        "model": {"name": "gat", "heads": 3},
        "sampler": {"fan_outs": 10, "backend": "nubma"},
        "evaluation": {"ranks": "all", "fan_outs": [5], "name": "sampled"},
        "logging": {},
    }
    with pytest.raises(UserError) as caught:
        from_dict(raw)
    assert caught.value.exit_code == 2
    assert caught.value.message == SCREEN.strip()


@pytest.mark.parametrize(
    ("raw", "meant"),
    [
        ({"trainer": {"epohcs": 3}}, ["trainer.epochs"]),
        ({"lr": 0.1}, ["trainer.lr"]),
        ({"trainer": {"hidden_channels": 3}}, ["model.hidden_channels"]),
        ({"trainr": {"lr": 0.1}}, ["trainer.lr"]),
        ({"trainr": {"zzzzzz": 1}}, ["trainer"]),
        ({"experimnt": "cora_gcn"}, ["experiment"]),
        ({"epoch": 3}, ["trainer.epochs"]),
        ({"seed": 3}, ["dataset.seed", "trainer.seed"]),
        ({"datset": {"seed": 3}}, ["dataset.seed"]),
        ({"model": {"heads": 2}}, ["model=gat|gatv2"]),
        ({"dataset": {"name": "cora", "num_nodes": 2}}, ["dataset=synthetic|"]),
        ({"logger": {"json": {}}}, ["logger.jsonl"]),
        ({"device": "cuda"}, ["trainer.device"]),
        ({"zzzzzz": 1}, None),
    ],
)
def test_an_unknown_key_names_the_key_that_was_meant(
    raw: dict[str, Any], meant: list[str] | None
) -> None:
    problem = only_problem(raw)
    assert (problem.hint is None) == (meant is None)
    assert all(part in str(problem.hint) for part in meant or ())


@pytest.mark.parametrize("beside", [{}, {"dataset": None}, {"dataset": 3}])
def test_a_dotted_key_is_no_key_whatever_its_section_is(beside: dict[str, Any]) -> None:
    told = problems_of({**beside, "dataset.num_nodes": 5})["dataset.num_nodes"]
    assert told.expected == "no such key"


def test_under_an_unknown_name_the_other_keys_are_not_judged() -> None:
    problem = only_problem({"model": {"name": "gaat", "heads": 3, "num_layers": 7}})
    assert problem.key == "model.name"
    assert problem.hint == "did you mean gat?"
    assert "gat, gatv2, gcn" in problem.expected


def test_a_value_in_place_of_a_section_is_a_mistake() -> None:
    assert only_problem({"trainer": 3}).expected == "keys, not a value"


def test_a_saved_configuration_needs_neither_files_nor_plug_ins(tmp_path: Path) -> None:
    raw = {
        "dataset": {"name": "files", "edges": str(tmp_path / "gone"), "features": "gone"},
        "model": {"name": "gone"},
    }
    config = from_dict(raw, saved=True)
    assert isinstance(config.dataset, FilesConfig)
    assert isinstance(config.model, PluginConfig)
    assert config.model.name == "gone"
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_saved_configuration_may_have_keys_that_are_gone() -> None:
    raw = {"features": {"hotness": "presample"}}
    assert from_dict(raw, saved=True) == from_dict({})
    assert only_problem(raw).key == "features.hotness"


def test_an_empty_logger_section_means_no_logger() -> None:
    assert from_dict({"logger": {}}).logger.chosen() == {}
    assert list(from_dict({}).logger.chosen()) == ["jsonl"]


@examples(50)
@given(
    lr=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    seed=st.integers(0, 2**63 - 1),
    gpus=st.one_of(st.just("auto"), st.integers(0, 8)),
    clip_norm=st.none() | st.floats(min_value=1e-300, max_value=1e300),
    fan_outs=st.tuples(*[st.integers(1, 100) | st.just(-1)] * 2),
    model=st.sampled_from(model_names()),
    dataset=st.sampled_from(["synthetic", "synthetic_reddit", "cora", "ogbn-papers100M"]),
    name=st.none() | st.text(min_size=1).filter(lambda name: not set(name) & set("/\\.l")),
)
def test_plain_data_gives_the_configuration_back_exactly(
    lr: float,
    seed: int,
    gpus: object,
    clip_norm: float | None,
    fan_outs: tuple[int, int],
    model: str,
    dataset: str,
    name: str | None,
) -> None:
    raw = {
        "dataset": {"name": dataset},
        "model": {"name": model},
        "sampler": {"fan_outs": list(fan_outs)},
        "trainer": {"lr": lr, "seed": seed, "gpus": gpus, "clip_norm": clip_norm},
        "logger": {"tensorboard": {}},
        "run": {"name": name},
    }
    config = from_dict(raw)
    assert from_dict(config.changed().to_dict()) == config.changed() == config
    assert from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert pickle.loads(pickle.dumps(config)) == config


def test_samplers_that_draw_the_same_take_each_others_place_when_a_run_goes_on() -> None:
    for names in product(("auto", "numba", "triton", "pyg"), repeat=2):
        configs = (Config(sampler=SamplerConfig(backend=name)) for name in names)
        changed = [problem.key for problem in changed_meaning(*configs)]
        is_other = names[0] != names[1] and "pyg" in names
        assert changed == ["sampler.backend"] * is_other, names


def test_a_key_that_is_twice_in_a_mapping_of_a_file_is_refused() -> None:
    for text in ("a: 1\nb: 2\na: 3\n", "x: {a: 1, b: {c: 1, c: 1}}"):
        with pytest.raises(ValueError, match=r"key [ac] again"):
            read_yaml(text)
    assert read_yaml("x: {a: 1}\ny: {a: 2}") == {"x": {"a": 1}, "y": {"a": 2}}


def test_an_error_survives_the_way_from_a_worker() -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict({"lr": 1})
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.message == caught.value.message
    assert again.problems == caught.value.problems
