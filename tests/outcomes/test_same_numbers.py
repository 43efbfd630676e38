"""The same numbers wherever the graph lies: whole, in ranges of rows, in parts, at servers;
also where a run goes on from a checkpoint there. And what is refused of parts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.app import compose_config
from gnntrain.config import Config
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.partitioning.build import partition, write_parts
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.errors import UserError
from gnntrain.run import compare_stores, evaluate, resume, train
from gnntrain.run_store import ModelSignature, open_graph, prepare_store, rank_graph, record_of
from gnntrain.tasks import NodeClassification
from gnntrain.training.checkpoint import load_checkpoint
from tests.distributed.exchanges import exchanges
from tests.graphs import random_graph
from tests.summaries import epochs_of

KEYS = ["trainer.epochs=2", "trainer.gpus=0", "trainer.batch_size=32", "model.hidden_channels=8"]
KEYS += ["sampler.fan_outs=[4,3]", "distributed.threads=1", "distributed.timeout=60"]
KEYS += ["logger=[jsonl]"]
ONE_TYPE = ["dataset=synthetic", "dataset.num_nodes=600", "dataset.num_features=8"]
TYPED = ["dataset=synthetic_mag", "dataset.scale=0.0005", "dataset.num_features=8"]
TYPED += ["dataset.num_classes=4"]
RAW = "model.project_inputs=false"
BY_TYPE = "sampler.fan_outs={default:[4,3],author/writes/paper:[2,2]}"
SAMPLED = ["evaluation=sampled", "evaluation.fan_outs=[3,3]"]

MODELS = {
    "gcn": [*ONE_TYPE, "model=gcn"],
    "sage": [*ONE_TYPE, "model=sage", "trainer.class_weights=balanced"],
    "gat": [*ONE_TYPE, "model=gat"],
    "gcn, sampled": [*ONE_TYPE, "model=gcn", *SAMPLED, "evaluation.max_steps=1"],
    "rgcn": [*TYPED, "model=rgcn", RAW],
    "rgcn, fan-outs by type": [*TYPED, "model=rgcn", BY_TYPE],
    "sum": [*TYPED, "model=hetero_sage", "model.aggregator=sum"],
    "hgt": [*TYPED, "model=hgt", "model.heads=2", "sampler.fan_out_scope=node"],
    "rgat, sampled": [*TYPED, "model=rgat", "model.heads=2", *SAMPLED],
}


@dataclass(frozen=True)
class Place:
    """Where a graph lies.

    Attributes:
        trainers: The ranks that train.
        keys: Of the configuration.
        machines: The machine of each rank; empty: they are on one.
    """

    trainers: int
    keys: tuple[str, ...]
    machines: tuple[int, ...] = ()


PARTS = "distributed.graph=partitioned"
PLACES = {
    "parts": Place(1, (PARTS,)),
    "parts, a rank a machine": Place(2, (PARTS,), (0, 1)),
    "parts, ranks share a machine": Place(3, (PARTS,), (0, 0, 1)),
    "rows shared out": Place(3, ("distributed.graph=sharded",), (0, 1, 1)),
    "rows shared out, no cache": Place(
        2, ("distributed.graph=sharded", "features.cache_bytes=0"), (0, 1)
    ),
    "servers": Place(2, ("distributed.servers=2",)),
    "servers on machines": Place(
        2,
        ("distributed.servers=2", "distributed.graph=sharded", "evaluation.ranks=0"),
        (0, 1, 1, 2),
    ),
    "servers of parts": Place(1, (PARTS, "distributed.servers=2")),
}
CASES = {  # each place with a homogeneous and a typed graph, and each model
    "parts": ["gcn", "rgcn, fan-outs by type"],
    "parts, a rank a machine": ["sage", "sum"],
    "parts, ranks share a machine": ["gcn", "rgat, sampled"],
    "rows shared out": ["gat", "hgt"],
    "rows shared out, no cache": ["gcn, sampled", "rgcn"],
    "servers": ["gat", "hgt"],
    "servers on machines": ["sage", "rgcn"],
    "servers of parts": ["gcn, sampled", "sum"],
}
USUAL = [
    ("rgcn, fan-outs by type", "parts"),
    ("sum", "parts, a rank a machine"),
    ("gat", "rows shared out"),
    ("sage", "servers on machines"),
]
SLOW = [
    pytest.param(model, place, marks=pytest.mark.slow)
    for place, models in CASES.items()
    for model in models
    if (model, place) not in USUAL
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("same_numbers")


@pytest.fixture(scope="module")
def configured(folder: Path) -> Callable[..., Config]:
    """Makes a configuration; its runs are in `folder`."""

    @cache
    def parts(dataset: tuple[str, ...]) -> Path:
        graph = prepare_store(configure("none", *dataset).dataset).store
        return partition(graph, 4, folder / f"{graph.dataset} in parts", "streaming").path

    def configure(name: str, *keys: str) -> Config:
        if PARTS in keys:
            dataset = tuple(key for key in keys if key.startswith("dataset"))
            keys = (*keys, f"distributed.parts={parts(dataset)}")
        places = f"run.dir={folder / name}", f"dataset.store_dir={folder / 'stores'}"
        return compose_config([*KEYS, *keys, *places])

    return configure


@pytest.fixture(scope="module")
def reference(folder: Path, configured: Callable[..., Config]) -> Callable[[str, int], Path]:
    """Trains a model on so many ranks of one machine that has the whole graph; the run."""

    @cache
    def trained(model: str, ranks: int) -> Path:
        name = f"{model} on {ranks}".replace(",", "")
        train(configured(name, *MODELS[model], f"distributed.num_processes={ranks}"))
        return folder / name

    return trained


def on_machines(monkeypatch: pytest.MonkeyPatch, *machines: int) -> None:
    """Has the ranks of the next runs believe that they are on these machines."""
    plan_of = LaunchPlan.of
    monkeypatch.setattr(
        LaunchPlan, "of", lambda *arguments: replace(plan_of(*arguments), machines=machines)
    )


def numbers_of(run: Path) -> list[dict[str, Any]]:
    compared = ("epoch", "train_loss", "train/", "val/", "test/")
    return [{k: v for k, v in one.items() if k.startswith(compared)} for one in epochs_of(run)]


@pytest.mark.parametrize(("model", "place"), [*USUAL, *SLOW])
def test_numbers_and_weights_are_those_of_a_run_that_has_the_whole_graph(
    folder: Path,
    configured: Callable[..., Config],
    reference: Callable[[str, int], Path],
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    place: str,
) -> None:
    there = PLACES[place]
    whole = reference(model, there.trainers)
    on_machines(monkeypatch, *there.machines)
    servers = 2 * any("servers" in key for key in there.keys)
    ranks = f"distributed.num_processes={there.trainers + servers}"
    name, keys = f"{model} in {place}".replace(",", ""), (*MODELS[model], *there.keys, ranks)
    train(configured(name, *keys, "trainer.epochs=1"))
    resume(folder / name, configured(name, *keys))
    found, wanted = numbers_of(folder / name), numbers_of(whole)
    assert len(found) == len(wanted) == 2
    for epoch, expected in zip(found, wanted, strict=True):
        # Sums of several servers are added in another order.
        assert epoch == (pytest.approx(expected, rel=1e-5) if servers else expected)
    if "distributed.graph=sharded" in there.keys and not servers:
        rates = [line["cache_hit_rate"] for line in epochs_of(folder / name)]
        assert all(0 < rate < 1 for rate in rates) or rates == [0.0, 0.0]
        assert (rates == [0.0, 0.0]) == ("features.cache_bytes=0" in there.keys)
    if servers:
        times = epochs_of(folder / name)[-1]["time"]
        assert min(times[f"background/server_{call}"] for call in ("draw", "rows")) > 0
    states = [load_checkpoint(run / "checkpoints" / "last.pt") for run in (folder / name, whole)]
    weights = [state["model"] for state in states]
    assert all(torch.equal(weights[0][key], weight) for key, weight in weights[1].items())


@pytest.mark.parametrize("model", ["gcn", "rgcn"])
def test_a_run_on_parts_goes_on_and_is_evaluated_with_the_whole_graph(
    folder: Path,
    configured: Callable[..., Config],
    reference: Callable[[str, int], Path],
    model: str,
) -> None:
    whole, name = reference(model, 1), f"{model} begun on parts"
    train(configured(name, *MODELS[model], PARTS, "trainer.epochs=1"))
    resume(folder / name, configured(name, *MODELS[model], "distributed.graph=replicated"))
    assert numbers_of(folder / name) == numbers_of(whole)
    assert evaluate(folder / name)["metrics"] == evaluate(whole)["metrics"]


# Parts


@pytest.fixture
def in_parts(configured: Callable[..., Config]) -> Config:
    """Of a graph in four parts."""
    return configured("refused", *MODELS["gcn"], PARTS)


def test_a_run_records_of_parts_what_it_records_of_the_whole_graph(in_parts: Config) -> None:
    store = prepare_store(in_parts.dataset).store
    graph = PartitionedGraph.open(Path(in_parts.distributed.parts or ""), range(0))
    assert record_of(graph).digest == record_of(store).digest
    of_rows: dict[str, Any] = {"statistics": {}}  # which parts have on their own machines alone
    assert record_of(graph).learnt == (record_of(store).learnt or {}) | of_rows
    assert ModelSignature.of(graph) == ModelSignature.of(store)
    ours, theirs = (NodeClassification(given) for given in (graph, store))
    assert ours.warnings() == theirs.warnings()
    with pytest.raises(IndexError):
        ours.targets[0]


def test_parts_of_files_train_wherever_the_files_lie(
    folder: Path, configured: Callable[..., Config]
) -> None:
    here, rows = folder / "here", range(60)
    here.mkdir()
    nodes = "\n".join(f"{i},{i % 3},{i % 7}" for i in rows)
    (here / "nodes.csv").write_text(f"id,label,a\n{nodes}\n")
    edges = "\n".join(f"{i},{(i + step) % 60},0.5" for i in rows for step in (1, 5, 9))
    (here / "edges.csv").write_text(f"source,target,amount\n{edges}\n")
    (here / "graph.yaml").write_text(
        "nodes: {user: {files: nodes.csv, label: label}}\n"
        "edges: {user/pays/user: {files: edges.csv}}\n"
    )
    keys = ["dataset=files", f"dataset.schema={here / 'graph.yaml'}", "model=rgcn"]
    config = configured("from here", *keys)
    whole = train(config)
    store = prepare_store(config.dataset).store
    part_of = np.arange(store.num_nodes, dtype=np.uint8) % 2
    write_parts(folder / "parts of files", store, part_of, 2, "random")
    distributed = {"graph": "partitioned", "parts": str(folder / "parts of files")}
    here.rename(folder / "there")
    weights = load_checkpoint(folder / "from here" / "checkpoints" / "last.pt")["model"]
    for place in ("nowhere", "there"):  # on none of the machines, or elsewhere
        dataset, run = {"schema": str(folder / place / "graph.yaml")}, folder / f"from {place}"
        moved = config.changed(dataset=dataset, distributed=distributed, run={"dir": str(run)})
        found = train(moved)
        assert found["train_loss"] == whole["train_loss"]
        state = load_checkpoint(run / "checkpoints" / "last.pt")
        assert all(torch.equal(state["model"][key], weight) for key, weight in weights.items())
    with pytest.raises(UserError, match="another graph"):
        train(moved.changed(dataset={"split_seed": 1}, run={"dir": str(folder / "other")}))


def test_parts_of_another_graph_or_that_cannot_be_shared_out_or_are_not_there_are_refused(
    folder: Path, in_parts: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[tuple[dict[str, Any], str]] = [
        ({"seed": 1}, "another graph"),
        ({"add_self_loops": True}, "dataset.add_self_loops=false"),
        ({"feature_dtype": "float16"}, "dataset.feature_dtype=float32"),
    ]
    for dataset, told in others:
        with pytest.raises(UserError, match=told):
            train(in_parts.changed(dataset=dataset))
    on_machines(monkeypatch, 0, 1, 2)
    with pytest.raises(UserError, match=r"4 parts .* 3 machines"):
        train(in_parts.changed(distributed={"num_processes": 3}))
    assert not (folder / "refused").exists()
    shutil.copytree(in_parts.distributed.parts or "", folder / "incomplete")
    shutil.rmtree(folder / "incomplete" / "part3")
    incomplete = {"num_processes": 2, "parts": str(folder / "incomplete")}
    monkeypatch.undo()
    on_machines(monkeypatch, 0, 1)
    with pytest.raises(UserError, match="part3"):
        train(in_parts.changed(distributed=incomplete, run={"dir": str(folder / "lacking")}))
    with pytest.raises(UserError, match="two graphs") as caught:
        train(Config(distributed=in_parts.distributed), data=random_graph())
    assert "distributed.parts" in str(caught.value)


def test_machines_with_other_parts_of_the_same_graph_are_refused(in_parts: Config) -> None:
    graph, hosts = open_graph(in_parts)[0], [SimpleNamespace(host=at) for at in ("here", "there")]
    for other, is_refused in (({}, False), ({"partition": "another digest"}, True)):
        rendezvous: Any = SimpleNamespace(
            processes=hosts, gather=lambda _, own, other=other: [own, own | other]
        )
        with pytest.raises(UserError, match="there") if is_refused else nullcontext():
            compare_stores(graph, rendezvous)


def test_ranks_that_train_beside_servers_open_no_part(in_parts: Config) -> None:
    held = []
    with exchanges([0, 1, 2], [[1], [2]]) as ranks:
        for exchange in ranks:
            path = Path(in_parts.distributed.parts or "")
            graph = rank_graph(in_parts, path, DistributedContext(), exchange)
            assert isinstance(graph, PartitionedGraph)
            held.append([*graph.parts])
    assert held == [[], [0, 1], [2, 3]]
