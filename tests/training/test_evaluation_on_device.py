"""Triton's kernels compute for all nodes what the host computes, wherever rows and layers lie; and
no more memory is taken than is free.

That torch's operators do, where there are no kernels of ours, is shown in
`test_run_on_simulated_gpu.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.selection import KernelChoice, select
from gnntrain.data.store import StoredGraph
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
from tests.simulated_device import present
from tests.training.inference_cases import each_of_one_type, make_model

pytest.importorskip("triton", reason="triton is not installed")


PLENTY, LITTLE = 2**40, 1_000


def placed(rows: torch.Tensor, place: str, device: torch.device) -> LazyFeatures:
    source: FeatureSource = InPlaceFeatures(LazyFeatures(rows.to(device)), device)
    if place == "staged":
        source = CopiedFeatures(rows, device)
    elif place == "cached":
        cold = rows.pin_memory() if device.type == "cuda" else rows.clone()
        source = InPlaceFeatures(cached_rows(cold, torch.tensor([0, 7, 30]), device), device)
    return source.select()


def evaluator(
    store: StoredGraph, scratch_dir: Path, device: torch.device, features: LazyFeatures, free: int
) -> LayerwiseEvaluator:
    context = DistributedContext(device=device)
    made = DeviceBuffers(context, scratch_dir, PLENTY, free=free)
    return layerwise(store, made, context, features=features)


@on_each_device
@pytest.mark.parametrize(
    ("place", "free", "dtype"),
    [
        ("resident", PLENTY, "float32"),
        ("cached", PLENTY, "float32"),
        ("staged", LITTLE, "float32"),
        ("resident", PLENTY, "bfloat16"),
    ],
)
@each_of_one_type
def test_logits_and_embeddings_are_the_hosts(
    tmp_path: Path,
    device: str,
    variant: dict[str, Any],
    place: str,
    free: int,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffers, "_MAX_DEVICE_NUMBERS", 150)  # several chunks a layer
    data = random_graph(edge_weight=np.random.default_rng(1).random(240).astype(np.float32))
    store = stored(tmp_path / "store", data, feature_dtype=dtype)
    model, gpu = make_model(store, variant), torch.device(device)
    expected = layerwise(store, tmp_path).infer(model, embed=True)
    rows = placed(rows_of(store.only_nodes), place, gpu)
    found = evaluator(store, tmp_path, gpu, rows, free).infer(model.to(gpu), embed=True)
    for ours, theirs in zip(
        (found.logits, found.embeddings), (expected.logits, expected.embeddings), strict=True
    ):
        assert isinstance(ours, torch.Tensor)
        assert ours.device.type == "cpu"
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@each_of_one_type
def test_evaluation_takes_no_more_than_the_memory_that_is_free(
    tmp_path: Path, variant: dict[str, Any]
) -> None:
    """If all matrices fit, and if only chunks do. No node alone has too many in-edges."""
    select(KernelChoice("torch"), "sim")
    destinations = np.arange(30_000) % 3000
    data = random_graph(3000, len(destinations), num_features=64, dst=destinations)
    store = stored(tmp_path / "store", data)
    for free in (8 << 20, 2 << 20):
        with present(total_memory=PLENTY) as module:
            device = torch.device("sim", 0)
            model = make_model(store, variant).to(device)
            on_host = LazyFeatures(rows_of(store.only_nodes))
            ours = evaluator(store, tmp_path, device, on_host, free)
            before = module.memory_allocated(device)
            module.reset_peak_memory_stats(device)
            ours.infer(model)
            assert module.max_memory_allocated(device) - before <= free
