"""Plans and reports of small runs."""

from __future__ import annotations

import json
from pathlib import Path

from gnntrain.app import compose_config
from gnntrain.compute.selection import CPU_KERNELS
from gnntrain.config import Config
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.planning import dry_run
from gnntrain.planning.dry_run import Report
from gnntrain.planning.plan import Plan
from gnntrain.run_store import prepare_store

MIB, GIB = 2**20, 2**30


def opened(overrides: list[str]) -> tuple[Config, StoredGraph]:
    config = compose_config(overrides, for_here=False)
    return config, prepare_store(config.dataset).store


def report_of(overrides: list[str], folder: Path) -> Report:
    """The dry run of a single rank, in this process."""
    config, graph = opened(overrides)
    dry_run.run_rank(DistributedContext(), (config, graph.path, folder, CPU_KERNELS))
    (report,) = json.loads((folder / dry_run.ANSWER).read_bytes())
    return dict(report)


def batch_of(num_seeds: int, num_nodes: int, num_edges: list[int], *num_bytes: int) -> Report:
    names = ("num_seeds", "num_nodes", "num_edges", "bytes_read", "row_gradient_bytes")
    return dict(zip(names, (num_seeds, num_nodes, num_edges, *num_bytes), strict=True))


def plan_of(overrides: list[str], *, ranks: int = 1, shared: int = 0, **changes: object) -> Plan:
    """The plan from a report that is made up."""
    config, graph = opened(overrides)
    report: Report = {
        "num_parameters": 1000,
        "num_dense": 1000,
        "batches": [
            batch_of(40, 200, [100, 300], 128_000, 0),
            batch_of(20, 100, [50, 150], 64_000, 0),
        ],
        "steps": [0.1, 0.2, 0.3],
        "evaluation": 3.5,
        "training_bytes": 400 * MIB,
        "peak_bytes": 500 * MIB,
        "mapped_bytes": 100 * MIB,
        "shared_bytes": shared,
        "disk_bytes": 0,
        "gpu_bytes": 0,
        "checkpoint_bytes": MIB,
        "placement": [],
        "kernels": "Numba's kernels",
    }
    return Plan(config, graph, "opened", LaunchPlan.of(config), [report | changes] * ranks)
