"""A run on a graph in parts computes the numbers of a run on the whole graph."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.config import Config, from_dict
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.partitioning.build import write_parts
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.errors import UserError
from gnntrain.joint_run import compare_stores
from gnntrain.run import prepare_store, train
from gnntrain.run_graph import open_graph
from gnntrain.run_store import ModelSignature, record_of
from gnntrain.tasks import NodeClassification
from gnntrain.training.checkpoint import load_checkpoint
from tests.graphs import random_graph

GRAPH = {"name": "synthetic", "num_nodes": 600, "num_classes": 4, "num_features": 8}
KEYS: dict[str, Any] = {
    "dataset": GRAPH,
    "model": {"name": "gcn", "hidden_channels": 8},
    "sampler": {"fan_outs": [5, 3]},
    "trainer": {"batch_size": 32, "epochs": 2, "gpus": 0},
    "evaluation": {"name": "sampled", "fan_outs": [4, 4]},
    "distributed": {"timeout": 60.0},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("partitioned")


def config_of(folder: Path, name: str, **keys: dict[str, Any]) -> Config:
    merged = {section: {**KEYS.get(section, {}), **keys.get(section, {})} for section in KEYS}
    merged["dataset"]["store_dir"] = str(folder / "stores")
    return from_dict(merged | {"run": {"dir": str(folder / name)}})


@pytest.fixture(scope="module")
def parts(folder: Path) -> Path:
    """The graph in four parts."""
    store = prepare_store(config_of(folder, "none").dataset).store
    part_of = np.random.default_rng(0).integers(0, 4, store.num_nodes).astype(np.uint8)
    write_parts(folder / "parts", store, part_of, 4, "random")
    return folder / "parts"


@pytest.fixture
def on_machines(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has the ranks of the next runs believe that they are on several machines."""

    def believe(*machines: int) -> None:
        plan_of = LaunchPlan.of.__func__  # type: ignore[attr-defined]

        def plan(config: Config, *rest: Any) -> LaunchPlan:
            found: LaunchPlan = plan_of(LaunchPlan, config, *rest)
            return replace(found, machines=machines)

        monkeypatch.setattr(LaunchPlan, "of", plan)

    return believe


def trained(config: Config) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    summary = train(config)
    state = load_checkpoint(Path(config.run.dir or "") / "checkpoints" / "last.pt")
    return summary, state["model"]


def in_parts(parts: Path, ranks: int = 1) -> dict[str, Any]:
    """The `distributed` keys of a run on the parts."""
    return {"num_processes": ranks, "graph": "partitioned", "parts": str(parts)}


def test_a_run_records_of_parts_what_it_records_of_the_whole_graph(
    folder: Path, parts: Path
) -> None:
    store = prepare_store(config_of(folder, "none").dataset).store
    graph = PartitionedGraph.open(parts, range(0))
    assert record_of(graph).digest == record_of(store).digest
    of_rows: dict[str, Any] = {"statistics": {}}  # which parts have on their own machines alone
    assert record_of(graph).learnt == (record_of(store).learnt or {}) | of_rows
    assert ModelSignature.of(graph) == ModelSignature.of(store)
    ours, theirs = (NodeClassification(given) for given in (graph, store))
    assert ours.warnings() == theirs.warnings()
    with pytest.raises(IndexError):
        ours.targets[0]


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        ({"seed": 1}, "another graph"),
        ({"add_self_loops": True}, "dataset.add_self_loops=false"),
        ({"feature_dtype": "float16"}, "dataset.feature_dtype=float32"),
    ],
    ids=str,
)
def test_parts_of_another_graph_are_refused(
    folder: Path, parts: Path, dataset: dict[str, Any], told: str
) -> None:
    config = config_of(folder, "refused", dataset=dataset, distributed=in_parts(parts))
    with pytest.raises(UserError, match=told):
        train(config)
    assert not (folder / "refused").exists()


