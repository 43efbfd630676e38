"""What the machine could do at best: its rates, and what a training step asks of it.

The floor of a step is the time of its matrix products at the machine's best rate, plus the time
to read every row that a layer aggregates, and those of its destinations, at the rate of random
rows: once forward, and behind the innermost layer once backward, as gradients. Everything else a
step does is left out: no step can be faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from gnntrain.data.graph import EDGE, NODE, Int64Array
from gnntrain.data.store import StoredGraph
from gnntrain.jit import jit
from gnntrain.loading.loader import SeedPlan
from gnntrain.run import prepare_store
from gnntrain.sampling.base import NO_TARGETS, SampleKey, Seeds
from gnntrain.sampling.block import Block
from gnntrain.sampling.cpu import CPUSampler
from scripts.bench.peers.ours import config_of
from scripts.bench.peers.turns import Spec, Turns, compete

_NUM_BATCHES = 4
_NUM_TRIALS = 7
_SQUARE = 3072
_NUM_ROWS = 1 << 18


@dataclass(frozen=True)
class Work:
    """What a step asks for: means over a few batches.

    Attributes:
        num_dst: Destinations of the innermost layer.
        flops: Of all matrix products, forward and backward.
        num_bytes: Of the rows that are read: features, activations and gradients.
    """

    num_dst: int
    flops: float
    num_bytes: float


def work_of(
    blocks: Sequence[Block], widths: Sequence[int], feature_bytes: int, activation_bytes: int
) -> Work:
    """A SAGE step's work over the layers' blocks, the innermost layer first.

    Two maps a layer, applied to the destinations alone. The backward pass multiplies once for the
    weights and, but for the innermost layer, once for the input, and reads that one's gradient for
    every edge. The numbers of features and activations have so many bytes.
    """
    flops = num_bytes = 0.0
    for layer, (block, (before, after)) in enumerate(zip(blocks, pairwise(widths), strict=True)):
        is_innermost = layer == 0
        flops += (2 if is_innermost else 3) * 2 * (2 * block.num_dst * before * after)
        numbers = (block.num_edges + block.num_dst) * before
        num_bytes += numbers * (feature_bytes if is_innermost else 2 * activation_bytes)
    return Work(blocks[0].num_dst, flops, num_bytes)


def mean_work(spec: Spec, store: StoredGraph) -> Work:
    sampler = CPUSampler(store.fused, {EDGE: tuple(spec.fan_outs)})
    plan = SeedPlan(store.split("train"), spec.batch_size)
    order = plan.order(1)
    layers = len(spec.fan_outs)
    widths = [store.num_features, *[spec.hidden] * (layers - 1), store.num_outputs]
    sizes = store.target_nodes.features.itemsize, 2 if spec.precision == "bf16" else 4
    works = []
    for step in range(min(_NUM_BATCHES, plan.num_steps)):
        seeds = torch.from_numpy(plan.rank_batch(order, step).seeds)
        drawn = sampler.sample(Seeds({NODE: seeds}, NO_TARGETS), SampleKey(0, 1, step))
        works.append(work_of([hop.edges[EDGE] for hop in drawn.hops], widths, *sizes))
    num_dst, flops, num_bytes = np.mean([(w.num_dst, w.flops, w.num_bytes) for w in works], axis=0)
    return Work(int(num_dst), float(flops), float(num_bytes))


def gemm_rates(num_dst: int, spec: Spec, num_features: int) -> dict[str, float]:
    """FLOP/s of the innermost layer's products and of a large square one."""
    dtype = torch.bfloat16 if spec.precision == "bf16" else torch.float32
    rows = torch.randn(num_dst, num_features, dtype=dtype)
    weight = torch.randn(spec.hidden, num_features, dtype=dtype)
    grad = torch.randn(num_dst, spec.hidden, dtype=dtype)
    square = torch.randn(_SQUARE, _SQUARE, dtype=dtype)
    flops = 2.0 * num_dst * num_features * spec.hidden
    return {
        "forward": flops / _best(lambda: rows @ weight.t()),
        "weight_gradient": flops / _best(lambda: grad.t() @ rows),
        "square": 2.0 * _SQUARE**3 / _best(lambda: square @ square),
    }


def row_bandwidth(store: StoredGraph, threads: int) -> float:
    """Bytes/s of summing random feature rows, read where they lie."""
    table = store.target_nodes.features
    words = table.view(np.uint16) if table.itemsize == 2 else table
    rng = np.random.default_rng(0)
    parts = np.array_split(rng.integers(0, store.num_nodes, _NUM_ROWS), threads)
    with ThreadPoolExecutor(threads) as pool:
        seconds = _best(lambda: list(pool.map(lambda part: _sum_rows(words, part), parts)))
    return float(_NUM_ROWS * store.num_features * table.itemsize / seconds)


@jit
def _sum_rows(table: npt.NDArray[np.generic], rows: Int64Array) -> npt.NDArray[np.float32]:
    """Eight rows at a time, so that as many cache misses overlap."""
    total = np.zeros(table.shape[1], np.float32)
    for i in range(0, len(rows) - 7, 8):
        a, b, c, d = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
        e, f, g, h = rows[i + 4], rows[i + 5], rows[i + 6], rows[i + 7]
        for j in range(table.shape[1]):
            left = (table[a, j] + table[b, j]) + (table[c, j] + table[d, j])
            right = (table[e, j] + table[f, j]) + (table[g, j] + table[h, j])
            total[j] += left + right
    return total


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of several calls."""
    seconds = []
    for _ in range(_NUM_TRIALS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _run(turns: Turns) -> None:
    spec = turns.spec
    torch.set_num_threads(spec.threads)
    store = prepare_store(config_of(spec).dataset).store
    work = mean_work(spec, store)
    gemm = gemm_rates(work.num_dst, spec, store.num_features)
    bandwidth = row_bandwidth(store, spec.threads)
    seconds = work.flops / max(gemm.values()) + work.num_bytes / bandwidth
    turns.say(
        {
            "num_dst": work.num_dst,
            "flops": work.flops,
            "bytes": work.num_bytes,
            "gemm_flops_per_s": gemm,
            "random_rows_bytes_per_s": bandwidth,
            "floor_s": seconds,
        }
    )


if __name__ == "__main__":
    compete(_run)
