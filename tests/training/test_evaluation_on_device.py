"""What a GPU computes for all nodes is what the host computes, wherever the layers lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.store import StoredGraph
from gnntrain.distributed import shared
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.features import (
    CopiedFeatures,
    FeatureSource,
    InPlaceFeatures,
    rows_of,
)
from gnntrain.loading.placement import cached_rows
from gnntrain.training import buffers
from gnntrain.training.buffers import DeviceBuffers
from gnntrain.training.layerwise import LayerwiseEvaluator
from tests.compute.devices import on_each_device
from tests.evaluators import layerwise
from tests.graphs import random_graph, stored
from tests.training.inference_cases import ONE_TYPE, make_model, name_of

pytest.importorskip("triton", reason="triton is not installed")

from gnntrain.loading.graph import GraphTensors

PLENTY, LITTLE = 2**40, 1_000


@pytest.fixture(params=["float32", "bfloat16"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> StoredGraph:
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    return stored(
        tmp_path / "store", random_graph(edge_weight=weights), feature_dtype=request.param
    )


def place(store: StoredGraph, kind: str, device: torch.device) -> FeatureSource:
    rows = rows_of(store.only_nodes)
    if kind == "staged":
        return CopiedFeatures(rows, device)
    if kind == "cached":
        on_gpu = device.type == "cuda"
        cold = rows.pin_memory() if on_gpu else rows.clone()
        return InPlaceFeatures(cached_rows(cold, torch.tensor([0, 7, 30]), device), device)
    return InPlaceFeatures(LazyFeatures(rows.to(device)), device)


def evaluator(
    store: StoredGraph,
    scratch_dir: Path,
    device: str,
    *,
    room: int,
    features: str = "resident",
    graph: GraphTensors | None = None,
    memory_limit: int = PLENTY,
) -> LayerwiseEvaluator:
    context = DistributedContext(device=torch.device(device))
    placed = place(store, features, context.device)
    made = DeviceBuffers(context, scratch_dir, memory_limit, free=room)
    return layerwise(store, made, context, features=placed.select(), edges=graph)


# Every variant with one type of rows; the first with both.
BOTH = [(variant, "float32") for variant in ONE_TYPE] + [(ONE_TYPE[0], "bfloat16")]


@on_each_device
@pytest.mark.parametrize("room", [PLENTY, LITTLE], ids=["resident", "host"])
@pytest.mark.parametrize("features", ["resident", "cached", "staged"])
@pytest.mark.parametrize(
    ("variant", "store"), BOTH, indirect=["store"], ids=[*map(name_of, ONE_TYPE), "in-half"]
)
def test_logits_are_the_hosts(
    store: StoredGraph,
    tmp_path: Path,
    device: str,
    variant: dict[str, Any],
    features: str,
    room: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffers, "_MAX_DEVICE_NUMBERS", 150)  # several chunks a layer
    model = make_model(store, variant)
    expected = layerwise(store, tmp_path).infer(model, embed=True)
    model.to(device)
    if room == LITTLE and device == "cpu":  # as where the host's memory is not the model's
        monkeypatch.setattr(LayerwiseEvaluator, "_is_here", lambda *_: False)
    ours = evaluator(store, tmp_path, device, room=room, features=features)
    found = ours.infer(model, embed=True)
    assert found.logits.device.type == "cpu"
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-4, rtol=1e-4)
    assert isinstance(found.embeddings, torch.Tensor)
    assert isinstance(expected.embeddings, torch.Tensor)
    torch.testing.assert_close(found.embeddings, expected.embeddings, atol=1e-4, rtol=1e-4)


@on_each_device
@pytest.mark.parametrize("room", [PLENTY, LITTLE], ids=["resident", "host"])
def test_edges_on_the_device_are_the_stores(
    store: StoredGraph, tmp_path: Path, device: str, room: int
) -> None:
    model = make_model(store, ONE_TYPE[3])  # takes weights and norms
    expected = layerwise(store, tmp_path).infer(model).logits
    place = torch.device(device)
    graph = GraphTensors.of(store, model.needs, place)
    model.to(device)
    found = evaluator(store, tmp_path, device, room=room, graph=graph).infer(model).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@on_each_device
def test_metrics_are_the_hosts_and_the_memory_is_given_back(
    store: StoredGraph, tmp_path: Path, device: str
) -> None:
    model = make_model(store, ONE_TYPE[0])
    expected = layerwise(store, tmp_path).evaluate(model)
    ours = evaluator(store, tmp_path, device, room=PLENTY)
    found = ours.evaluate(model.to(device))
    assert found.keys() == expected.keys()
    for split, metrics in expected.items():
        assert found[split] == pytest.approx(metrics)
    assert ours.access.buffers._matrices == {}


def test_layers_beyond_the_memory_limit_go_to_disk(
    store: StoredGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path | None] = []

    class Noted(shared.SharedFile):
        def __init__(self, num_bytes: int, directory: Path | None) -> None:
            asked.append(directory)
            super().__init__(num_bytes, directory)

    monkeypatch.setattr(shared, "SharedFile", Noted)
    model = make_model(store, ONE_TYPE[0])
    expected = layerwise(store, tmp_path).infer(model).logits
    found = evaluator(store, tmp_path, "cpu", room=LITTLE, memory_limit=100).infer(model).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert set(asked) == {tmp_path}