def _write_files(folder: Path) -> None:
    """Tables of a graph, and a schema that names them."""
    folder.mkdir()
    rows = range(60)
    nodes = "\n".join(f"{i},{i % 3},{i % 7}" for i in rows)
    (folder / "nodes.csv").write_text(f"id,label,a\n{nodes}\n")
    edges = "\n".join(f"{i},{(i + step) % 60},0.5" for i in rows for step in (1, 5, 9))
    (folder / "edges.csv").write_text(f"source,target,amount\n{edges}\n")
    (folder / "graph.yaml").write_text(
        "nodes: {user: {files: nodes.csv, label: label}}\n"
        "edges: {user/pays/user: {files: edges.csv}}\n"
    )


def test_parts_of_files_train_wherever_the_files_lie(tmp_path: Path) -> None:
    def config(files: Path, name: str, **distributed: Any) -> Config:
        schema, stores = str(files / "graph.yaml"), str(tmp_path / "stores")
        sections = {
            "dataset": {"name": "files", "store_dir": stores, "schema": schema},
            "model": {"name": "rgcn", "hidden_channels": 8},
            "run": {"dir": str(tmp_path / name)},
        }
        return from_dict(KEYS | sections | {"distributed": distributed})

    _write_files(tmp_path / "here")
    whole = trained(config(tmp_path / "here", "whole"))
    store = prepare_store(config(tmp_path / "here", "none").dataset).store
    part_of = np.arange(store.num_nodes, dtype=np.uint8) % 2
    write_parts(tmp_path / "parts", store, part_of, 2, "random")
    (tmp_path / "here").rename(tmp_path / "there")
    for place in ("there", "nowhere"):  # or on none of the machines
        files = config(tmp_path / place, f"from {place}", **in_parts(tmp_path / "parts"))
        found = trained(files)
        assert found[0]["train_loss"] == whole[0]["train_loss"]
        assert all(torch.equal(found[1][key], weight) for key, weight in whole[1].items())
    other = config(tmp_path / "there", "other", **in_parts(tmp_path / "parts"))
    dataset = other.dataset.model_copy(update={"split_seed": 1})
    with pytest.raises(UserError, match="another graph"):
        train(other.model_copy(update={"dataset": dataset}))


def test_parts_are_shared_out_evenly_or_refused(
    folder: Path, parts: Path, on_machines: Any
) -> None:
    on_machines(0, 1, 2)
    config = config_of(folder, "uneven", distributed=in_parts(parts, 3))
    with pytest.raises(UserError, match=r"4 parts .* 3 machines"):
        train(config)


def test_a_part_that_is_not_on_its_machine_is_named(
    folder: Path, parts: Path, on_machines: Any
) -> None:
    shutil.copytree(parts, folder / "incomplete")
    shutil.rmtree(folder / "incomplete" / "part3")
    on_machines(0, 1)
    config = config_of(folder, "lacking", distributed=in_parts(folder / "incomplete", 2))
    with pytest.raises(UserError, match="part3"):
        train(config)


class Rendezvous:
    """Of two machines, of which another one has told what it has opened."""

    processes = (SimpleNamespace(host="here"), SimpleNamespace(host="there"))

    def __init__(self, other: dict[str, Any]) -> None:
        self._other = other

    def gather(self, _: str, own: dict[str, Any]) -> list[dict[str, Any]]:
        return [own, own | self._other]


def test_machines_with_other_parts_of_the_same_graph_are_refused(folder: Path, parts: Path) -> None:
    opened = open_graph(config_of(folder, "none", distributed=in_parts(parts)))
    same: Any = Rendezvous({})
    compare_stores(opened, same)
    other: Any = Rendezvous({"partition": "another digest"})
    with pytest.raises(UserError, match="there"):
        compare_stores(opened, other)


def test_an_object_and_parts_are_two_graphs(parts: Path) -> None:
    keys = {key: value for key, value in KEYS.items() if key != "dataset"}
    config = from_dict(keys | {"distributed": in_parts(parts)})
    with pytest.raises(UserError, match="two graphs"):
        train(config, data=random_graph())
