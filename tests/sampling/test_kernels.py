"""The random numbers are the documented ones, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.sampling import kernels
from gnntrain.sampling.base import SampleKey
from tests.examples import examples
from tests.sampling import oracle

bits = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("index", "expected"),
    [(0, 0xE220A8397B1DCDAF), (1, 0x6E789E6AA1B965F4), (2, 0x06C45D188009454F)],
)
def test_a_stream_is_splitmix64(index: int, expected: int) -> None:
    """The published first outputs of SplitMix64 from state 0."""
    assert int(kernels.draw(np.uint64(0), np.uint64(index))) == expected


def test_the_draws_of_a_key_never_change() -> None:
    """Pinned: other devices copy them, and runs are repeated by them."""
    key = kernels.hop_key(*(np.uint64(part) for part in (42, 3, 17, 1)))
    stream = kernels.node_key(np.uint64(key), np.uint64(123_456))
    drawn = [int(kernels.draw(np.uint64(stream), np.uint64(i))) for i in range(2)]
    assert int(key) == 0x2BBC24730022433D
    assert drawn == [0xE8384DE448F306D9, 0x845E870A1F3307EF]


@examples(50)
@given(seed=bits, epoch=bits, step=bits, hop=st.integers(0, 9), node=bits, index=bits)
def test_keys_and_draws_agree_with_plain_integers(
    seed: int, epoch: int, step: int, hop: int, node: int, index: int
) -> None:
    key = kernels.hop_key(*(np.uint64(part) for part in (seed, epoch, step, hop)))
    assert int(key) == oracle.hop_key(SampleKey(seed, epoch, step), hop)
    stream = kernels.node_key(np.uint64(key), np.uint64(node))
    value = kernels.draw(np.uint64(stream), np.uint64(index))
    expected = oracle.draw(SampleKey(seed, epoch, step), hop, node, index, 2**64)
    assert int(value) == expected


@examples(50)
@given(value=bits, num_values=st.integers(1, 2**32 - 1))
def test_a_bounded_draw_is_the_scaled_draw_rounded_down(value: int, num_values: int) -> None:
    bounded = kernels.bounded(np.uint64(value), np.uint64(num_values))
    assert int(bounded) == value * num_values // 2**64
