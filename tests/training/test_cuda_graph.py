"""A recorded step trains as one that is not. Where there is no GPU, to record is to run again.

It asks the device for no number and sends it none, since the host would wait for either: tried on
tensors without memory (`meta`), where to ask is an error, with kernels that do nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gnntrain.compute import cuda, launching
from gnntrain.compute.features import LazyFeatures
from gnntrain.config import TrainerConfig
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import RunError
from gnntrain.loading.graph import GraphTensors
from gnntrain.loading.loader import SampledLoader, SeedPlan
from gnntrain.models import GAT, GCN, GIN, GNN, SAGE, GATv2
from gnntrain.tasks import NodeClassification
from gnntrain.training.totals import EpochTotals
from gnntrain.training.trainer import Trainer
from tests.compute.devices import INTERPRETS, NEEDS_GPU, on_each_device
from tests.compute.registrations import opened
from tests.graphs import random_graph, stored
from tests.training.test_trainer import Recorder, Scripted

pytest.importorskip("triton", reason="triton is not installed")

from gnntrain.loading.features import InPlaceFeatures, rows_of
from gnntrain.loading.padded import PaddedBatches, SeedBatch
from gnntrain.sampling import gpu, triton_kernels

META = torch.device("meta")


@pytest.fixture
def store(tmp_path: Path) -> StoredGraph:
    return stored(
        tmp_path / "store", random_graph()
    )  # 30 training nodes: 3 steps of 8 and one of 6


def run_again(body: Callable[[], None]) -> Callable[[], None]:
    """In the place of a CUDA graph."""
    return body


def trainer(
    store: StoredGraph,
    device: str,
    kind: Callable[..., GNN] = SAGE,
    *,
    fan_outs: tuple[int, int] = (3, 2),
    options: dict[str, Any] | None = None,
    **keys: Any,
) -> tuple[Trainer, Recorder]:
    torch.manual_seed(0)
    place, listener = torch.device(device), Recorder()
    model = kind(store.num_features, store.num_outputs, hidden_channels=8, **options or {})
    model, needs, name = model.to(place), model.needs, store.target
    graph = GraphTensors.of(store, needs, torch.device("cpu") if place == META else place)
    edges = graph.only_edges
    fused = replace(store.fused, indptr=edges.indptr, indices=edges.indices)
    by_type = dict.fromkeys(store.edges, fan_outs)
    sampler = gpu.GPUSampler(fused, by_type, edge_ids=needs.weight)
    rows, slots = rows_of(store.only_nodes).to(place), None
    if place == META:
        graph = GraphTensors.of(store, needs, META)
        edges = graph.only_edges
        sampler._device, sampler._indptr, sampler._indices = META, edges.indptr, edges.indices
        slots = torch.empty(store.num_nodes, dtype=torch.int32, device=META)
    features = {name: InPlaceFeatures(LazyFeatures(rows, slots=slots), place)}
    plan = SeedPlan(store.split("train"), 8)
    loader = SampledLoader(graph, features, sampler, plan, needs=needs, threads=0)
    config = TrainerConfig(**{"lr": 0.05, "epochs": 3, **keys})
    made = Trainer(
        model,
        loader,
        Scripted(),
        task=NodeClassification(store),
        config=config,
        context=DistributedContext(device=place),
        listeners=(listener,),
        record=run_again if device == "cpu" else None,
    )
    return made, listener


@on_each_device
@pytest.mark.parametrize(
    "keys",
    [
        {"scheduler": "cosine", "clip_norm": 0.5, "max_steps": 6},
        {"optimizer": "sgd", "warmup_epochs": 1},
        {"precision": "bf16", "optimizer": "adamw"},
    ],
    ids=str,
)
def test_losses_are_those_of_steps_that_are_not_recorded(
    store: StoredGraph, device: str, keys: dict[str, Any]
) -> None:
    eager, eager_told = trainer(store, device, **keys)
    recorded, told = trainer(store, device, cuda_graph=True, **keys)
    eager.fit()
    recorded.fit()
    close = 2e-2 if keys.get("precision") == "bf16" else 1e-4
    for ours, theirs in zip(told.epochs, eager_told.epochs, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=close)
        assert ours.lr == pytest.approx(theirs.lr)
        assert ours.step == theirs.step
        edges = ours.edges_per_s * ours.seconds, theirs.edges_per_s * theirs.seconds
        assert edges[0] == pytest.approx(edges[1])
    for left, right in zip(recorded.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(left, right, atol=close, rtol=close)


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=NEEDS_GPU)])
@pytest.mark.parametrize("kind", [GCN, GIN, GAT, GATv2])
def test_every_model_can_be_recorded(
    store: StoredGraph, device: str, kind: Callable[..., GNN]
) -> None:
    eager, eager_told = trainer(store, device, kind)
    recorded, told = trainer(store, device, kind, cuda_graph=True)
    eager.fit()
    recorded.fit()
    losses = [[record.train_loss for record in one.epochs] for one in (told, eager_told)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@on_each_device
def test_a_loss_that_is_not_finite_is_found_at_its_step(store: StoredGraph, device: str) -> None:
    recorded, _ = trainer(store, device, cuda_graph=True, lr=1e30, log_every=1, epochs=5)
    with pytest.raises(RunError, match=r"step \d of 4 \(seed nodes"):
        recorded.fit()


@on_each_device
def test_who_goes_on_with_the_rest_of_an_epoch_records_whole_steps(
    store: StoredGraph, device: str
) -> None:
    made, _ = trainer(store, device, cuda_graph=True)
    made.loader.load_state_dict({"epoch": 0, "step": 3})  # the last one, of 6 seeds
    recorded = made._recorded
    assert recorded is not None
    totals = EpochTotals.start(torch.device(device))
    sizes = []
    for epoch in range(3):
        for step in recorded.batches:
            recorded(step, totals)
            assert recorded._given is not None
            sizes.append(len(recorded._given.seeds))
        made.loader.set_epoch(epoch + 1)
    assert sizes == [6] + [8] * 8
    assert recorded._replay is not None
    assert int(totals.step) == len(sizes)


class NoKernel:
    """In the place of every kernel, and of the modules that hold them."""

    def __getattr__(self, name: str) -> NoKernel:
        return self

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *_, **__: None


class Mixed(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Notes the operators that take or give tensors of both the host and the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        own = opened(func, cuda)
        if own is not None:
            with self:
                return own(*args)
        out = func(*args, **(kwargs or {}))
        values = [v for v in tree_leaves((args, kwargs, out)) if isinstance(v, Tensor)]
        self.number += 1
        if any(value.device != META for value in values):
            self.found.append(f"{func}: {[(v.device.type, list(v.shape)) for v in values]}")
        return out


@pytest.mark.skipif(not INTERPRETS, reason="kernels are compiled: the interpreter is not used")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SAGE, {"dropout": 0.5, "norm": "layer", "residual": True, "jk": "cat"}),
        (SAGE, {"aggregator": "max", "normalize": True, "jk": "max"}),
        (GCN, {"dropout": 0.5}),
        (GIN, {"input_dropout": 0.1}),
        (GAT, {"attention_dropout": 0.5}),
        (GATv2, {}),
    ],
    ids=str,
)
def test_a_step_neither_waits_for_the_device_nor_sends_it_anything(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Callable[..., GNN],
    options: dict[str, Any],
) -> None:
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    store = stored(tmp_path / "store", random_graph(edge_weight=weights))
    made, _ = trainer(
        store, "meta", kind, fan_outs=(70, 2), options=options, clip_norm=1.0
    )  # 70 is drawn by another kernel than 2
    monkeypatch.setattr(launching, "_kernels", lambda _: NoKernel())
    for name, value in vars(triton_kernels).items():
        if hasattr(value, "fn"):
            monkeypatch.setattr(triton_kernels, name, NoKernel())
    # Autocast does not know the device.
    for module in ("aggregate_linear", "base"):
        monkeypatch.setattr(
            f"gnntrain.models.{module}.autocast_type", lambda _, otherwise: otherwise
        )
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    # The optimiser is not ours.
    monkeypatch.setattr(made.update.optimizer, "step", lambda: None)
    keys = torch.empty(4, dtype=torch.int32, device=META)
    step = SeedBatch(torch.empty(8, dtype=torch.int64, device=META), keys, 8, 8)
    totals = EpochTotals.start(META)
    with Mixed() as mixed:
        made.update(PaddedBatches(cast(SampledLoader, made.loader)).make(step), totals)
    assert totals.num_skipped == 0
    assert mixed.found == []
    assert mixed.number > 100
