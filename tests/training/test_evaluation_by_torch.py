"""Exact evaluation on a device without kernels of ours is the CPU's, within the free memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.selection import KernelChoice, select
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.features import rows_of
from gnntrain.training import buffers
from gnntrain.training.buffers import DeviceBuffers
from gnntrain.training.layerwise import LayerwiseEvaluator
from tests.evaluators import layerwise
from tests.graphs import random_graph, stored
from tests.simulated_device import present
from tests.training.inference_cases import ONE_TYPE, each_of_one_type, make_model

PLENTY, LITTLE = 2**40, 1_000


@pytest.fixture(autouse=True)
def sim() -> Iterator[torch.device]:
    select(KernelChoice("torch"), "sim")
    with present():
        yield torch.device("sim", 0)


@pytest.fixture
def store(tmp_path: Path) -> StoredGraph:
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    return stored(tmp_path / "store", random_graph(edge_weight=weights))


def evaluator(
    store: StoredGraph, folder: Path, device: torch.device, *, free: int, resident: bool = True
) -> LayerwiseEvaluator:
    context, rows = DistributedContext(device=device), rows_of(store.only_nodes)
    made = DeviceBuffers(context, folder, PLENTY, free=free)
    features = LazyFeatures(rows.to(device) if resident else rows)
    return layerwise(store, made, context, features=features)


@pytest.mark.parametrize(
    ("free", "resident"),
    [(PLENTY, True), (LITTLE, True), (LITTLE, False)],
    ids=["all-on-device", "layers-on-host", "all-on-host"],
)
@each_of_one_type
def test_logits_and_embeddings_are_the_cpus(
    store: StoredGraph,
    tmp_path: Path,
    sim: torch.device,
    variant: dict[str, Any],
    free: int,
    resident: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffers, "_MAX_DEVICE_NUMBERS", 150)  # several chunks a layer
    model = make_model(store, variant)
    expected = layerwise(store, tmp_path).infer(model, embed=True)
    ours = evaluator(store, tmp_path, sim, free=free, resident=resident)
    found = ours.infer(model.to(sim), embed=True)
    assert found.logits.device.type == "cpu"
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=1e-5)
    assert isinstance(found.embeddings, torch.Tensor)
    assert isinstance(expected.embeddings, torch.Tensor)
    torch.testing.assert_close(found.embeddings, expected.embeddings, atol=1e-5, rtol=1e-5)


def test_metrics_are_the_cpus_and_the_memory_is_given_back(
    store: StoredGraph, tmp_path: Path, sim: torch.device
) -> None:
    model = make_model(store, ONE_TYPE[1])
    expected = layerwise(store, tmp_path).evaluate(model)
    ours = evaluator(store, tmp_path, sim, free=PLENTY)
    found = ours.evaluate(model.to(sim))
    assert found.keys() == expected.keys()
    for split, metrics in expected.items():
        assert found[split] == pytest.approx(metrics)
    assert ours.access.buffers._matrices == {}


@each_of_one_type
def test_evaluation_takes_no_more_than_the_memory_that_is_free(
    tmp_path: Path, variant: dict[str, Any]
) -> None:
    """If all matrices fit, and if only chunks do. No node alone has too many in-edges."""
    destinations = np.arange(30_000) % 3000
    data = random_graph(3000, len(destinations), num_features=64, dst=destinations)
    store = stored(tmp_path / "store", data)
    for free in (8 << 20, 2 << 20):
        with present(total_memory=PLENTY) as module:
            device = torch.device("sim", 0)
            model = make_model(store, variant).to(device)
            ours = evaluator(store, tmp_path, device, free=free, resident=False)
            before = module.memory_allocated(device)
            module.reset_peak_memory_stats(device)
            ours.infer(model)
            assert module.max_memory_allocated(device) - before <= free
