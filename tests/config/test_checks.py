"""Keys that contradict each other, files that are not there, what the machine lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gnntrain.cli import main
from gnntrain.config import (
    Config,
    ConfigError,
    DistributedConfig,
    SamplerConfig,
    TrainerConfig,
    checks,
    from_dict,
    idle_keys,
    machine_problems,
    needs_gpu_count,
    read,
    training_device,
)
from tests.config.problems import only_problem, problems_of


def found_gpus(number: int) -> dict[str, int]:
    return {"cuda": number} if number else {}


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


TYPED = {"default": [10, 5], "author/writes/paper": [20, 5]}


def test_fan_outs_by_edge_type_are_for_models_of_typed_graphs() -> None:
    from_dict({"sampler": {"fan_outs": TYPED}, "model": {"name": "rgcn"}})
    problem = only_problem({"sampler": {"fan_outs": TYPED}})
    assert problem.hint == "write sampler.fan_outs=[10,5]"
    sampled = {"evaluation": {"name": "sampled", "fan_outs": TYPED}}
    assert only_problem(sampled).key == "evaluation.fan_outs"


def test_fan_outs_by_edge_type_must_match_the_layers_too() -> None:
    raw = {"sampler": {"fan_outs": TYPED | {"cites": [7]}}, "model": {"name": "rgcn"}}
    problem = only_problem(raw)
    assert problem.value == "{cites:[7]}"
    assert problem.hint is not None
    assert "cites:[7,7]" in problem.hint


def test_all_relations_of_a_node_share_one_fan_out() -> None:
    raw = {
        "sampler": {"fan_outs": TYPED, "fan_out_scope": "node"},
        "model": {"name": "rgcn"},
    }
    assert only_problem(raw).key == "sampler.fan_outs"
    from_dict(raw | {"sampler": {"fan_outs": [10, 5], "fan_out_scope": "node"}})


TYPED_MODEL: dict[str, Any] = {"model": {"name": "rgcn"}}
RECORDED: dict[str, Any] = {"trainer": {"cuda_graph": True}}
REGRESSION = {"task": {"type": "node_regression"}, "dataset": {"name": "files", "data": "x"}}
PARTITIONED = {"distributed": {"graph": "partitioned", "parts": "parts"}}
SHARDED = {"distributed": {"graph": "sharded"}}
SERVED = {"distributed": {"servers": 1}}
PYG, NUMBA, TRITON = ({"sampler": {"backend": name}} for name in ("pyg", "numba", "triton"))


@pytest.mark.parametrize(
    ("beside", "sections", "key"),
    [
        ({}, {"model": {"name": "gat", "heads": 3, "hidden_channels": 64}}, "model.heads"),
        ({}, {"model": {"name": "rgcn", "num_blocks": 3}}, "model.num_blocks"),
        ({}, {"model": {"name": "gin", "hidden_channels": 2}}, "model.norm"),  # by default
        (
            {},
            {"model": {"normalize": True, "hidden_channels": 1}},
            "model.normalize",
        ),
        ({}, {"model": {"name": "rgcn", "embedding_channels": 16}}, "model.embedding_channels"),
        ({}, {"dataset": {"num_nodes": 7, "avg_degree": 2}}, "dataset.num_classes"),
        ({}, {"dataset": {"num_nodes": 100, "num_train": 50, "num_val": 51}}, "dataset.num_train"),
        ({}, {"dataset": {"num_edges": 11}}, "dataset.num_edges"),
        ({}, {"dataset": {"num_nodes": 10, "num_edges": 92}}, "dataset.num_edges"),
        ({}, {"dataset": {"num_nodes": 10, "avg_degree": 9.5}}, "dataset.avg_degree"),
        ({}, {"trainer": {"gpus": 0, "precision": "fp16"}}, "trainer.precision"),
        ({}, {"trainer": {"device": "cpu", "precision": "fp16"}}, "trainer.precision"),
        ({}, {"trainer": {"device": "cpu", "gpus": 2}}, "trainer.gpus"),
        ({}, {"trainer": {"device": "mps", "gpus": 0}}, "trainer.gpus"),
        ({}, {"trainer": {"epochs": 3, "warmup_epochs": 4}}, "trainer.warmup_epochs"),
        ({}, {"trainer": {"scheduler": "plateau", "warmup_epochs": 4}}, "trainer.warmup_epochs"),
        (
            {"trainer": {"gpus": 2}},
            {"distributed": {"num_processes": 4}},
            "distributed.num_processes",
        ),
        ({}, {"task": {"loss": "huber"}}, "task.loss"),
        (REGRESSION, {"trainer": {"class_weights": "balanced"}}, "trainer.class_weights"),
        (REGRESSION, {"trainer": {"label_smoothing": 0.1}}, "trainer.label_smoothing"),
        ({}, {"task": {"type": "node_regression"}, "dataset": {"name": "cora"}}, "task.type"),
        (PYG, {"sampler": {"threads": 2}}, "sampler.threads"),
        (
            {"sampler": {"backend": "pyg"}},
            {"sampler": {"fan_out_scope": "node"}},
            "sampler.fan_out_scope",
        ),
        (TRITON, {"sampler": {"topology": "host"}}, "sampler.topology"),
        (
            {"sampler": {"backend": "numba"}},
            {"sampler": {"topology": "pinned"}},
            "sampler.topology",
        ),
        (RECORDED, {"sampler": {"fan_outs": [-1, 2]}}, "trainer.cuda_graph"),
        (RECORDED, {"model": {"norm": "batch"}}, "trainer.cuda_graph"),
        (RECORDED, {"features": {"placement": "memmap"}}, "trainer.cuda_graph"),
        (RECORDED, SHARDED, "trainer.cuda_graph"),
        (RECORDED, {"trainer": {"gpus": 2}}, "trainer.cuda_graph"),
        (RECORDED, {"trainer": {"on_nonfinite": "skip"}}, "trainer.cuda_graph"),
        ({"sampler": {"name": "full"}}, SHARDED, "distributed.graph"),
        (SHARDED, {"features": {"placement": "pinned"}}, "features.placement"),
        ({"features": {"placement": "wholegraph"}}, SERVED, "distributed.servers"),
        (PARTITIONED, {"sampler": {"backend": "triton"}}, "sampler.backend"),
        (PARTITIONED, {"sampler": {"topology": "resident"}}, "sampler.topology"),
        (PARTITIONED, {"sampler": {"name": "full"}}, "sampler.name"),
        (PARTITIONED, {"features": {"placement": "resident"}}, "features.placement"),
        (PARTITIONED, RECORDED, "trainer.cuda_graph"),
        (PARTITIONED, {"evaluation": {"ranks": "0"}}, "evaluation.ranks"),
        ({}, {"distributed": {"graph": "partitioned"}}, "distributed.parts"),
        (SHARDED, {"distributed": {"parts": "parts"}}, "distributed.parts"),
        (SERVED, {"sampler": {"name": "full"}}, "sampler.name"),
        (SERVED, {"sampler": {"backend": "pyg"}}, "sampler.backend"),
        (SERVED, {"features": {"placement": "pinned"}}, "features.placement"),
        (TYPED_MODEL, {"sampler": {"backend": "triton"}}, "sampler.backend"),
        (TYPED_MODEL, {"sampler": {"topology": "pinned"}}, "sampler.topology"),
        (TYPED_MODEL, {"features": {"placement": "cached"}}, "features.placement"),
        (TYPED_MODEL, {"features": {"cache_ratio": 0.1}}, "features.cache_ratio"),
        (TYPED_MODEL, {"features": {"cache_bytes": 1000}}, "features.cache_bytes"),
        (TYPED_MODEL, RECORDED, "trainer.cuda_graph"),
    ],
    ids=str,
)
def test_keys_that_contradict_each_other_are_told(
    beside: dict[str, dict[str, Any]], sections: dict[str, dict[str, Any]], key: str
) -> None:
    raw = {name: beside.get(name, {}) | sections.get(name, {}) for name in {**beside, **sections}}
    assert problems_of(raw)[key].expected
    assert key not in {problem.key for problem in read(beside)[1]}


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


@pytest.mark.parametrize("whole", ["data", "schema"])
def test_a_whole_graph_takes_no_other_file(tmp_path: Path, whole: str) -> None:
    (tmp_path / "x").touch()
    files = dict.fromkeys(("data", "schema", "edges"), str(tmp_path / "x"))
    raw = {"name": "files", "id_column": "i", "header": True, **files}
    if whole == "schema":
        del raw["data"]
    found = problems_of({"dataset": raw})
    expected = ["dataset.edges", "dataset.id_column" if whole == "schema" else "dataset.schema"]
    assert sorted(found) == expected


@pytest.mark.parametrize(
    ("trainer", "num_gpus", "wrong"),
    [
        ({"gpus": 1}, 0, ["trainer.gpus"]),
        ({"gpus": 3}, 2, ["trainer.gpus"]),
        ({"gpus": 2}, 2, []),
        ({"precision": "fp16"}, 0, ["trainer.precision"]),
        ({"precision": "fp16"}, 1, []),
        ({}, 0, []),
        ({"device": "cpu"}, 2, []),
        ({"device": "cuda"}, 2, []),
        ({"device": "cuda"}, 0, ["trainer.device"]),
        ({"device": "cuda", "gpus": 1}, 0, ["trainer.device"]),
        ({"device": "mps"}, 2, ["trainer.device"]),
    ],
)
def test_the_machine_must_have_the_gpus(
    trainer: dict[str, Any], num_gpus: int, wrong: list[str]
) -> None:
    found = machine_problems(Config(trainer=TrainerConfig(**trainer)), found_gpus(num_gpus))
    assert [problem.key for problem in found] == wrong


def test_cpu_ranks_contradict_gpus_that_auto_would_take() -> None:
    config = from_dict({"distributed": {"num_processes": 2}})
    assert machine_problems(config, {}) == []
    assert [p.key for p in machine_problems(config, {"cuda": 1})] == ["distributed.num_processes"]


@pytest.mark.parametrize(("cores", "gibibytes", "most"), [(2, 24, 8), (64, 512, 256), (64, 16, 64)])
def test_more_ranks_than_the_machine_can_bear_are_refused(
    cores: int, gibibytes: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "available_cores", lambda: cores)
    monkeypatch.setattr(checks, "total_memory", lambda: gibibytes << 30)
    for ranks in (most, most + 1):
        keys = DistributedConfig(num_processes=ranks)
        found = machine_problems(Config(distributed=keys, trainer=TrainerConfig(gpus=0)), {})
        assert [f"at most {most} ranks" in one.expected for one in found] == [True] * (ranks > most)


@pytest.mark.parametrize("installed", [True, False])
def test_the_triton_backend_needs_a_gpu_and_its_package(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: name if installed else None)
    config = Config(sampler=SamplerConfig(backend="triton"))
    (problem,) = machine_problems(config, {})
    assert problem.key == "sampler.backend"
    found = machine_problems(config, {"cuda": 1})
    assert [problem.key for problem in found] == ([] if installed else ["sampler.backend"])


@pytest.mark.parametrize("installed", [[], ["pyg_lib"], ["torch_sparse"]])
def test_the_pyg_backend_needs_one_of_two_libraries(
    installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: name if name in installed else None)
    found = machine_problems(Config(sampler=SamplerConfig(backend="pyg")), {})
    assert len(found) == (0 if installed else 1)


def test_a_logger_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda _: None)
    (problem,) = machine_problems(from_dict({"logger": {"csv": {}, "wandb": {}}}), {})
    assert problem.hint == "`pip install wandb`, or write logger=[csv]"


def test_the_folder_of_parts_has_been_written(tmp_path: Path) -> None:
    parts = {"graph": "partitioned", "parts": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"partition\.json"):
        from_dict({"distributed": parts})
    (tmp_path / "partition.json").touch()
    from_dict({"distributed": parts, "dataset": {"name": "files"}})


@pytest.mark.parametrize(
    ("sections", "num_gpus"),
    [
        ({"features": {"placement": "cached"}}, 0),
        ({"features": {"placement": "sharded"}}, 1),
        ({"features": {"placement": "wholegraph"}}, 0),
        ({"sampler": {"topology": "resident"}}, 0),
        ({"trainer": {"cuda_graph": True}}, 0),
        ({"trainer": {"cuda_graph": True}}, 4),
    ],
    ids=str,
)
def test_what_is_asked_of_gpus_that_are_not_there_is_said(
    sections: dict[str, dict[str, Any]], num_gpus: int
) -> None:
    config = from_dict(sections)
    assert needs_gpu_count(config)
    [(name, keys)] = sections.items()
    found = machine_problems(config, found_gpus(num_gpus))
    assert f"{name}.{next(iter(keys))}" in [problem.key for problem in found]
    assert machine_problems(Config(), found_gpus(num_gpus)) == []


@pytest.mark.parametrize(
    ("trainer", "found", "device"),
    [
        ({}, {}, ("cpu", 0)),
        ({}, {"cuda": 4}, ("cuda", 4)),
        ({}, {"mps": 1}, ("mps", 1)),
        ({"gpus": 2}, {"xpu": 4}, ("xpu", 2)),
        ({"gpus": 2}, {}, ("cuda", 2)),  # `gnntrain plan` measures one rank of them
        ({"gpus": 0}, {"cuda": 4}, ("cpu", 0)),
        ({"device": "cpu"}, {"cuda": 4}, ("cpu", 0)),
        ({"device": "xpu"}, {"xpu": 4}, ("xpu", 4)),
        ({"device": "xpu"}, {"cuda": 4}, ("cpu", 0)),  # and `machine_problems` has refused it
    ],
    ids=str,
)
def test_auto_trains_on_all_gpus_of_the_machine(
    trainer: dict[str, Any], found: dict[str, int], device: tuple[str, int]
) -> None:
    assert training_device(TrainerConfig(**trainer), found) == device


TRITON_ONLY = [
    {"sampler": {"backend": "triton"}},
    {"sampler": {"topology": "pinned"}},
    {"features": {"placement": "pinned"}},
    {"features": {"placement": "sharded"}},
    {"trainer": {"cuda_graph": True}},
]


@pytest.mark.parametrize("sections", TRITON_ONLY, ids=str)
def test_what_needs_tritons_kernels_is_refused_without_them(
    sections: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    [(name, keys)] = sections.items()
    key = f"{name}.{next(iter(keys))}"
    assert only_problem({"compute": {"kernels": "torch"}, **sections}).key == key
    config = from_dict(sections)
    assert needs_gpu_count(config)
    assert key in [problem.key for problem in machine_problems(config, {"mps": 1})]
    monkeypatch.setattr(checks, "find_spec", lambda _: None)
    assert key in [problem.key for problem in machine_problems(config, {"cuda": 1})]


@pytest.mark.parametrize("placement", ["resident", "cached", "memmap"])
def test_torchs_operators_read_rows_in_gpu_memory_and_in_the_store(placement: str) -> None:
    config = from_dict({"compute": {"kernels": "torch"}, "features": {"placement": placement}})
    assert machine_problems(config, {"mps": 1}) == []


@pytest.mark.parametrize(
    ("found", "interprets", "is_refused"),
    [({}, False, True), ({}, True, False), ({"mps": 1}, True, True), ({"cuda": 1}, False, False)],
)
def test_tritons_kernels_need_a_gpu_that_triton_knows_or_its_interpreter(
    found: dict[str, int],
    interprets: bool,
    is_refused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1" if interprets else "0")
    monkeypatch.setattr(checks, "find_spec", lambda name: name)
    problems = machine_problems(from_dict({"compute": {"kernels": "triton"}}), found)
    assert [problem.key for problem in problems] == ["compute.kernels"] * is_refused


FULL, EXACT = ["sampler=full"], ["evaluation=layerwise"]


@pytest.mark.parametrize(
    ("beside", "idle", "working"),
    [
        (FULL, "trainer.batch_size=7", []),
        (FULL, "trainer.drop_last=true", []),
        (FULL, "sampler.replace=true", []),
        (FULL, "sampler.fan_outs=[3,3]", ["evaluation=sampled"]),
        (EXACT, "evaluation.fan_outs=[3,3]", ["evaluation=sampled"]),
        (EXACT, "evaluation.max_steps=1", ["evaluation=sampled"]),
        (EXACT, "evaluation.batch_size=9", ["evaluation=sampled"]),
        (["model=gat", "model.jk=cat"], "model.output_heads=2", ["model.jk=none"]),
        (
            ["model.num_layers=1", "sampler.fan_outs=[5]"],
            "model.norm=layer",
            ["model.jk=max"],
        ),
        (
            ["model.num_layers=1", "sampler.fan_outs=[5]"],
            "model.activation=elu",
            ["model=gin"],
        ),
    ],
    ids=str,
)
def test_a_key_that_does_nothing_is_told_and_does_nothing(
    beside: list[str],
    idle: str,
    working: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The run is the same without it; where it does something, nothing is told."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keys = ["trainer.gpus=0", "dataset.num_nodes=200", "trainer.epochs=1"]

    def losses(name: str, *more: str) -> list[tuple[str, Any]]:
        assert main([*keys, "model.hidden_channels=8", *more, f"run.dir={name}"]) == 0
        told = json.loads(Path(name, "summary.json").read_text())
        return [(key, told[key]) for key in ("train_loss", "val", "test")]

    without = losses("without", *beside)
    capfd.readouterr()
    assert losses("with", *beside, idle) == without
    key = idle.partition("=")[0]
    assert capfd.readouterr().err.count(f"{key} does nothing with") == 1
    if working:
        losses("working", *beside, idle, *working)
        assert "does nothing" not in capfd.readouterr().err


def test_a_threshold_of_another_loss_is_told() -> None:
    for loss, told in (("mse", 1), ("huber", 0)):
        task = {"type": "node_regression", "loss": loss, "huber_delta": 2.0}
        dataset = {"name": "files", "edges": "e.csv", "features": "f.csv"}
        config = from_dict({"task": task, "dataset": dataset}, saved=True)
        assert len([*idle_keys(config, ["task.huber_delta=2"])]) == told


def test_keys_of_sampled_evaluation_are_told_beside_a_model_of_ones_own() -> None:
    config = from_dict({"model": {"name": "my_sage"}}, saved=True)
    (told,) = idle_keys(config, ["evaluation.max_steps=3", "evaluation.batch_size=9"])
    assert "max_steps" in told
    assert "batch_size" not in told  # of the batches where the graph does not fit
