"""Where a graph is put, on machines that are made up."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.config import FeaturesConfig
from gnntrain.errors import UserError
from gnntrain.loading.placement import Memory, Placement, Sizes, place
from tests.examples import examples

GIB = 2**30
PRODUCTS = Sizes(small=GIB // 8, topology=GIB // 2, features=GIB, num_nodes=2_449_029)
PAPERS = Sizes(small=2 * GIB, topology=13 * GIB, features=53 * GIB, num_nodes=111_059_956)


def machine(*gpus: float, host: float = 128, has_peers: bool = False) -> Memory:
    return Memory(tuple(int(free * GIB) for free in gpus), int(host * GIB), has_peers)


def asked(**keys: object) -> FeaturesConfig:
    return FeaturesConfig.model_validate(keys)


def test_what_fits_is_put_on_the_gpu() -> None:
    placed = place(PRODUCTS, machine(16))
    assert (placed.topology, placed.features) == ("resident", "resident")
    edges, features = placed.why
    assert re.search(r"edges .*0\.50 GiB .*7\.88 GiB", edges)
    assert re.search(r"features .*1\.00 GiB .*7\.38 GiB", features)


def test_half_of_the_smallest_gpu_counts() -> None:
    assert place(PRODUCTS, machine(16, 3.2)).features == "cached"
    assert place(PRODUCTS, machine(16, 3.3)).features == "resident"


def test_what_is_too_large_for_one_gpu_is_shared_out_over_gpus_that_see_each_other() -> None:
    placed = place(PAPERS, machine(80, 80, has_peers=True))
    assert (placed.topology, placed.features) == ("resident", "cached")  # 26.5 of 25 GiB each
    assert place(PAPERS, machine(*[80] * 4, has_peers=True)).features == "sharded"
    assert place(PAPERS, machine(*[80] * 4)).features == "cached"


def test_a_cache_takes_what_is_left_and_the_rest_is_pinned_if_the_host_has_room() -> None:
    placed = place(PAPERS, machine(80))
    assert placed.num_cached == 25 * GIB // PAPERS.row
    assert placed.cold == "pinned"
    assert "rows cached, 25.00 GiB" in placed.why[1]
    assert place(PAPERS, machine(80, host=64)).cold == "memmap"


def test_a_cache_may_be_given_by_share_or_by_bytes() -> None:
    placed = place(PRODUCTS, machine(16), features=asked(cache_ratio=0.1))
    assert (placed.features, placed.num_cached) == ("cached", 244_903)
    placed = place(PRODUCTS, machine(16), features=asked(placement="cached", cache_bytes=0))
    assert (placed.features, placed.num_cached) == ("cached", 0)


def test_edges_that_do_not_fit_are_read_over_the_bus_or_drawn_by_the_cpu() -> None:
    assert place(PAPERS, machine(24)).topology == "pinned"
    placed = place(PAPERS, machine(24, host=16))
    assert (placed.topology, placed.features, placed.cold) == ("host", "cached", "memmap")
    placed = place(PAPERS, machine(4, host=16))
    assert (placed.topology, placed.features) == ("host", "memmap")


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


def test_a_cache_larger_than_the_room_is_refused() -> None:
    with pytest.raises(UserError, match=r"lower features\.cache_ratio") as caught:
        place(PAPERS, machine(80), features=asked(placement="cached", cache_ratio=0.9))
    assert "cached has no room" in caught.value.message


@examples(50)
@given(
    sizes=st.builds(Sizes, *[st.integers(0, 200 * GIB)] * 3, st.integers(1, 10**9)),
    memory=st.builds(
        Memory,
        st.lists(st.integers(0, 141 * GIB), min_size=1, max_size=8).map(tuple),
        st.integers(0, 2**41),
        st.booleans(),
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
    pins_rows = placed.features == "pinned" or (
        placed.features == "cached" and placed.cold == "pinned"
    )
    return on_gpu, sizes.topology * (placed.topology == "pinned") + sizes.features * pins_rows
