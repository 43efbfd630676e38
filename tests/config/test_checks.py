"""Keys that contradict each other, files that are not there, what the machine lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnntrain import devices
from gnntrain.config import (
    Config,
    DistributedConfig,
    TrainerConfig,
    checks,
    from_dict,
    training_device,
)
from gnntrain.config.checks import machine_problems
from tests.config.problems import problems_of

TYPED = {"default": [10, 5], "author/writes/paper": [20, 5]}
RGCN = {"model": {"name": "rgcn"}}


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"sampler": {"fan_outs": [10]}}, "sampler.fan_outs"),
        ({"sampler": {"fan_outs": [10, 10, 10]}}, "sampler.fan_outs"),
        ({"sampler": {"name": "full", "fan_outs": [10]}}, None),  # nothing is drawn
        ({"model": {"name": "mlp", "num_layers": 4}}, None),
        ({"evaluation": {"name": "sampled", "fan_outs": [5]}}, "evaluation.fan_outs"),
        (
            {"evaluation": {"name": "sampled"}, "sampler": {"name": "full", "fan_outs": [5]}},
            "evaluation.fan_outs",
        ),
        ({"evaluation": {"fan_outs": [5]}}, None),
        (RGCN | {"sampler": {"fan_outs": TYPED}}, None),
        (RGCN | {"sampler": {"fan_outs": TYPED | {"cites": [7]}}}, "sampler.fan_outs"),
        # By edge type: for models of typed graphs, each of whose edge types is drawn by itself.
        ({"sampler": {"fan_outs": TYPED}}, "sampler.fan_outs"),
        ({"evaluation": {"name": "sampled", "fan_outs": TYPED}}, "evaluation.fan_outs"),
        (RGCN | {"sampler": {"fan_outs": TYPED, "fan_out_scope": "node"}}, "sampler.fan_outs"),
        (RGCN | {"sampler": {"fan_outs": [10, 5], "fan_out_scope": "node"}}, None),
    ],
    ids=str,
)
def test_fan_outs_must_match_the_layers_and_the_model(raw: dict[str, Any], key: str | None) -> None:
    assert [*problems_of(raw)] == ([] if key is None else [key])


TYPED_MODEL: dict[str, Any] = {"model": {"name": "rgcn"}}
REGRESSION = {"task": {"type": "node_regression"}, "dataset": {"name": "files", "data": "x"}}
PARTITIONED = {"distributed": {"graph": "partitioned", "parts": "parts"}}
SHARDED = {"distributed": {"graph": "sharded"}}
SERVED = {"distributed": {"servers": 1}}
PYG, TRITON = ({"sampler": {"backend": name}} for name in ("pyg", "triton"))


@pytest.mark.parametrize(
    ("beside", "key", "value"),
    [
        ({"model": {"name": "gat", "hidden_channels": 64}}, "model.heads", 3),
        ({"model": {"name": "rgcn", "hidden_channels": 64}}, "model.num_blocks", 3),
        (TYPED_MODEL, "model.embedding_channels", 16),
        ({"model": {"name": "rgcn", "num_blocks": 4}}, "model.num_bases", 2),
        ({"trainer": {"device": "cpu"}}, "trainer.precision", "fp16"),
        ({"trainer": {"device": "cpu"}}, "trainer.gpus", 2),
        ({"trainer": {"device": "mps"}}, "trainer.gpus", 0),
        ({"trainer": {"epochs": 3}}, "trainer.warmup_epochs", 4),
        ({"trainer": {"scheduler": "plateau"}}, "trainer.warmup_epochs", 4),
        ({"trainer": {"gpus": 2}}, "distributed.num_processes", 4),
        ({}, "task.loss", "huber"),
        ({}, "sweep.trials", 50),
        (REGRESSION, "trainer.class_weights", "balanced"),
        (REGRESSION, "trainer.label_smoothing", 0.1),
        ({"dataset": {"name": "files", "data": "x"}}, "dataset.task", "regression"),
        ({"dataset": {"name": "cora"}}, "task.type", "node_regression"),
        (PYG, "sampler.threads", 2),
        (TRITON, "sampler.topology", "host"),
        ({"sampler": {"fan_outs": [-1, 2]}}, "trainer.cuda_graph", True),
        ({"sampler": {"name": "full"}}, "distributed.graph", "sharded"),
        (SHARDED, "features.placement", "pinned"),
        ({"features": {"placement": "wholegraph"}}, "distributed.servers", 1),
        (PARTITIONED, "sampler.backend", "triton"),
        (PARTITIONED, "evaluation.ranks", "0"),
        ({"distributed": {"graph": "partitioned"}}, "distributed.parts", None),
        (SERVED, "sampler.name", "full"),
        (TYPED_MODEL, "sampler.backend", "triton"),
        (TYPED_MODEL, "features.cache_ratio", 0.1),
        ({"compute": {"kernels": "torch"}}, "features.placement", "pinned"),
    ],
    ids=str,
)
def test_keys_that_contradict_each_other_are_told(
    beside: dict[str, dict[str, Any]], key: str, value: object
) -> None:
    section, name = key.split(".")
    raw = beside | {section: beside.get(section, {}) | {name: value}}
    assert problems_of(raw)[key].expected
    assert value is None or key not in problems_of(beside)


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
    assert {"dataset.features", "dataset.labels"} < found.keys()


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


ONE, TWO, MPS, ALL = {"cuda": 1}, {"cuda": 2}, {"mps": 1}, ("triton", "pylibwholegraph")


@pytest.mark.parametrize(
    ("key", "value", "gpus", "packages", "is_refused"),
    [
        ("trainer.gpus", 1, {}, ALL, True),
        ("trainer.gpus", 2, TWO, ALL, False),
        ("trainer.precision", "fp16", {}, ALL, True),
        ("trainer.precision", "fp16", ONE, ALL, False),
        ("trainer.device", "cuda", TWO, ALL, False),
        ("trainer.device", "cuda", {}, ALL, True),
        ("trainer.device", "mps", TWO, ALL, True),
        ("trainer.cuda_graph", True, {}, ALL, True),
        ("trainer.cuda_graph", True, ONE, (), True),
        ("distributed.num_processes", 2, {}, ALL, False),
        ("distributed.num_processes", 2, ONE, ALL, True),
        ("sampler.backend", "triton", {}, ALL, True),
        ("sampler.backend", "triton", ONE, (), True),
        ("sampler.backend", "triton", ONE, ALL, False),
        ("sampler.backend", "pyg", {}, (), True),
        ("sampler.backend", "pyg", {}, ("pyg_lib",), False),
        ("sampler.topology", "pinned", {}, ALL, True),
        ("sampler.topology", "pinned", ONE, (), True),
        ("features.placement", "cached", {}, ALL, True),
        ("features.placement", "cached", MPS, ALL, False),
        ("features.placement", "sharded", ONE, ALL, True),
        ("features.placement", "wholegraph", ONE, (), True),
        ("compute.kernels", "triton", {}, ALL, True),
        ("compute.kernels", "triton", ONE, ALL, False),
        ("logger", {"csv": {}, "wandb": {}}, {}, (), True),
    ],
    ids=str,
)
def test_what_this_machine_lacks_is_told(
    key: str,
    value: object,
    gpus: dict[str, int],
    packages: tuple[str, ...],
    is_refused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(checks, "find_spec", lambda name: name if name in packages else None)
    monkeypatch.setattr(devices, "gpus_here", lambda: gpus)
    section, _, name = key.partition(".")
    config = from_dict({section: {name: value} if name else value})
    problems = machine_problems(config)
    assert (key in {problem.key for problem in problems}) == is_refused


def test_tritons_interpreter_needs_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(checks, "find_spec", lambda name: name)
    assert machine_problems(from_dict({"compute": {"kernels": "triton"}})) == []


@pytest.mark.parametrize(("cores", "gibibytes", "most"), [(2, 24, 8), (64, 512, 256), (64, 16, 64)])
def test_more_ranks_than_the_machine_can_bear_are_refused(
    cores: int, gibibytes: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "available_cores", lambda: cores)
    monkeypatch.setattr(checks, "total_memory", lambda: gibibytes << 30)
    for ranks in (most, most + 1):
        keys = DistributedConfig(num_processes=ranks)
        found = machine_problems(Config(distributed=keys, trainer=TrainerConfig(gpus=0)))
        assert [f"at most {most} ranks" in one.expected for one in found] == [True] * (ranks > most)


def test_of_a_graph_in_parts_the_files_are_not_looked_for() -> None:
    parts = {"graph": "partitioned", "parts": "parts"}
    from_dict({"distributed": parts, "dataset": {"name": "files"}})


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
