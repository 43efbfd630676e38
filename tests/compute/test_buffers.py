"""Memory that is used again: results never share it while both live, and it is never more."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.compute.buffers import Buffers
from tests.examples import examples

_ROW = 1 << 18  # of float32: a MiB


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_is_used_again_once_its_last_view_is_gone(dtype: torch.dtype) -> None:
    buffers = Buffers()
    first = buffers.empty((3, _ROW - 5), dtype)
    view, place = first[1:], first.data_ptr()
    del first
    other = buffers.empty((3, _ROW), dtype)
    assert other.data_ptr() != place
    del view
    again = buffers.empty((3, _ROW), dtype)  # of a batch whose block is larger
    assert (again.data_ptr(), again.dtype, again.is_contiguous()) == (place, dtype, True)


@examples(30)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=40))
def test_live_results_never_share_memory_and_no_more_is_held_than_was_in_use(
    calls: list[tuple[bool, int]],
) -> None:
    buffers, live = Buffers(), list[tuple[int, torch.Tensor]]()
    most, before = 0, _memory().keys()
    for number, (frees, rows) in enumerate(calls):
        if frees and live:
            live.pop(rows % len(live))
        else:
            live.append((number, buffers.empty((rows, _ROW), torch.float32).fill_(number)))
        most = max(most, sum(tensor.nbytes for _, tensor in live))
        held = [nbytes for place, nbytes in _memory().items() if place not in before]
        assert sum(held) <= 1.25 * most
        assert all((tensor == value).all() for value, tensor in live)


def _memory() -> dict[int, int]:
    """The sizes of all buffers, by their addresses."""
    tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor]
    return {one.data_ptr(): one.nbytes for one in tensors if one.dtype == torch.uint8}


def test_threads_may_share_the_buffers() -> None:
    buffers = Buffers()

    def use(number: int) -> bool:
        for rows in range(1, 20):
            tensor = buffers.empty((rows % 4 + 1, _ROW), torch.float32).fill_(number)
            if not (tensor == number).all():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, range(16)))
    buffers.clear()
    assert buffers.empty((4, _ROW), torch.float32).shape == (4, _ROW)
