"""The compiled loops against NumPy and torch, number by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.compute import kernels

ALL_16_BITS = np.arange(1 << 16, dtype=np.uint16)

each_half = pytest.mark.parametrize(
    ("bits", "dtype"), [(np.int16, torch.float16), (np.uint16, torch.bfloat16)]
)


def as_floats(bits: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(bits).view(dtype).float()


def gathered(table: np.ndarray, out: np.ndarray) -> np.ndarray:
    """All rows of `table`, converted."""
    none = np.empty(0, np.int64)
    rows, width = table.reshape(-1), table.shape[1]
    kernels.gather_rows((rows, width, none), 0, 0, len(table), out, 0, width)
    return out


@each_half
def test_every_16_bit_float_widens_to_the_same_number(bits: Any, dtype: torch.dtype) -> None:
    table = ALL_16_BITS.view(bits).reshape(256, 256)
    out = gathered(table, np.empty(table.shape, np.float32))
    expected = as_floats(table, dtype).numpy()
    np.testing.assert_array_equal(out, expected)  # not a number equals itself here


@each_half
def test_floats_round_to_16_bits_as_torch_rounds_them(bits: Any, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    numbers = as_floats(ALL_16_BITS, dtype).numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        ties = numbers[:-1] / 2 + numbers[1:] / 2
        near = [np.nextafter(ties, np.float32(end)) for end in (-np.inf, np.inf)]
    random = rng.integers(0, 1 << 32, len(ties), dtype=np.uint64).astype(np.uint32).view(np.float32)
    table = np.stack([numbers[:-1], ties, *near, random])
    out = gathered(table, np.empty(table.shape, bits))
    expected = torch.from_numpy(table).to(dtype).float().numpy()
    np.testing.assert_array_equal(as_floats(out, dtype).numpy(), expected)


def activated(rows: np.ndarray, *, relu: bool, threshold: int, key: int = 5) -> np.ndarray:
    out = rows.copy()
    factor = (1 << 16) / ((1 << 16) - threshold)
    drop = threshold, np.float32(factor), np.uint64(key)
    kernels.activate_rows(out, relu, drop, 0, len(rows))
    return out


@pytest.mark.parametrize("width", [1, 3, 4, 47, 256])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_each_number_is_dropped_with_the_given_probability(width: int, probability: float) -> None:
    num_rows = 400_000 // width
    threshold = round(probability * (1 << 16))
    out = activated(np.ones((num_rows, width), np.float32), relu=False, threshold=threshold)
    kept = out > 0
    spread = (probability * (1 - probability)) ** 0.5
    # every column, every row parity: 5 standard deviations of a fair draw
    for part in (kept, *kept.T, kept[::2], kept[1::2]):
        assert abs(part.mean() - (1 - probability)) < 5 * spread / part.size**0.5
    np.testing.assert_allclose(out[kept], 1 / (1 - threshold / (1 << 16)), rtol=1e-6)


def test_drops_of_neighbouring_numbers_rows_and_keys_do_not_depend_on_each_other() -> None:
    out, again, other = (
        activated(np.ones((4000, 64), np.float32), relu=False, threshold=1 << 15, key=key) > 0
        for key in (5, 5, 6)
    )
    np.testing.assert_array_equal(out, again)
    for left, right in (
        (out, other),
        (out[:, :-1], out[:, 1:]),
        (out[:-1], out[1:]),
        (out[:, :16], out[:, 16:32]),
    ):
        both = (left & right).mean()
        assert abs(both - 0.25) < 5 * (3 / 16) ** 0.5 / left.size**0.5


@pytest.mark.parametrize("threshold", [0, 1 << 15])
@each_half
def test_16_bit_rows_are_activated_as_float32_ones_are(
    bits: Any, dtype: torch.dtype, threshold: int
) -> None:
    rows = torch.randn(20, 10).to(dtype)
    rows[0, :4] = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf])
    halves = rows.view(torch.int16).numpy().view(bits).copy()
    drop = threshold, np.float32(2 if threshold else 1), np.uint64(5)
    kernels.activate_rows(halves, True, drop, 0, 20)
    expected = activated(rows.float().numpy(), relu=True, threshold=threshold)
    np.testing.assert_array_equal(as_floats(halves, dtype).numpy(), expected)
