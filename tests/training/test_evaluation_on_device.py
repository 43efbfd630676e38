"""What a device computes for all nodes is what the host computes, wherever the layers lie: by
Triton's kernels, and by torch's operators on a device for which there are no kernels of ours."""

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
from tests.compute.devices import NEEDS_GPU, NEEDS_INTERPRETER
from tests.evaluators import layerwise
from tests.graphs import random_graph, stored
from tests.simulated_device import present
from tests.training.inference_cases import ONE_TYPE, each_of_one_type, make_model, name_of

pytest.importorskip("triton", reason="triton is not installed")


PLENTY, LITTLE = 2**40, 1_000

WHERE = [
    pytest.param("cpu", marks=NEEDS_INTERPRETER),
    pytest.param("cuda:0", marks=NEEDS_GPU),
    "sim",
]


@pytest.fixture(params=WHERE)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    if request.param == "sim":
        select(KernelChoice("torch"), "sim")
        with present():
            yield torch.device("sim", 0)
    else:
        yield torch.device(request.param)


@pytest.fixture(params=["float32"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> StoredGraph:
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    return stored(
        tmp_path / "store", random_graph(edge_weight=weights), feature_dtype=request.param
    )


def place(store: StoredGraph, kind: str, device: torch.device) -> LazyFeatures:
    rows = rows_of(store.only_nodes)
    if device.type == "sim":
        return LazyFeatures(rows.to(device) if kind == "resident" else rows)
    placed: FeatureSource = InPlaceFeatures(LazyFeatures(rows.to(device)), device)
    if kind == "staged":
        placed = CopiedFeatures(rows, device)
    elif kind == "cached":
        cold = rows.pin_memory() if device.type == "cuda" else rows.clone()
        placed = InPlaceFeatures(cached_rows(cold, torch.tensor([0, 7, 30]), device), device)
    return placed.select()


def evaluator(
    store: StoredGraph,
    scratch_dir: Path,
    device: torch.device,
    *,
    free: int,
    features: str = "resident",
) -> LayerwiseEvaluator:
    context, rows = DistributedContext(device=device), place(store, features, device)
    made = DeviceBuffers(context, scratch_dir, PLENTY, free=free)
    return layerwise(store, made, context, features=rows)


def assert_near(found: Any, expected: Any) -> None:
    assert isinstance(found, torch.Tensor)
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


# Every variant with one type of rows; the first with both.
BOTH = [(variant, "float32") for variant in ONE_TYPE] + [(ONE_TYPE[0], "bfloat16")]


@pytest.mark.parametrize(
    ("features", "free"),
    [("resident", PLENTY), ("cached", PLENTY), ("staged", LITTLE)],
)
@pytest.mark.parametrize(
    ("variant", "store"), BOTH, indirect=["store"], ids=[*map(name_of, ONE_TYPE), "in-half"]
)
def test_logits_and_embeddings_are_the_hosts(
    store: StoredGraph,
    tmp_path: Path,
    device: torch.device,
    variant: dict[str, Any],
    features: str,
    free: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffers, "_MAX_DEVICE_NUMBERS", 150)  # several chunks a layer
    model = make_model(store, variant)
    expected = layerwise(store, tmp_path).infer(model, embed=True)
    model.to(device)
    if free == LITTLE and device.type == "cpu":  # as where the host's memory is not the model's
        monkeypatch.setattr(LayerwiseEvaluator, "_is_here", lambda *_: False)
    found = evaluator(store, tmp_path, device, free=free, features=features)
    inferred = found.infer(model, embed=True)
    assert_near(inferred.logits, expected.logits)
    assert_near(inferred.embeddings, expected.embeddings)


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
            ours = evaluator(store, tmp_path, device, free=free, features="host")
            before = module.memory_allocated(device)
            module.reset_peak_memory_stats(device)
            ours.infer(model)
            assert module.max_memory_allocated(device) - before <= free
