"""What is recorded asks the device for no number and sends it none: the host would wait for either.

Tried on tensors without memory (`meta`), where to ask is an error, with kernels that do nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gnntrain.compute import cuda, launching
from gnntrain.compute.features import LazyFeatures
from gnntrain.config import TrainerConfig
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.loader import SampledLoader, SeedPlan
from gnntrain.models import GAT, GCN, GIN, GNN, SAGE, GATv2
from gnntrain.tasks import NodeClassification
from gnntrain.training.totals import EpochTotals
from gnntrain.training.trainer import Trainer
from tests.compute.devices import INTERPRETS
from tests.compute.registrations import opened
from tests.graphs import random_graph, stored
from tests.training.test_trainer import Scripted

pytest.importorskip("triton", reason="triton is not installed")

from gnntrain.loading.features import InPlaceFeatures
from gnntrain.loading.graph import GraphTensors
from gnntrain.loading.padded import PaddedBatches, SeedBatch
from gnntrain.sampling import gpu, triton_kernels

META = torch.device("meta")


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


def made(store: Any, kind: Callable[..., GNN], **options: Any) -> tuple[Trainer, Any]:
    """A trainer and its loader, all of whose tensors have no memory."""
    model = kind(store.num_features, store.num_outputs, hidden_channels=8, **options).to(META)
    needs = model.needs
    graph = GraphTensors.of(store, needs)
    name, edges = store.target, graph.only_edges
    fused = replace(store.fused, indptr=edges.indptr, indices=edges.indices)
    # 70 is drawn by another kernel than 2.
    fan_outs = dict.fromkeys(store.edges, (70, 2))
    sampler = gpu.GPUSampler(fused, fan_outs, edge_ids=needs.weight)
    graph = GraphTensors.of(store, needs, META)
    edges = graph.only_edges
    sampler._device, sampler._indptr, sampler._indices = META, edges.indptr, edges.indices
    rows = torch.empty(store.num_nodes, store.num_features, device=META)
    slots = torch.empty(store.num_nodes, dtype=torch.int32, device=META)
    features = {name: InPlaceFeatures(LazyFeatures(rows, slots=slots), META)}
    plan = SeedPlan(store.split("train"), 8)
    loader = SampledLoader(graph, features, sampler, plan, needs=needs, threads=0)
    context = DistributedContext(device=META)
    config = TrainerConfig(clip_norm=1.0)
    told: Any = {"task": NodeClassification(store), "config": config, "context": context}
    return Trainer(model, loader, Scripted(), **told), loader


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
    trainer, loader = made(store, kind, **options)
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
    monkeypatch.setattr(trainer.update.optimizer, "step", lambda: None)
    keys = torch.empty(4, dtype=torch.int32, device=META)
    step = SeedBatch(torch.empty(8, dtype=torch.int64, device=META), keys, 8, 8)
    totals = EpochTotals.start(META)
    with Mixed() as mixed:
        trainer.update(PaddedBatches(loader).make(step), totals)
    assert totals.num_skipped == 0
    assert mixed.found == []
    assert mixed.number > 100
