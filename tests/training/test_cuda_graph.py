"""A recorded step trains as one that is not. Where there is no GPU, to record is to run again;
on a GPU, CUDA refuses to record a step that waits for the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import RunError, UserError
from gnntrain.loading.loader import SeedPlan
from gnntrain.models import GAT, GCN, GIN, GNN, MLP, SAGE, GATv2
from gnntrain.report.tables import PHASES
from gnntrain.training import cuda_graph
from gnntrain.training.totals import EpochTotals
from gnntrain.training.trainer import Trainer
from tests.compute.devices import NEEDS_GPU, on_each_device
from tests.graphs import random_graph, stored
from tests.loading.graphs import gpu_loader
from tests.training.test_trainer import Recorder, make_trainer

pytest.importorskip("triton", reason="triton is not installed")

on_a_gpu = pytest.mark.parametrize("device", [pytest.param("cuda:0", marks=NEEDS_GPU)])


@pytest.fixture
def store(tmp_path: Path) -> StoredGraph:
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    return stored(tmp_path / "store", random_graph(edge_weight=weights))


def trainer(
    store: StoredGraph,
    device: str,
    kind: type[GNN] = SAGE,
    *,
    fan_outs: Sequence[int] = (3, 2),
    options: dict[str, Any] | None = None,
    is_recorded: bool = False,
    **keys: Any,
) -> tuple[Trainer, Recorder]:
    """Of 30 training nodes: 3 steps of 8 and one of 6."""
    torch.manual_seed(0)
    place, listener = torch.device(device), Recorder()
    fan_outs = fan_outs if kind.uses_graph else ()
    model = kind(store.num_features, store.num_outputs, hidden_channels=8, **options or {})
    plan = SeedPlan(store.split("train"), 8)
    loader = gpu_loader(store, plan, device, fan_outs, needs=model.needs, threads=0)
    loader.records_steps = is_recorded
    made = make_trainer(
        store,
        DistributedContext(device=place),
        model=model.to(place),
        loader=loader,
        listeners=(listener,),
        **{"epochs": 2, **keys},
    )
    return made, listener


@on_each_device
@pytest.mark.parametrize(
    "keys",
    [
        {"scheduler": "cosine", "clip_norm": 0.5, "max_steps": 6},
        {"kind": GCN, "optimizer": "sgd", "warmup_epochs": 1},
        {"precision": "bf16", "optimizer": "adamw"},
    ],
    ids=str,
)
def test_losses_are_those_of_steps_that_are_not_recorded(
    store: StoredGraph, device: str, keys: dict[str, Any]
) -> None:
    eager, eager_told = trainer(store, device, **keys)
    recorded, told = trainer(store, device, is_recorded=True, **keys)
    eager.fit()
    recorded.fit()
    close = 2e-2 if keys.get("precision") == "bf16" else 1e-4
    for ours, theirs in zip(told.epochs, eager_told.epochs, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=close)
        assert ours.lr == pytest.approx(theirs.lr)
        assert ours.step == theirs.step
        assert ours.time.keys() <= PHASES.keys()
        edges = ours.edges_per_s * ours.seconds, theirs.edges_per_s * theirs.seconds
        assert edges[0] == pytest.approx(edges[1])
    assert "replay" in told.epochs[-1].time
    for left, right in zip(recorded.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(left, right, atol=close, rtol=close)


@on_each_device
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SAGE, {"norm": "layer", "residual": True, "jk": "cat"}),
        (SAGE, {"aggregator": "max", "normalize": True, "jk": "max"}),
        (GCN, {}),
        (GIN, {}),
        (GAT, {}),
        (GATv2, {}),
        (MLP, {}),
    ],
    ids=str,
)
def test_every_model_can_be_recorded(
    store: StoredGraph, device: str, kind: type[GNN], options: dict[str, Any]
) -> None:
    eager, eager_told = trainer(store, device, kind, options=options)
    recorded, told = trainer(store, device, kind, options=options, is_recorded=True)
    eager.fit()
    recorded.fit()
    losses = [[record.train_loss for record in one.epochs] for one in (told, eager_told)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@on_a_gpu
@pytest.mark.parametrize(
    ("kind", "option"), [(SAGE, "dropout"), (GIN, "input_dropout"), (GAT, "attention_dropout")]
)
def test_dropout_and_draws_of_another_kernel_can_be_recorded(
    store: StoredGraph, device: str, kind: type[GNN], option: str
) -> None:
    options = {option: 0.5}
    recorded, told = trainer(
        store, device, kind, fan_outs=(70, 2), options=options, is_recorded=True
    )
    recorded.fit()
    losses = {record.train_loss for record in told.epochs}
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))


@on_each_device
def test_a_loss_that_is_not_finite_is_found_at_its_step(store: StoredGraph, device: str) -> None:
    recorded, _ = trainer(store, device, is_recorded=True, lr=1e30, log_every=1, epochs=5)
    with pytest.raises(RunError, match=r"step \d of 4 \(seed nodes"):
        recorded.fit()


def test_a_step_that_cannot_be_recorded_is_told_with_the_key(
    store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "CUDA error: operation not permitted when stream is capturing\nmore"
    monkeypatch.setattr(cuda_graph, "recorded", Mock(side_effect=RuntimeError(said)))
    recorded, _ = trainer(store, "cpu", is_recorded=True)
    with pytest.raises(UserError, match="is capturing") as told:  # another try would end alike
        recorded.fit()
    assert "trainer.cuda_graph=false" in str(told.value)


@on_each_device
def test_a_run_that_goes_on_with_the_rest_of_an_epoch_trains_as_one_that_is_not_recorded(
    store: StoredGraph, device: str
) -> None:
    losses = []
    for is_recorded in (False, True):
        made, told = trainer(store, device, is_recorded=is_recorded)
        made.step, made.totals = 3, EpochTotals.start(torch.device(device))
        made.loader.load_state_dict({"epoch": 1, "step": 3})  # the last one, of 6 seeds
        made.fit()
        losses.append([record.train_loss for record in told.epochs])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
