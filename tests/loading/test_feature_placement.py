"""Wherever rows lie, the same rows are read; and the cache holds what is read most."""

from __future__ import annotations

from functools import partial
from inspect import signature
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from gnntrain.config import FeaturesConfig
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.features import FeatureSource, InPlaceFeatures, rows_of
from gnntrain.loading.pinned import PinningError
from gnntrain.loading.placement import (
    Memory,
    Placement,
    Sizes,
    Topology,
    opened,
    place,
    place_and_pin,
    place_features,
    sharded_rows,
)
from tests.compute.devices import on_each_device
from tests.graphs import random_graph, stored
from tests.loading.test_pinned import runtime

pytest.importorskip("triton", reason="triton is not installed")

CACHED = torch.tensor([3, 10, 11, 40])
PLACEMENTS = [
    Placement("resident", "resident"),
    Placement("resident", "pinned", pins_rows=True),
    Placement("resident", "memmap"),
    Placement("resident", "sharded"),
    Placement("resident", "cached", 4, pins_rows=True),
    Placement("resident", "cached", 4),
    Placement("resident", "cached", 0, pins_rows=True),
]


@pytest.fixture(params=["float32", "bfloat16"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> StoredGraph:
    return stored(tmp_path / "store", random_graph(), feature_dtype=request.param)


def placed(store: StoredGraph, placement: Placement, device: str) -> FeatureSource:
    context, memory = DistributedContext(device=torch.device(device)), Memory((0,), 0)
    placement = place_and_pin(store, lambda _: placement, memory, context)
    cached = CACHED[: placement.num_cached] if placement.features == "cached" else None
    return place_features(store.target, rows_of(store.only_nodes), placement, context, cached)


@on_each_device
@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_the_rows_are_the_stores_and_hits_are_counted(
    store: StoredGraph, placement: Placement, device: str
) -> None:
    features = placed(store, placement, device)
    nodes = torch.tensor([40, 0, 3, 3, 59, 11, 2])
    expected = rows_of(store.only_nodes).float()[nodes]
    assert features.select().num_features == expected.shape[1]
    for asked in (nodes, nodes.to(device)):
        assert torch.equal(features.select(asked).whole().cpu(), expected)
    is_cached, num_hits = placement.features == "cached", 4 if placement.num_cached else 0
    assert features.take_reads() == ((2 * num_hits, 2 * len(nodes)) if is_cached else (0, 0))
    assert features.take_reads() == (0, 0)
    none = features.select(torch.empty(0, dtype=torch.int64, device=device))
    assert none.whole().shape == (0, expected.shape[1])


@on_each_device
def test_padding_counts_as_no_read(store: StoredGraph, device: str) -> None:
    features = placed(store, Placement("resident", "cached", 4, pins_rows=True), device)
    nodes = torch.tensor([3, 5, 3, 3, 3], device=device)
    features.select(nodes, torch.tensor(2, device=device))
    assert features.take_reads() == (1, 2)


@on_each_device
@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 60])
def test_shards_on_several_gpus_are_read_as_one_table(
    store: StoredGraph, device: str, world_size: int
) -> None:
    rows = rows_of(store.only_nodes).to(device)
    size = -(-len(rows) // world_size)
    shards = tuple(rows[rank * size : (rank + 1) * size].clone() for rank in range(world_size))
    features = InPlaceFeatures(sharded_rows(shards, torch.device(device)), torch.device(device))
    nodes = torch.randperm(len(rows)).to(device)
    assert torch.equal(features.select(nodes).whole(), rows.float()[nodes])


def test_what_is_said_to_torch_of_another_ranks_tensor_it_understands() -> None:
    names = signature(rebuild_cuda_tensor).parameters
    assert {"storage_device", "event_sync_required"} <= set(names)


def test_another_ranks_shard_is_mapped_for_the_gpu_that_reads_it() -> None:
    told: list[object] = []

    def rebuild(shape: int, storage_device: int, event_sync_required: bool) -> Tensor:
        told.extend([shape, storage_device, event_sync_required])
        return torch.zeros(shape)

    assert len(opened(rebuild, (3, 0, True), torch.device("cuda", 1))) == 3
    assert len(opened(rebuild, (3, 0, True), torch.device("cpu"))) == 3
    assert told == [3, 1, False, 3, 0, True]


def placed_with(
    store: StoredGraph, topology: Topology | Literal["auto"] = "auto", features: str = "auto"
) -> Placement:
    """Where a graph is put beside a GPU without room."""
    sizes = Sizes(0, store.indices.nbytes, store.features.nbytes, store.num_nodes)
    asked = FeaturesConfig.model_validate({"placement": features})
    choose = partial(place, sizes, topology=topology, features=asked)
    context = DistributedContext(device=torch.device("cuda", 0))
    return place_and_pin(store, choose, Memory((0,), 1 << 30), context)


def test_what_cannot_be_pinned_is_kept_elsewhere(
    store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = runtime(monkeypatch)
    edges, rows = store.indices.nbytes, store.features.nbytes
    found = {}
    for room in (edges + rows, edges, 0):
        cuda.room = room
        placement = placed_with(store)
        found[room] = placement.topology, placement.features
        assert sum(cuda.registered.values()) == room
        del placement
        assert cuda.registered == {}
    assert found == {
        edges + rows: ("pinned", "pinned"),
        edges: ("pinned", "memmap"),
        0: ("host", "memmap"),
    }


def test_a_caches_rest_that_cannot_be_pinned_stays_in_the_store(
    store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime(monkeypatch, room=0)
    placement = placed_with(store, "host", "cached")
    assert (placement.features, placement.pins_rows, placement.pinned_rows) == ("cached", False, {})


@pytest.mark.parametrize(("topology", "features"), [("pinned", "auto"), ("auto", "pinned")])
def test_what_is_asked_for_and_cannot_be_pinned_is_refused(
    store: StoredGraph, monkeypatch: pytest.MonkeyPatch, topology: Topology, features: str
) -> None:
    cuda = runtime(monkeypatch, room=0)
    with pytest.raises(PinningError, match="out of memory") as caught:
        placed_with(store, topology, features)
    assert "ulimit -l" in str(caught.value.hint)
    assert cuda.registered == {}
