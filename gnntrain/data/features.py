"""Features as they are stored: normalised, rounded to their type, checked, some MiB at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gnntrain.data.checks import bad_graph, feature_problems, wrong_values
from gnntrain.data.graph import AnyArray, FeatureDtype, Float32Array, NodeData

_CHUNK_BYTES = 1 << 23


def lowest_feature(nodes: NodeData, dataset: str) -> float:
    """The smallest value of all features, which `normalize_features` subtracts; 0 without any."""
    lowest = []
    for _, rows in _chunks(nodes, dataset, ""):
        finite = rows[np.isfinite(rows)]  # others are refused when they are stored
        lowest += [float(finite.min())] if finite.size else []
    return min(lowest, default=0.0)


def prepared_features(
    nodes: NodeData, dtype: FeatureDtype, lowest: float | None, dataset: str, where: str = ""
) -> Iterator[AnyArray]:
    """The features as they are stored, some MiB at a time; UserError, whose problems begin with
    `where`, for a value that is no finite number or does not fit into the type. `lowest` is
    subtracted before each row is divided by its sum; None: neither is done."""

    def stored(rows: AnyArray) -> AnyArray:
        with np.errstate(over="ignore", invalid="ignore"):
            values = rows.astype(np.float32, copy=False)
            if lowest is not None:
                values = values - np.float32(lowest)
                values /= np.maximum(values.sum(axis=1, keepdims=True), 1)
            return encoded(values, dtype)

    for start, rows in _chunks(nodes, dataset, where):
        result = stored(rows)
        if _is_not_finite(result, dtype).any():
            problems = [*feature_problems(rows, start)] or wrong_values(
                rows,
                lambda some: _is_not_finite(stored(some), dtype),
                f"features do not fit in {dtype}",
                "node",
                start,
            )
            raise bad_graph(dataset, [f"{where}{problem}" for problem in problems])
        yield result


def encoded(values: Float32Array, dtype: str) -> AnyArray:
    """Features as they are stored: NumPy has no bfloat16, its bits are those of a uint16."""
    if dtype != "bfloat16":
        return values.astype(dtype, copy=False)
    import torch  # rounds to nearest even

    bits: AnyArray = torch.tensor(values).bfloat16().view(torch.uint16).numpy()
    return bits


def _is_not_finite(stored: AnyArray, dtype: str) -> AnyArray:
    if dtype == "bfloat16":
        return np.asarray((stored & np.uint16(0x7FFF)) >= np.uint16(0x7F80))
    return ~np.isfinite(stored)


def _chunks(nodes: NodeData, dataset: str, where: str) -> Iterator[tuple[int, AnyArray]]:
    num_features = nodes.num_features
    step = max(1, _CHUNK_BYTES // max(1, 4 * num_features))
    for start in range(0, nodes.num_nodes, step):
        stop = min(start + step, nodes.num_nodes)
        rows = nodes.rows(start, stop)
        if rows.shape != (stop - start, num_features):
            expected = [stop - start, num_features]
            problem = f"{where}features of nodes {start} … {stop - 1} have shape {list(rows.shape)}"
            raise bad_graph(dataset, [f"{problem}, expected {expected}"])
        yield start, rows
