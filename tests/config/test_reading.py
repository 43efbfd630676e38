"""The schema: strict types, ranges, and every mistake in one message."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnntrain.config import (
    BuiltinConfig,
    Config,
    ConfigError,
    DistributedConfig,
    FilesConfig,
    ModelConfig,
    PluginConfig,
    Problem,
    SamplerConfig,
    SyntheticConfig,
    TrainerConfig,
    checks,
    from_dict,
    machine_problems,
    needs_gpu_count,
    read,
    synonyms,
)
from gnntrain.config.mistakes import in_words, key_schema
from gnntrain.config.models import model_names
from gnntrain.config.types import Section
from gnntrain.errors import UserError
from scripts.config_reference import meanings
from tests import packages


def problems_of(raw: Mapping[str, Any]) -> dict[str, Problem]:
    with pytest.raises(ConfigError) as caught:
        from_dict(raw)
    return {problem.key: problem for problem in caught.value.problems}


def only_problem(raw: Mapping[str, Any]) -> Problem:
    (problem,) = problems_of(raw).values()
    return problem


def keys_of(raw: Mapping[str, Any]) -> set[str]:
    sections = from_dict(raw).to_dict()
    return {f"{section}.{key}" for section, keys in sections.items() for key in keys}


def all_sections() -> list[type[Section]]:
    found: list[type[Section]] = []
    waiting = [Section]
    while waiting:
        found.append(waiting[-1])
        waiting.extend(waiting.pop().__subclasses__())
    return [section for section in found if section.__module__.startswith("gnntrain.")]


def test_an_empty_mapping_gives_the_defaults() -> None:
    assert from_dict({}) == Config()


def test_sections_work_on_their_own() -> None:
    assert TrainerConfig(epochs=3).epochs == 3
    assert Config(model=ModelConfig(name="gat", heads=4)).model.name == "gat"


def test_every_key_has_a_description_and_a_default() -> None:
    for section in all_sections():
        for key, field in section.model_fields.items():
            assert meanings(section)[key], f"{section.__name__}.{key}"
            assert not field.is_required(), f"{section.__name__}.{key}"
            assert "$ref" in str(schema := key_schema(section, key)) or in_words(schema)


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ConfigError, match="frozen"):
        Config().trainer.epochs = 3


@pytest.mark.parametrize(
    ("key", "value", "read_as"),
    [
        ("trainer.lr", 1, 1.0),
        ("trainer.lr", "1e-3", 1e-3),
        ("run.name", 2024, "2024"),
        ("sampler.fan_outs", [25, -1], (25, -1)),
        ("trainer.gpus", "auto", "auto"),
        ("trainer.gpus", 0, 0),
        ("trainer.clip_norm", None, None),
        ("evaluation.ranks", 0, "0"),
    ],
)
def test_values_are_read_as_what_they_mean(key: str, value: object, read_as: object) -> None:
    section, name = key.split(".")
    found = getattr(getattr(read({section: {name: value}}).config, section), name)
    assert found == read_as
    assert type(found) is type(read_as)


@pytest.mark.parametrize(
    ("key", "value", "expects"),
    [
        ("trainer.epochs", True, "an integer >= 1"),
        ("trainer.epochs", 1.5, "an integer >= 1"),
        ("trainer.epochs", "3", "an integer >= 1"),
        ("trainer.epochs", 0, "an integer >= 1"),
        ("trainer.epochs", None, "an integer >= 1"),
        ("trainer.lr", 0, "a number > 0"),
        ("trainer.lr", True, "a number > 0"),
        ("trainer.lr", float("nan"), "a number > 0"),
        ("trainer.lr", float("inf"), "a number > 0"),
        ("trainer.lr", "fast", "a number > 0"),
        ("trainer.drop_last", 1, "true or false"),
        ("trainer.drop_last", "yes", "true or false"),
        ("trainer.precision", "fp8", "one of fp32, bf16, fp16"),
        ("trainer.gpus", True, "auto or an integer >= 0"),
        ("trainer.gpus", -1, "auto or an integer >= 0"),
        ("trainer.max_steps", 0, "an integer >= 1 or null"),
        ("model.dropout", 1, "a number >= 0 and < 1"),
        ("sampler.fan_outs", 10, "a list of integers, each >= 1 or -1 (all)"),
        ("sampler.fan_outs", [10, 0], "a list of integers, each >= 1 or -1 (all)"),
        ("sampler.fan_outs", [10, -2], "a list of integers, each >= 1 or -1 (all)"),
        ("sampler.fan_outs", [10, 2**31], "a list of integers, each >= 1 or -1 (all)"),
        ("trainer.epochs", 10**30, "an integer >= 1"),
        ("trainer.lr", 10**400, "a number > 0"),
        ("sampler.fan_outs", [], "a list of integers, each >= 1 or -1 (all)"),
        ("evaluation.ranks", False, "one of all, 0"),
        ("dataset.homophily", 1.1, "a number >= 0 and <= 1"),
        ("run.name", "../up", "a folder's name (no slash, not latest) or null"),
        ("run.name", "latest", "a folder's name (no slash, not latest) or null"),
        ("run.dir", "", "a path or null"),
        ("run.dir", False, "a path or null"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_expected(key: str, value: object, expects: str) -> None:
    section, name = key.split(".")
    problem = only_problem({section: {name: value}})
    assert problem.key == key
    assert problem.expected == expects


def test_all_mistakes_come_in_one_message_with_exit_code_2() -> None:
    raw = {
        "trainer": {"epoch": 3, "lr": -1, "precision": "bf61"},
        "model": {"name": "gat", "heads": 3},
        "sampler": {"fan_outs": [5]},
        "dataset": {"name": "coraa"},
        "logging": {},
    }
    with pytest.raises(UserError) as caught:
        from_dict(raw)
    lines = caught.value.message.splitlines()
    assert lines[0] == "7 mistakes in the configuration"
    assert lines[1].split() == ["given", "expected"]
    assert len(lines) == 9
    for part in (
        "trainer.epoch=3",
        "did you mean trainer.epochs (now 20)?",
        "trainer.lr=-1",
        "a number > 0",
        "did you mean bf16?",
        "model.heads=3",
        "sampler.fan_outs=[5]",
        "did you mean cora?",
        "logging={}",
    ):
        assert part in caught.value.message
    assert caught.value.exit_code == 2


def test_the_columns_of_the_message_are_aligned() -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict({"trainer": {"lr": 0, "epochs": 0, "weight_decay": -1}})
    lines = caught.value.message.splitlines()[2:]
    assert len(lines) == 3
    assert len({re.search(r" (a number|an integer)", line).start() for line in lines}) == 1  # type: ignore[union-attr]  # None fails too


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        ({"trainer": {"epohcs": 3}}, "did you mean trainer.epochs (now 20)?"),
        ({"trainer": {"epohcs": 3, "epochs": 5}}, "did you mean trainer.epochs (now 5)?"),
        ({"lr": 0.1}, "did you mean trainer.lr (now 0.01)?"),
        ({"trainer": {"hidden_channels": 3}}, "did you mean model.hidden_channels (now 128)?"),
        ({"trainr": {"lr": 0.1}}, "did you mean trainer.lr (now 0.01)?"),
        ({"trainr": {"zzzzzz": 1}}, "did you mean trainer?"),
        ({"experimnt": "cora_gcn"}, "did you mean experiment?"),
        ({"epoch": 3}, "did you mean trainer.epochs (now 20)?"),
        ({"seed": 3}, "did you mean dataset.seed (now 0) or trainer.seed (now 0)?"),
        ({"datset": {"seed": 3}}, "did you mean dataset.seed (now 0)?"),
        ({"model": {"heads": 2}}, "a key of model=gat|gatv2, not of model=sage"),
        (
            {"dataset": {"name": "cora", "num_nodes": 2}},
            "a key of dataset=synthetic|synthetic_reddit|synthetic_products, not of dataset=cora",
        ),
        ({"logger": {"json": {}}}, "did you mean logger.jsonl?"),
        ({"trainer": {"learning_rate": 1}}, "did you mean trainer.lr (now 0.01)?"),
        ({"trainer": {"device": "cuda"}}, "did you mean trainer.gpus (now auto)?"),
        ({"num-neighbors": [3]}, "did you mean sampler.fan_outs (now [10,10])?"),
        ({"model": {"Hidden_Dim": 3}}, "did you mean model.hidden_channels (now 128)?"),
        ({"zzzzzz": 1}, None),
    ],
)
def test_an_unknown_key_names_the_key_that_was_meant(raw: dict[str, Any], hint: str | None) -> None:
    problem = only_problem(raw)
    assert problem.expected == "a key that exists"
    assert problem.hint == hint


def test_a_key_of_another_tool_is_translated_to_a_key_that_exists() -> None:
    existing = {key for name in model_names() for key in keys_of({"model": {"name": name}})}
    for name, key in synonyms.KEYS.items():
        assert key in existing
        assert name not in existing


def test_under_an_unknown_name_the_other_keys_are_not_judged() -> None:
    problem = only_problem({"model": {"name": "gta", "heads": 3, "num_layers": 7}})
    assert problem.key == "model.name"
    assert problem.hint == "did you mean gat?"
    assert "gat, gatv2, gcn" in problem.expected


def test_a_value_in_place_of_a_section_is_a_mistake() -> None:
    assert only_problem({"trainer": 3}).hint == "set its keys, as in trainer.epochs=..."


@pytest.mark.parametrize("fan_outs", [[10], [10, 10, 10]])
def test_fan_outs_must_match_the_layers(fan_outs: list[int]) -> None:
    problem = only_problem({"sampler": {"fan_outs": fan_outs}})
    assert problem.key == "sampler.fan_outs"
    assert "model.num_layers=2" in problem.expected
    assert problem.hint is not None
    assert "sampler.fan_outs=[10,10]" in problem.hint


def test_fan_outs_are_not_compared_where_nothing_is_drawn() -> None:
    from_dict({"sampler": {"name": "full", "fan_outs": [10]}})
    from_dict({"model": {"name": "mlp", "num_layers": 4}})


def test_fan_outs_of_sampled_evaluation_must_match_too() -> None:
    sampled = {"name": "sampled", "fan_outs": [5]}
    assert only_problem({"evaluation": sampled}).key == "evaluation.fan_outs"
    raw = {"evaluation": {"name": "sampled"}, "sampler": {"name": "full", "fan_outs": [5]}}
    assert only_problem(raw).key == "evaluation.fan_outs"
    from_dict({"evaluation": {"fan_outs": [5]}})


@pytest.mark.parametrize("name", ["gat", "gatv2"])
def test_heads_must_divide_the_hidden_channels(name: str) -> None:
    problem = only_problem({"model": {"name": name, "heads": 3, "hidden_channels": 64}})
    assert problem.expected == "a divisor of model.hidden_channels=64"
    assert problem.hint == "write model.heads=2 or model.hidden_channels=66"


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ({"num_nodes": 7, "avg_degree": 2}, "num_classes"),
        ({"num_nodes": 100, "num_train": 50, "num_val": 30, "num_test": 21}, "num_train"),
        ({"num_edges": 11}, "num_edges"),
        ({"num_nodes": 10, "num_edges": 92}, "num_edges"),
        ({"num_nodes": 10, "avg_degree": 9.5}, "avg_degree"),
    ],
)
def test_a_synthetic_graph_must_be_possible(keys: dict[str, Any], wrong: str) -> None:
    assert only_problem({"dataset": keys}).key == f"dataset.{wrong}"


def test_the_presets_have_the_exact_shapes() -> None:
    reddit = SyntheticConfig(name="synthetic_reddit")
    products = SyntheticConfig(name="synthetic_products")
    assert (reddit.num_nodes, reddit.num_edges, reddit.num_features) == (232965, 114615892, 602)
    assert (reddit.num_train, reddit.num_val, reddit.num_test) == (153431, 23831, 55703)
    assert (products.num_nodes, products.num_edges) == (2449029, 123718280)
    assert (products.num_features, products.num_classes) == (100, 47)
    assert (products.num_train, products.num_val, products.num_test) == (196615, 39323, 2213091)


def test_a_data_set_has_its_own_defaults_which_may_be_changed() -> None:
    assert BuiltinConfig(name="ogbn-arxiv").to_undirected
    assert not BuiltinConfig(name="ogbn-products").to_undirected
    assert not BuiltinConfig(name="ogbn-arxiv", to_undirected=False).to_undirected


def test_missing_files_are_named_with_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").touch()
    raw = {
        "name": "files",
        "edges": str(tmp_path / "edgs.csv"),
        "features": str(tmp_path / "nowhere" / "x.npy"),
        "labels": str(tmp_path),
    }
    found = problems_of({"dataset": raw})
    assert found["dataset.edges"].hint == "did you mean edges.csv?"
    assert "no folder" in found["dataset.features"].expected
    assert "this is a folder" in found["dataset.labels"].expected


def test_a_file_in_place_of_a_folder_is_a_mistake(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for key in ("root", "store_dir"):
        problem = only_problem({"dataset": {"name": "cora", key: str(file)}})
        assert (problem.key, problem.expected) == (f"dataset.{key}", "a folder, but this is a file")


def test_edges_and_features_must_be_given() -> None:
    found = problems_of({"dataset": {"name": "files"}})
    assert sorted(found) == ["dataset.edges", "dataset.features"]


@pytest.mark.parametrize("name", ["county", "a/b c", "größe", 2020])
def test_a_users_own_files_have_any_name(name: object) -> None:
    dataset = from_dict({"dataset": {"name": name, "edges": "gone"}}, saved=True).dataset
    assert isinstance(dataset, FilesConfig)
    assert (dataset.name, dataset.option) == (str(name), "files")
    assert not dataset.to_undirected


@pytest.mark.parametrize("name", ["ogbn-arxiv", "synthetic", "two\nlines", ""])
def test_a_users_own_files_take_no_name_of_another_data_set(name: str) -> None:
    with pytest.raises(ConfigError):
        FilesConfig(name=name)
    assert problems_of({"dataset": {"name": name, "edges": "a", "features": "b"}})


def test_a_name_alone_makes_no_files() -> None:
    hint = only_problem({"dataset": {"name": "county"}}).hint
    assert hint is not None
    assert "dataset=files" in hint


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


def test_a_plug_in_model_is_known_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry_points = "[gnntrain.models]\nmine = mine_model:Mine\n"
    packages.install(tmp_path, monkeypatch, "mine_model", "", entry_points)
    config = from_dict({"model": {"name": "mine", "options": {"depth": 3}}})
    assert config.model == PluginConfig(name="mine", options={"depth": 3})
    assert only_problem({"model": {"name": "mien"}}).hint == "did you mean mine?"


def test_paths_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/user")
    config = from_dict({"dataset": {"root": "raw", "store_dir": "~/stores"}})
    assert config.dataset.root == str(tmp_path / "raw")
    assert config.dataset.store_dir == "/home/user/stores"


def test_fp16_is_refused_on_the_cpu_and_bf16_is_not() -> None:
    problem = only_problem({"trainer": {"gpus": 0, "precision": "fp16"}})
    assert problem.hint == "write trainer.precision=bf16"
    from_dict({"trainer": {"gpus": 0, "precision": "bf16"}})


def test_gpus_and_cpu_ranks_contradict_each_other() -> None:
    problem = only_problem({"trainer": {"gpus": 2}, "distributed": {"num_processes": 4}})
    assert problem.key == "distributed.num_processes"
    from_dict({"trainer": {"gpus": 0}, "distributed": {"num_processes": 4}})


def test_class_weights_want_classes(tmp_path: Path) -> None:
    weighted = {"trainer": {"class_weights": "balanced"}}
    from_dict(weighted)
    (tmp_path / "x.csv").touch()
    files = {"name": "files", "edges": str(tmp_path / "x.csv"), "features": str(tmp_path / "x.csv")}
    regression = {"task": {"type": "node_regression"}, "dataset": files}
    assert only_problem(weighted | regression).key == "trainer.class_weights"


def test_warm_up_may_not_outlast_the_training() -> None:
    assert only_problem({"trainer": {"epochs": 3, "warmup_epochs": 4}}).expected == (
        "at most trainer.epochs=3"
    )


@pytest.mark.parametrize(
    ("trainer", "num_gpus", "wrong"),
    [
        ({"gpus": 1}, 0, ["trainer.gpus"]),
        ({"gpus": 3}, 2, ["trainer.gpus"]),
        ({"gpus": 2}, 2, []),
        ({"precision": "fp16"}, 0, ["trainer.precision"]),
        ({"precision": "fp16"}, 1, []),
        ({}, 0, []),
    ],
)
def test_the_machine_must_have_the_gpus(
    trainer: dict[str, Any], num_gpus: int, wrong: list[str]
) -> None:
    found = machine_problems(Config(trainer=TrainerConfig(**trainer)), num_gpus)
    assert [problem.key for problem in found] == wrong


def test_cpu_ranks_contradict_gpus_that_auto_would_take() -> None:
    config = from_dict({"distributed": {"num_processes": 2}})
    assert machine_problems(config, 0) == []
    assert [p.key for p in machine_problems(config, 1)] == ["distributed.num_processes"]


@pytest.mark.parametrize(
    ("cores", "gibibytes", "ranks", "said"),
    [
        (2, 24, 8, None),
        (2, 24, 9, "at most 8 ranks on this machine: 4 times its 2 cores"),
        (64, 512, 256, None),
        (64, 512, 100_000, "at most 256 ranks on this machine: 4 times its 64 cores"),
        (64, 16, 65, "at most 64 ranks on this machine: its 16 GiB of memory hold no more"),
    ],
)
def test_more_ranks_than_the_machine_can_bear_are_refused(
    cores: int, gibibytes: int, ranks: int, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "available_cores", lambda: cores)
    memory = SimpleNamespace(total=gibibytes << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    config = Config(
        distributed=DistributedConfig(num_processes=ranks), trainer=TrainerConfig(gpus=0)
    )
    assert [problem.expected for problem in machine_problems(config, 0)] == ([said] if said else [])


@pytest.mark.parametrize("installed", [True, False])
def test_the_triton_backend_needs_a_gpu_and_its_package(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: name if installed else None)
    config = Config(sampler=SamplerConfig(backend="triton"))
    (problem,) = machine_problems(config, 0)
    assert problem.key == "sampler.backend"
    assert "triton samples on a GPU" in problem.expected
    found = machine_problems(config, 1)
    assert [problem.expected.partition(": ")[2] for problem in found] == (
        [] if installed else ["the package triton is not installed"]
    )


@pytest.mark.parametrize("installed", [[], ["pyg_lib"], ["torch_sparse"]])
def test_the_pyg_backend_needs_one_of_two_libraries(
    installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: name if name in installed else None)
    found = machine_problems(Config(sampler=SamplerConfig(backend="pyg")), 0)
    assert len(found) == (0 if installed else 1)
    if found:
        assert "the built-in sampler needs nothing" in str(found[0].hint)


def test_the_pyg_backend_makes_its_batches_in_no_thread() -> None:
    with pytest.raises(UserError, match=r"sampler\.threads.*draws from dropout's generator"):
        from_dict({"sampler": {"backend": "pyg", "threads": 2}})
    assert from_dict({"sampler": {"backend": "pyg", "threads": 0}}).sampler.threads == 0


def test_a_logger_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda _: None)
    (problem,) = machine_problems(from_dict({"logger": {"csv": {}, "wandb": {}}}), 0)
    assert problem.hint == "`pip install wandb`, or write logger=[csv]"


def test_torch_is_asked_only_where_the_answer_matters() -> None:
    assert not needs_gpu_count(Config())
    assert not needs_gpu_count(Config(trainer=TrainerConfig(gpus=0, precision="fp16")))
    assert needs_gpu_count(Config(trainer=TrainerConfig(gpus=1)))
    assert needs_gpu_count(Config(trainer=TrainerConfig(precision="fp16")))


def test_an_empty_logger_section_means_no_logger() -> None:
    assert from_dict({"logger": {}}).logger.chosen() == {}
    assert list(from_dict({}).logger.chosen()) == ["jsonl"]


@settings(max_examples=50, deadline=None)
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
    assert from_dict(config.to_dict()) == config
    assert from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert pickle.loads(pickle.dumps(config)) == config


def test_an_error_survives_the_way_from_a_worker() -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict({"lr": 1})
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.message == caught.value.message
    assert again.problems == caught.value.problems


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"sampler": {"backend": "triton", "topology": "host"}}, "write sampler.backend=numba"),
        ({"sampler": {"backend": "numba", "topology": "pinned"}}, "write sampler.backend=triton"),
        ({"sampler": {"fan_outs": [-1, 2]}}, "sampler.fan_outs is numbers >= 1"),
        ({"model": {"norm": "batch"}}, "model.norm is layer or none"),
        ({"features": {"placement": "memmap"}}, "features.placement is auto"),
        ({"trainer": {"cuda_graph": True, "gpus": 2}}, "trainer.gpus is 1"),
        ({"trainer": {"cuda_graph": True, "on_nonfinite": "skip"}}, "on_nonfinite is stop"),
    ],
    ids=str,
)
def test_what_a_recorded_step_or_the_topology_cannot_be_is_said(
    sections: dict[str, dict[str, Any]], said: str
) -> None:
    if "topology" not in sections.get("sampler", {}):
        sections = {"trainer": {"cuda_graph": True}, **sections}
    with pytest.raises(ConfigError, match=re.escape(said)):
        from_dict(sections)


@pytest.mark.parametrize(
    ("sections", "num_gpus", "said"),
    [
        ({"features": {"placement": "cached"}}, 0, "auto or memmap on the CPU"),
        ({"features": {"placement": "sharded"}}, 1, "on one GPU"),
        ({"sampler": {"topology": "resident"}}, 0, "auto or host on the CPU"),
        ({"trainer": {"cuda_graph": True}}, 0, "false without a GPU"),
        ({"trainer": {"cuda_graph": True}}, 4, "false on several GPUs"),
    ],
    ids=str,
)
def test_what_is_asked_of_gpus_that_are_not_there_is_said(
    sections: dict[str, dict[str, Any]], num_gpus: int, said: str
) -> None:
    config = from_dict(sections)
    assert needs_gpu_count(config)
    assert said in " ".join(problem.expected for problem in machine_problems(config, num_gpus))
    assert machine_problems(Config(), num_gpus) == []
