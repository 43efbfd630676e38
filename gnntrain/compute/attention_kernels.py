"""The compiled inner loops over the scores of in-edges: the softmax.

Scores are float32 or float64; sums are kept in float64. An array of length 0 stands for None.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnntrain.jit import jit

Array = npt.NDArray[Any]


@jit
def softmax_rows(
    score: Array,
    target: Array,
    slope: float,
    loop: Array,
    own: int,
    indptr: Array,
    indices: Array,
    start: int,
    stop: int,
    alpha: Array,
    second: Array,
) -> None:
    """The softmax of the destinations `start … stop − 1`; see `ops.SCHEMAS`.

    Args:
        score: `[num_edges, H]`; with a `target` `[num_src, H]`.
        target: `[num_dst, H]` or empty: the score of an edge is leaky_relu(score[u] + target[v]).
        slope: Of the leaky ReLU below zero.
        loop: `[num_dst, H]` or empty: the score of an extra loop; the edge from source `own + v`
            is left out.
        own: Source number of destination 0.
        alpha: `[num_edges, H]`, the result.
        second: `[num_dst, H]`, the loops' weights; without loops log Σ exp(score).
    """
    by_node, has_loops, heads = len(target) > 0, len(loop) > 0, alpha.shape[1]
    number = alpha.dtype.type
    top, total, least = np.empty(heads, alpha.dtype), np.empty(heads), number(-np.inf)
    for v in range(start, stop):
        first: Any = np.int64(indptr[v])
        last: Any = np.int64(indptr[v + 1])
        for h in range(heads):
            top[h] = loop[v, h] if has_loops else least
        for e in range(first, last):
            u = np.int64(indices[e])
            is_skipped = has_loops and u == own + v
            for h in range(heads):
                value = score[u, h] + target[v, h] if by_node else score[e, h]
                if by_node and value < 0:
                    value = number(value * slope)
                value = least if is_skipped else value
                alpha[e, h] = value
                top[h] = max(top[h], value)
        for h in range(heads):
            total[h] = np.exp(loop[v, h] - top[h]) if has_loops else 0.0
        for e in range(first, last):
            for h in range(heads):
                weight = np.exp(alpha[e, h] - top[h])
                alpha[e, h] = weight
                total[h] += weight
        for e in range(first, last):
            for h in range(heads):
                alpha[e, h] = number(alpha[e, h] / total[h])
        for h in range(heads):
            if has_loops:
                second[v, h] = number(np.exp(loop[v, h] - top[h]) / total[h])
            else:
                second[v, h] = number(top[h] + np.log(total[h]))
