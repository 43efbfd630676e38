"""Where a graph is put, on machines that are made up; and which GPUs read each other's memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.config import FeaturesConfig
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.loading import placement
from gnntrain.loading.placement import Memory, Placement, Sizes, place, why_no_peers
from tests.examples import examples

GIB = 2**30
PRODUCTS = Sizes(small=GIB // 8, topology=GIB // 2, features=GIB, num_nodes=2_449_029)
PAPERS = Sizes(small=2 * GIB, topology=13 * GIB, features=53 * GIB, num_nodes=111_059_956)


def machine(*gpus: float, host: float = 128, has_peers: bool = False) -> Memory:
    why_not = "" if has_peers else "these do not"
    return Memory(tuple(int(free * GIB) for free in gpus), int(host * GIB), why_no_peers=why_not)


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
        (machine(80, host=64), "auto", "pinned", "32.00 GiB are left"),
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
        st.lists(st.integers(0, 141 * GIB), min_size=1, max_size=8).map(tuple),
        st.integers(0, 2**41),
        why_no_peers=st.sampled_from(["", "these do not"]),
    ),
    ratio=st.none() | st.floats(0, 1),
)
def test_auto_always_finds_a_place_within_the_room(
    sizes: Sizes, memory: Memory, ratio: float | None
) -> None:
    placed = place(sizes, memory, features=FeaturesConfig(cache_ratio=ratio))
    on_gpu, pinned = _bytes(sizes, memory, placed)
    assert on_gpu <= max(0, min(memory.gpus) // 2 - sizes.small)
    assert pinned <= memory.host // 2
    assert all(placed.why)


def _bytes(sizes: Sizes, memory: Memory, placed: Placement) -> tuple[int, int]:
    """What the graph's large parts take of every GPU and of pinned memory."""
    share = -(-sizes.features // len(memory.gpus))
    rows = {"resident": sizes.features, "sharded": share}.get(placed.features, 0)
    on_gpu = sizes.topology * (placed.topology == "resident") + rows
    on_gpu += placed.num_cached * sizes.row
    return on_gpu, sizes.topology * (
        placed.topology == "pinned"
    ) + sizes.features * placed.pins_rows


GPUS = ["07", "0f", "47", "4e"]


class Rank(DistributedContext):
    """A rank of four, whose own address and answer the others share but for what a test says."""

    def gather(self, value: Any) -> list[Any]:
        return list(GPUS) if value in GPUS else [value] * self.world_size


@pytest.mark.parametrize(
    ("rank", "visible", "reads", "settings", "why"),
    [
        (2, GPUS, True, {}, ""),
        (2, GPUS[::-1], True, {}, ""),
        (2, GPUS, False, {}, "these do not"),
        (2, ["47"], True, {}, "its own GPU alone"),  # all ranks call theirs number 0
        # Memory that torch's allocator does not share.
        (0, GPUS, True, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "PYTORCH_CUDA"),
        (0, GPUS, True, {"PYTORCH_ALLOC_CONF": "a:1,expandable_segments: true"}, "PYTORCH_ALLOC"),
        (0, GPUS, True, {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, "PYTORCH_CUDA"),
        (0, GPUS, True, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, ""),
    ],
)
def test_gpus_with_a_way_to_each_other_are_peers(
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
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
    device = torch.device("cuda", visible.index(GPUS[rank]))
    found = why_no_peers(Rank(rank, len(GPUS), device))
    assert why in found
    assert bool(why) == bool(found)
