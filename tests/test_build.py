"""The parts that are built from a configuration work together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import GraphSAGE

from gnntrain.config import from_dict
from gnntrain.data.graph import GraphSchema
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.models import PlainModel
from gnntrain.training.records import FitResult
from tests.compute.devices import on_each_device
from tests.graphs import random_graph, stored
from tests.trainers import trainer_of


@pytest.fixture
def store(tmp_path: Path) -> StoredGraph:
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    return stored(tmp_path / "store", random_graph(edge_weight=weights))


def plain_model(_: Any, schema: GraphSchema, out_channels: int) -> PlainModel:
    module = GraphSAGE(schema.num_features[schema.target], 8, 2, out_channels)
    return PlainModel(module, "own", out_channels)


def trained(store: StoredGraph, device: str, model: str, backend: str, scratch: Path) -> FitResult:
    config = from_dict(
        {
            "model": {"name": model, "hidden_channels": 8, "num_layers": 2, "dropout": 0.0},
            "sampler": {"fan_outs": [3, 2], "backend": backend},
            "evaluation": {"name": "sampled"},
            "trainer": {"batch_size": 7, "epochs": 2},
        }
    )
    context = DistributedContext(device=torch.device(device))
    return trainer_of(config, store, scratch, context=context).fit()


@on_each_device
@pytest.mark.parametrize("model", ["gcn", "gat", "plain"])
def test_training_is_the_same_whichever_backend_draws(
    store: StoredGraph, device: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    if model == "plain":
        monkeypatch.setattr("gnntrain.models.build_model", plain_model)
        model = "sage"
    results = [trained(store, device, model, b, tmp_path) for b in ("numba", "triton")]
    for ours, theirs in zip(results[0].records, results[1].records, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-4)
        assert ours.metrics == theirs.metrics
