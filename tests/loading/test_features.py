"""Where rows and edges lie; wherever that is, the same rows are read; and host memory that GPUs
read is just as large as wanted, and given back."""

from __future__ import annotations

import mmap
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.config import FeaturesConfig
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.cuda_runtime import CudaError
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.errors import UserError
from gnntrain.loading import pinned as module
from gnntrain.loading import placement
from gnntrain.loading.features import (
    FeatureSource,
    InPlaceFeatures,
    WholeGraphFeatures,
    in_place,
    rows_of,
)
from gnntrain.loading.pinned import PinningError, empty_pinned, pinned
from gnntrain.loading.placement import (
    Memory,
    Placement,
    Sizes,
    Topology,
    aligned_copy,
    place,
    place_and_pin,
    place_features,
    sharded_rows,
    why_no_peers,
)
from tests.compute.devices import on_each_device
from tests.examples import examples
from tests.graphs import random_graph, stored
from tests.hetero_graphs import random_hetero_data

# What rounding to each type may cost, relative.
TOLERANCE = {"float32": 0.0, "float16": 2**-11, "bfloat16": 2**-8}


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rows_come_as_float32_whatever_the_store_holds(tmp_path: Path, dtype: str) -> None:
    data, rtol = random_hetero_data(), TOLERANCE[dtype]
    store = stored(tmp_path / "store", data, feature_dtype=dtype)
    sources, nodes = in_place(store), torch.tensor([7, 0, 7, 39])
    assert sources.keys() == {"paper", "author"}  # venues have none
    for name, source in sources.items():
        expected = torch.from_numpy(np.asarray(data.nodes[name].features))
        chosen, whole = source.select(nodes), source.select()
        # The number of rows is known without reading them.
        assert (len(chosen), len(whole), whole.num_features) == (4, *expected.shape)
        torch.testing.assert_close(chosen.whole(), expected[nodes], rtol=rtol, atol=0.0)
        torch.testing.assert_close(chosen.read(1, 3), expected[[0, 7]], rtol=rtol, atol=0)
        torch.testing.assert_close(whole.read(3, 9), expected[3:9], rtol=rtol, atol=0.0)
        assert chosen.whole().dtype == torch.float32
        none = source.select(torch.empty(0, dtype=torch.int64))
        assert none.whole().shape == (0, expected.shape[1])
        # All rows are had without a copy only where they are float32.
        is_view = whole.whole().data_ptr() == store.nodes[name].features.ctypes.data
        assert is_view == (dtype == "float32")


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


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def store(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> StoredGraph:
    pytest.importorskip("triton", reason="triton is not installed")
    path = tmp_path_factory.mktemp("graph") / "store"
    return stored(path, random_graph(), feature_dtype=request.param)


def placed(store: StoredGraph, placement: Placement, device: str) -> FeatureSource:
    context, memory = DistributedContext(device=torch.device(device)), Memory(0, 0)
    placement = place_and_pin(store, lambda _: placement, memory, context)
    cached = CACHED[: placement.num_cached] if placement.features == "cached" else None
    return place_features(store.target, rows_of(store.target_nodes), placement, context, cached)


@on_each_device
@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_the_rows_are_the_stores_and_hits_are_counted(
    store: StoredGraph, placement: Placement, device: str
) -> None:
    features = placed(store, placement, device)
    nodes = torch.tensor([40, 0, 3, 3, 59, 11, 2])
    expected = rows_of(store.target_nodes).float()[nodes]
    assert features.select().num_features == expected.shape[1]
    for asked in (nodes, nodes.to(device)):
        assert torch.equal(features.select(asked).whole().cpu(), expected)
    is_cached, num_hits = placement.features == "cached", 4 if placement.num_cached else 0
    assert features.take_reads() == ((2 * num_hits, 2 * len(nodes)) if is_cached else (0, 0))
    assert features.take_reads() == (0, 0)
    none = features.select(torch.empty(0, dtype=torch.int64, device=device))
    assert none.whole().shape == (0, expected.shape[1])


@pytest.mark.parametrize(("width", "stride"), [(602, 608), (24, 24), (71, 72), (6, 6), (1, 1)])
def test_rows_on_a_gpu_begin_where_wide_loads_do_unless_that_takes_much_memory(
    width: int, stride: int
) -> None:
    rows = torch.rand(9, width).bfloat16()
    copy = aligned_copy(rows, torch.device("cpu"))
    assert torch.equal(copy, rows)
    assert copy.stride() == (stride, 1)


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
    rows = rows_of(store.target_nodes).to(device)
    size = -(-len(rows) // world_size)
    shards = tuple(rows[rank * size : (rank + 1) * size].clone() for rank in range(world_size))
    features = InPlaceFeatures(sharded_rows(shards, torch.device(device)), torch.device(device))
    nodes = torch.randperm(len(rows)).to(device)
    assert torch.equal(features.select(nodes).whole(), rows.float()[nodes])


def test_wholegraph_gets_this_ranks_rows_and_gathers_any(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, whole = torch.arange(30.0).view(10, 3), torch.zeros(10, 3)
    library = mock.MagicMock()
    memory = library.create_wholememory_tensor.return_value
    memory.get_local_tensor.return_value = whole[4:8], 4
    memory.gather = whole.__getitem__
    monkeypatch.setitem(sys.modules, "pylibwholegraph.torch", library)
    source = WholeGraphFeatures(rows, DistributedContext(2, 4, machines=(0, 1, 1, 1)))
    assert library.init.call_args.args == (2, 4, 1, 3)
    assert torch.equal(whole, torch.zeros(10, 3).index_copy(0, torch.arange(4, 8), rows[4:8]))
    assert torch.equal(source.select(torch.tensor([7, 4])).whole(), rows[[7, 4]])


# Pinned


class Runtime:
    """In the place of CUDA's runtime."""

    def __init__(self, room: int = 1 << 40) -> None:
        self.room = room  # bytes that it registers at most
        self.registered: dict[int, int] = {}  # sizes by address

    def register_host_memory(self, address: int, size: int) -> None:
        assert address % mmap.PAGESIZE == 0
        assert address not in self.registered
        if sum(self.registered.values()) + size > self.room:
            raise CudaError("cudaHostRegister has failed: out of memory.")
        self.registered[address] = size

    def unregister_host_memory(self, address: int) -> None:
        del self.registered[address]


def runtime(monkeypatch: pytest.MonkeyPatch, room: int = 1 << 40) -> Runtime:
    """The runtime, in the place of CUDA's."""
    made = Runtime(room)
    monkeypatch.setattr(module, "cuda_runtime", made)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    return made


def placed_with(
    store: StoredGraph, topology: Topology | Literal["auto"] = "auto", features: str = "auto"
) -> Placement:
    """Where a graph is put beside a GPU without room."""
    edges, rows = store.only_edges.indices.nbytes, store.target_nodes.features.nbytes
    sizes = Sizes(0, edges, rows, store.num_nodes)
    asked = FeaturesConfig.model_validate({"placement": features})
    choose = partial(place, sizes, topology=topology, features=asked)
    context = DistributedContext(device=torch.device("cuda", 0))
    return place_and_pin(store, choose, Memory(0, 1 << 30), context)


def test_what_cannot_be_pinned_is_kept_elsewhere(
    store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = runtime(monkeypatch)
    edges, rows = store.only_edges.indices.nbytes, store.target_nodes.features.nbytes
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
    cached = placed_with(store, "host", "cached")
    assert (cached.features, cached.pins_rows, cached.pinned_rows) == ("cached", False, {})


@pytest.mark.parametrize(("topology", "features"), [("pinned", "auto"), ("auto", "pinned")])
def test_what_is_asked_for_and_cannot_be_pinned_is_refused(
    store: StoredGraph, monkeypatch: pytest.MonkeyPatch, topology: Topology, features: str
) -> None:
    cuda = runtime(monkeypatch, room=0)
    with pytest.raises(PinningError, match="out of memory") as caught:
        placed_with(store, topology, features)
    assert "ulimit -l" in str(caught.value.hint)
    assert cuda.registered == {}


def test_memory_stays_pinned_while_a_view_of_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = runtime(monkeypatch)
    room: Any = empty_pinned((70, 3), torch.bfloat16)
    assert (room.shape, room.dtype) == ((70, 3), torch.bfloat16)
    assert cuda.registered == {room.data_ptr(): room.nbytes}
    part = room[5:]
    del room
    part.fill_(2)
    assert len(cuda.registered) == 1
    del part
    assert cuda.registered == {}


ROWS = torch.arange(12, dtype=torch.bfloat16).view(4, 3)


def pin_twice(context: DistributedContext, out: Path) -> None:
    """Pin as two GPU ranks of a machine would; the second one's CUDA refuses."""
    made = Runtime()
    on_gpu = replace(context, device=torch.device("cuda", context.rank))
    with (
        mock.patch.object(module, "cuda_runtime", made),
        mock.patch.object(torch.cuda, "synchronize"),
    ):
        rows = pinned(ROWS, on_gpu)
        told = [torch.equal(rows, ROWS), made.registered == {rows.data_ptr(): rows.nbytes}]
        if context.rank == 1:
            made.room = 0
        with pytest.raises(PinningError, match="out of memory"):
            pinned(ROWS, on_gpu)
        told.append(len(made.registered) == 1)
        del rows
        told.append(len(made.registered) == 0)
    (out / f"{context.rank}").write_text(str(told))


def test_ranks_pin_one_copy_each_once_or_all_do_without(tmp_path: Path) -> None:
    launch(pin_twice, tmp_path, LaunchPlan(2, "cpu", 1, 60), tmp_path)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == [str([True] * 4)] * 2


# Where a graph is put, on machines that are made up; and which GPUs read each other


GIB = 2**30
PRODUCTS = Sizes(small=GIB // 8, topology=GIB // 2, features=GIB, num_nodes=2_449_029)
PAPERS = Sizes(small=2 * GIB, topology=13 * GIB, features=53 * GIB, num_nodes=111_059_956)


def machine(*gpus: float, host: float = 128, has_peers: bool = False) -> Memory:
    why_not = "" if has_peers else "these do not"
    return Memory(int(min(gpus) * GIB), int(host * GIB), len(gpus), why_no_peers=why_not)


def asked(**keys: object) -> FeaturesConfig:
    return FeaturesConfig.model_validate(keys)


NO_CACHE = {"placement": "cached", "cache_bytes": 0}


@pytest.mark.parametrize(
    ("sizes", "memory", "keys", "expected"),
    [
        # Half of the smallest GPU counts.
        (PRODUCTS, machine(16), {}, ("resident", "resident", False, 0)),
        (PRODUCTS, machine(16, 3.2), {}, ("resident", "cached", True, 2_384_734)),
        (PRODUCTS, machine(16, 3.3), {}, ("resident", "resident", False, 0)),
        # A part on each of GPUs that see each other; a cache takes what is left.
        (PAPERS, machine(80, 80, has_peers=True), {}, ("resident", "cached", True, 52_326_599)),
        (PAPERS, machine(*[80] * 4, has_peers=True), {}, ("resident", "sharded", False, 0)),
        (PAPERS, machine(*[80] * 4), {}, ("resident", "cached", True, 52_326_599)),
        (PAPERS, machine(80, host=64), {}, ("resident", "cached", False, 52_326_599)),
        (PRODUCTS, machine(16), {"cache_ratio": 0.1}, ("resident", "cached", True, 244_903)),
        (PRODUCTS, machine(16), NO_CACHE, ("resident", "cached", True, 0)),
        # Edges are read over the bus, or drawn by the CPU.
        (PAPERS, machine(24), {}, ("pinned", "cached", False, 20_930_639)),
        (PAPERS, machine(24, host=16), {}, ("host", "cached", False, 20_930_639)),
        (PAPERS, machine(4, host=16), {}, ("host", "memmap", False, 0)),
    ],
)
def test_the_fastest_place_that_is_large_enough(
    sizes: Sizes, memory: Memory, keys: dict[str, Any], expected: tuple[str, str, bool, int]
) -> None:
    """Where edges and rows are, whether rows are pinned, and how many are cached."""
    placed = place(sizes, memory, features=asked(**keys))
    assert (placed.topology, placed.features, placed.pins_rows, placed.num_cached) == expected


@pytest.mark.parametrize(
    ("memory", "topology", "placement", "said"),
    [
        (machine(8), "resident", "auto", "sampler.topology=resident has no room"),
        (machine(8, host=8), "pinned", "auto", "sampler.topology=pinned has no room"),
        (machine(80), "auto", "resident", "53.00 GiB, and 25.00 GiB are left"),
        (machine(80, 80), "auto", "sharded", "read each other's memory"),
        (machine(80), "auto", "wholegraph", "needs several GPUs"),
        (machine(80, 80, has_peers=True), "auto", "sharded", "25.00 GiB are left"),
    ],
)
def test_what_was_asked_for_and_has_no_room_is_refused(
    memory: Memory, topology: str, placement: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        place(PAPERS, memory, topology=topology, features=asked(placement=placement))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="cached has no room"):
        place(PAPERS, memory, features=asked(placement="cached", cache_ratio=0.9))


@examples(50)
@given(
    sizes=st.builds(Sizes, *[st.integers(0, 200 * GIB)] * 3, st.integers(1, 10**9)),
    memory=st.builds(
        Memory,
        st.integers(0, 141 * GIB),
        st.integers(0, 2**41),
        st.integers(1, 8),
        why_no_peers=st.sampled_from(["", "these do not"]),
    ),
    ratio=st.none() | st.floats(0, 1),
)
def test_auto_always_finds_a_place_within_the_room(
    sizes: Sizes, memory: Memory, ratio: float | None
) -> None:
    placed = place(sizes, memory, features=FeaturesConfig(cache_ratio=ratio))
    # What the graph's large parts take of every GPU, and of pinned memory.
    share = -(-sizes.features // memory.local_gpus)
    rows = {"resident": sizes.features, "sharded": share}.get(placed.features, 0)
    on_gpu = rows + placed.num_cached * sizes.row + sizes.topology * (placed.topology == "resident")
    pinned = sizes.topology * (placed.topology == "pinned") + sizes.features * placed.pins_rows
    assert on_gpu <= max(0, memory.gpu // 2 - sizes.small)
    assert pinned <= memory.host // 2
    assert all(placed.why)


GPUS = ["07", "0f", "47", "4e"]


class Rank(DistributedContext):
    """A rank of four, whose own address and answer the others share but for what a test says."""

    def gather(self, value: Any) -> list[Any]:
        return list(GPUS) if value in GPUS else [value] * self.world_size


@pytest.mark.parametrize(
    ("visible", "reads", "settings", "why"),
    [
        (GPUS, True, {}, ""),
        (GPUS, False, {}, "these do not"),
        (["47"], True, {}, "its own GPU alone"),  # all ranks call theirs number 0
        # Memory that torch's allocator does not share.
        (GPUS, True, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "PYTORCH_CUDA"),
        (GPUS, True, {"PYTORCH_ALLOC_CONF": "a:1,expandable_segments: true"}, "PYTORCH_ALLOC"),
        (GPUS, True, {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, "PYTORCH_CUDA"),
        (GPUS, True, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, ""),
    ],
)
def test_gpus_with_a_way_to_each_other_are_peers(
    monkeypatch: pytest.MonkeyPatch,
    visible: list[str],
    reads: bool,
    settings: dict[str, str],
    why: str,
) -> None:
    for name in placement._SETTINGS:
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(placement, "gpu_address", lambda device: visible[device.index])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(visible))
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: reads)
    device = torch.device("cuda", visible.index(GPUS[2]))
    found = why_no_peers(Rank(2, len(GPUS), device))
    assert why in found
    assert bool(why) == bool(found)
