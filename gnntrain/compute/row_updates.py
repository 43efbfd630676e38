"""Adam and SGD for some rows of a matrix, in place and in one pass, on the threads of a CPU.

torch's operators would copy the rows of the matrix and of its moments, compute, and copy them back,
each reading and writing memory several times over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.compute.cpu import by_rows
from gnntrain.compute.selection import selected
from gnntrain.jit import jit

Float32 = np.float32
Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]


def adam(
    matrices: Sequence[Tensor],
    rows: Tensor,
    gradient: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> None:
    """Adam's step number `step` for some rows, as in torch's optimiser.

    Args:
        matrices: float32 `[n, width]`: weight, first and second moments.
        rows: int64 `[m]`, each once.
        gradient: float32 `[m, width]`.
        step: From 1.
        lr, betas, eps, weight_decay: See `torch.optim.Adam`.
        decoupled: Whether the decay is AdamW's.
    """
    first, second = betas
    size, root = lr / (1 - first**step), math.sqrt(1 - second**step)
    decay, kept = (0.0, 1 - lr * weight_decay) if decoupled else (weight_decay, 1.0)
    shares = 1 - first, second, 1 - second  # not subtracted in float32
    _by_rows(_adam_rows, matrices, rows, gradient, *shares, size, root, eps, decay, kept)


def sgd(
    matrices: Sequence[Tensor],
    rows: Tensor,
    gradient: Tensor,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """A step of SGD with momentum for some rows, as in torch's optimiser.

    Args:
        matrices: float32 `[n, width]`: weight and momentum.
        rows, gradient: See `adam`.
        lr, momentum, weight_decay: See `torch.optim.SGD`.
    """
    _by_rows(_sgd_rows, matrices, rows, gradient, lr, momentum, weight_decay)


def is_possible(weight: Tensor) -> bool:
    """Whether the functions above take rows of this weight, and Numba's kernels are chosen."""
    is_here = weight.device.type == "cpu" and weight.dtype == torch.float32
    return is_here and selected("cpu").kernels == "numba"


def _by_rows(
    kernel: Callable[..., None],
    matrices: Sequence[Tensor],
    rows: Tensor,
    gradient: Tensor,
    *numbers: float,
) -> None:
    arrays: list[npt.NDArray[Any]] = [matrix.detach().numpy() for matrix in matrices]
    arrays += [rows.numpy(), gradient.contiguous().numpy()]
    given = [Float32(number) for number in numbers]  # or Numba would compute in float64
    by_rows(len(rows), 0, lambda start, stop: kernel(*arrays, *given, start, stop))


@jit
def _adam_rows(
    weight: Float32Array,
    first: Float32Array,
    second: Float32Array,
    rows: Int64Array,
    gradient: Float32Array,
    new_1: Float32,
    old_2: Float32,
    new_2: Float32,
    size: Float32,
    root: Float32,
    eps: Float32,
    decay: Float32,
    kept: Float32,
    start: int,
    stop: int,
) -> None:
    for i in range(start, stop):
        row = rows[i]
        for c in range(weight.shape[1]):
            own = weight[row, c] * kept
            g = gradient[i, c] + decay * own
            m = first[row, c] + new_1 * (g - first[row, c])
            v = old_2 * second[row, c] + new_2 * g * g
            first[row, c] = m
            second[row, c] = v
            weight[row, c] = own - size * m / (np.sqrt(v) / root + eps)


@jit
def _sgd_rows(
    weight: Float32Array,
    moment: Float32Array,
    rows: Int64Array,
    gradient: Float32Array,
    lr: Float32,
    momentum: Float32,
    decay: Float32,
    start: int,
    stop: int,
) -> None:
    for i in range(start, stop):
        row = rows[i]
        for c in range(weight.shape[1]):
            g = gradient[i, c] + decay * weight[row, c]
            m = momentum * moment[row, c] + g
            moment[row, c] = m
            weight[row, c] -= lr * m
