from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gnntrain.distributed.context import rank_range


@given(num_items=st.integers(0, 100), world_size=st.integers(1, 12))
def test_shares_cover_everything_once_and_differ_by_one_at_most(
    num_items: int, world_size: int
) -> None:
    items = list(range(num_items))
    shares = [items[rank_range(num_items, rank, world_size)] for rank in range(world_size)]
    assert [item for share in shares for item in share] == items
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
