"""A model, not a measurement: the time of a step on many machines over networks of several speeds.

    python -m scripts.bench.machines_model --scale 1

The bytes are computed from batches that such a run would have (`scripts.bench.crossing`). Beside
them the model knows the seconds in which a machine computes a step, the network's rate, and that
batches are made ahead: what they ask for crosses the network while the step before computes, the
gradients after it.

    step = max(compute, bytes in / rate) + 2 (M - 1) / M × bytes of the gradients / rate

It leaves out latency, congestion and the work of answering, so that it tells where the network
limits a run, not how fast the run is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from gnntrain.app import compose_config
from gnntrain.data.partitioned_graph import METHODS
from gnntrain.data.partitioning.assign import assign
from gnntrain.data.store import StoredGraph
from gnntrain.run import prepare_store
from scripts.bench.crossing import Batches, Traffic
from scripts.bench.machines import graph_overrides, mean_traffic, range_owners

_NUM_RANKS = 2
"""Ranks whose batches are drawn; the others' are alike."""


@dataclass(frozen=True)
class Modelled:
    """A way to hold the graph on a number of machines, each with one rank.

    Attributes:
        graph: `sharded`, or `partitioned` with the method.
        machines: Number of machines.
        traffic: What a rank asks of other machines in a step.
        gradients: Bytes of all gradients.
        row_bytes: Bytes of a feature row.
    """

    graph: str
    machines: int
    traffic: Traffic
    gradients: int
    row_bytes: int

    def step(self, compute: float, gigabits: float) -> float:
        """Seconds of a step.

        Args:
            compute: Seconds in which a machine computes a step.
            gigabits: Rate of a machine's network a second, in each direction.
        """
        rate = gigabits * 1e9 / 8
        reduced = 2 * (self.machines - 1) / self.machines * self.gradients
        return max(compute, self.traffic.bytes(self.row_bytes) / rate) + reduced / rate


def model(options: argparse.Namespace, graph: StoredGraph) -> list[Modelled]:
    row_bytes = graph.features.nbytes // graph.num_nodes
    found = []
    for machines in options.machines:
        owners = {"sharded": range_owners(graph.num_nodes, machines)}
        for method in options.methods:
            owners[f"partitioned, {method}"] = assign(graph, machines, method).astype(np.int16)
        batches = Batches(graph, options.fan_outs, options.batch_size, machines)
        for name, owner in owners.items():
            asked = mean_traffic(
                batches,
                owner,
                machine_of=range(_NUM_RANKS),
                cached_rows=round(options.cache_ratio * graph.num_nodes),
                steps=range(min(options.steps, batches.num_steps)),
                edges_are_local=name == "sharded",
            )
            gradients = _gradients(graph, options)
            found.append(Modelled(name, machines, asked, gradients, row_bytes))
    return found


def _gradients(graph: StoredGraph, options: argparse.Namespace) -> int:
    """Bytes of GraphSAGE's gradients: two matrices and a bias a layer, float32."""
    hidden = [options.hidden] * (len(options.fan_outs) - 1)
    widths = [graph.num_features, *hidden, graph.num_classes]
    return sum(4 * (2 * a * b + b) for a, b in pairwise(widths))


def table(found: Sequence[Modelled], options: argparse.Namespace) -> Table:
    shown = Table(title="A model, not a measurement", title_justify="left")
    for heading in ("", "machines", "MB in a step", "cache"):
        shown.add_column(heading, justify="right" if heading else "left")
    for compute in options.compute:
        for rate in options.gigabits:
            shown.add_column(f"{compute:g} s, {rate:g} Gbit/s", justify="right")
    for one in found:
        size = one.traffic.bytes(one.row_bytes) / 1e6
        steps = (one.step(c, rate) for c in options.compute for rate in options.gigabits)
        cells = (f"{size:.1f}", f"{one.traffic.hit_rate():.2f}", *(f"{s:.4f}" for s in steps))
        shown.add_row(one.graph, str(one.machines), *cells)
    return shown


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.machines_model", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--machines", nargs="+", type=int, default=[8, 16, 64])
    parser.add_argument("--gigabits", nargs="+", type=float, default=[25, 100, 400])
    parser.add_argument(
        "--compute", nargs="+", type=float, default=[0.5, 0.01], help="seconds of a step"
    )
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=["streaming", "random"])
    parser.add_argument("--scale", type=float, default=1.0, help="how much smaller than products")
    parser.add_argument("--steps", type=int, default=3, help="of which the mean is taken")
    parser.add_argument("--batch-size", type=int, default=1024, help="seeds a machine")
    parser.add_argument("--fan-outs", nargs="+", type=int, default=[15, 10, 5])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--cache-ratio", type=float, default=0.1, help="of all feature rows")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    graph = prepare_store(compose_config(graph_overrides(options.scale)).config.dataset).store
    found = model(options, graph)
    Console(width=200).print(table(found, options))
    if options.json is not None:
        rows: list[dict[str, Any]] = [asdict(one) for one in found]
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
