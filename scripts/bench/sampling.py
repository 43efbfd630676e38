"""How many mini-batches a second the CPU sampler draws, next to PyG's where that is installed.

    python -m scripts.bench.sampling
    python -m scripts.bench.sampling --graphs reddit --threads 1 --rounds 20 --json sampling.json

All contestants take turns on the same graph and seed nodes, so that a disturbance of the machine
hits them alike; figures are medians over the rounds, with quartiles.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch_geometric.typing
from torch_geometric.data import Data
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

from gnntrain.sampling.base import Int64Array, SampledSubgraph, SampleKey
from gnntrain.sampling.cpu import CPUNeighborSampler

Draw = Callable[[int, Int64Array], int]
"""Samples one batch (its number, its seed nodes); returns how many edges it drew."""

NUM_OURS = 2


@dataclass(frozen=True)
class GraphShape:
    num_nodes: int
    num_edges: int
    fan_outs: tuple[int, ...]
    spread: float = 1.3
    """Standard deviation of the logarithm of the degrees."""


GRAPHS = {
    "reddit": GraphShape(232_965, 114_615_892, (25, 10)),
    "products": GraphShape(2_449_029, 123_718_280, (15, 10, 5)),
}


@dataclass(frozen=True)
class Result:
    graph: str
    fan_outs: tuple[int, ...]
    threads: int
    sampler: str
    edges_per_batch: int
    batches_per_s: float
    """Median over the rounds."""
    lower_quartile: float
    upper_quartile: float
    ratio: float | None
    """Median over the rounds of batches/s over PyG's in the same round; None: PyG's is absent."""


def main() -> None:
    options = parse_options()
    results = []
    for name in options.graphs:
        graph = random_graph(GRAPHS[name])
        contestants = dict(all_contestants(*graph, GRAPHS[name].fan_outs))
        for threads in options.threads:
            for result in compete(name, contestants, len(graph[0]) - 1, threads, options):
                print(line(result), flush=True)
                results.append(result)
    if options.json is not None:
        report = {"machine": machine(), "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--graphs", nargs="+", choices=list(GRAPHS), default=list(GRAPHS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batches", type=int, default=8, help="a round, for each contestant")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


def random_graph(shape: GraphShape) -> tuple[Int64Array, npt.NDArray[np.int32]]:
    """An in-neighbour CSC with log-normal degrees; sources are drawn by degree too."""
    rng = np.random.default_rng(0)
    weight = rng.lognormal(0.0, shape.spread, shape.num_nodes)
    ends = np.cumsum(weight) * (shape.num_edges / weight.sum())
    indptr = np.zeros(shape.num_nodes + 1, np.int64)
    indptr[1:] = np.round(ends)
    stubs = np.repeat(np.arange(shape.num_nodes, dtype=np.int32), np.diff(indptr))
    indices = np.empty(shape.num_edges, np.int32)
    for part in np.array_split(indices, 64):
        part[:] = stubs[rng.integers(0, len(stubs), len(part))]
    return indptr, indices


def all_contestants(
    indptr: Int64Array, indices: npt.NDArray[np.int32], fan_outs: Sequence[int]
) -> Iterator[tuple[str, Draw]]:
    """Ours in both modes, then PyG's if it can be had."""
    every_hop = CPUNeighborSampler(indptr, indices, fan_outs)
    yield "gnntrain", ours(every_hop, lambda drawn: sum(hop.num_edges for hop in drawn.hops))
    frontier = CPUNeighborSampler(indptr, indices, fan_outs, frontier_only=True)
    yield "gnntrain, PyG's way", ours(frontier, lambda drawn: drawn.hops[-1].num_edges)
    typing = torch_geometric.typing
    if typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE:
        yield (
            "pyg-lib" if typing.WITH_PYG_LIB else "torch-sparse",
            pygs(indptr, indices, fan_outs),
        )


def ours(sampler: CPUNeighborSampler, num_drawn: Callable[[SampledSubgraph], int]) -> Draw:
    def draw(number: int, seeds: Int64Array) -> int:
        return num_drawn(sampler.sample(seeds, key=SampleKey(0, 0, number)))

    return draw


def pygs(indptr: Int64Array, indices: npt.NDArray[np.int32], fan_outs: Sequence[int]) -> Draw:
    no_edges = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=len(indptr) - 1)
    sampler = NeighborSampler(no_edges, list(fan_outs))
    sampler.colptr = torch.from_numpy(indptr)
    sampler.row = torch.from_numpy(indices.astype(np.int64))
    sampler.perm = None

    def draw(_: int, seeds: Int64Array) -> int:
        out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.from_numpy(seeds)))
        return int(out.row.numel())

    return draw


def compete(
    graph: str,
    contestants: dict[str, Draw],
    num_nodes: int,
    threads: int,
    options: argparse.Namespace,
) -> Iterator[Result]:
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    edges: dict[str, int] = {}
    rng = np.random.default_rng(1)
    with ThreadPoolExecutor(threads) as pool:
        for round_number in range(-1, options.rounds):
            seeds = [
                rng.choice(num_nodes, options.batch_size, replace=False)
                for _ in range(options.batches * threads)
            ]
            numbers = range(len(seeds))
            for name, draw in contestants.items():
                began = time.perf_counter()
                drawn = list(pool.map(draw, numbers, seeds))
                seconds = time.perf_counter() - began
                if round_number >= 0:
                    rates[name].append(len(seeds) / seconds)
                    edges[name] = sum(drawn) // len(drawn)
    peer = rates[next(reversed(rates))] if len(rates) > NUM_OURS else []
    for name, values in rates.items():
        lower, median, upper = statistics.quantiles(values, n=4)
        ratios = [own / peers for own, peers in zip(values, peer, strict=False)]
        yield Result(
            graph=graph,
            fan_outs=GRAPHS[graph].fan_outs,
            threads=threads,
            sampler=name,
            edges_per_batch=edges[name],
            batches_per_s=median,
            lower_quartile=lower,
            upper_quartile=upper,
            ratio=statistics.median(ratios) if ratios else None,
        )


def line(result: Result) -> str:
    fan_outs = "-".join(map(str, result.fan_outs))
    ratio = "" if result.ratio is None else f"  {result.ratio:5.2f} x PyG's"
    return (
        f"{result.graph:9}{fan_outs:9}{result.threads} thread{'s' * (result.threads > 1):2}"
        f"{result.sampler:21}{result.edges_per_batch:9,} edges/batch {result.batches_per_s:7.1f} "
        f"batches/s ({result.lower_quartile:.1f} to {result.upper_quartile:.1f}){ratio}"
    )


def machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    models = [
        row.partition(":")[2].strip()
        for row in (cpuinfo.read_text().splitlines() if cpuinfo.exists() else [])
        if row.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.processor(),
        "num_cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("numpy", "numba", "torch")},
    }


if __name__ == "__main__":
    main()
