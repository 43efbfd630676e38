"""How fast a run is over several machines, and how many bytes they send each other.

    python -m scripts.bench.machines --json docs/benchmarks/machines.json
    python -m scripts.bench.machines --machines 2 --scale 40 --rounds 1     # tries the benchmark

The machines are network namespaces of this one (`scripts.cluster.machines`), which share its cores:
a run over several is compared with one machine that has as many ranks. Every round each contestant
trains once, in turns; medians and quartiles are over the rounds. Bytes are counted by the network
devices, by the program, and computed from the batches.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from gnntrain.app import compose_config
from gnntrain.data.graph import EDGE, NODE
from gnntrain.data.partitioned_graph import METHODS, PartitionedGraph
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import rank_range
from gnntrain.loading.loader import SeedPlan
from gnntrain.loading.read_counts import most_read
from gnntrain.reporting.environment import describe_environment
from gnntrain.run import prepare_store
from gnntrain.sampling.base import NO_TARGETS, SampleKey, Seeds
from gnntrain.sampling.block import Sample
from gnntrain.sampling.cpu import CPUSampler
from gnntrain.startup import VARIABLES
from scripts.bench.machine_rank import FOLDER
from scripts.bench.sitting import Spread
from scripts.cluster.machines import Failed, Machines

ONE = "one machine"

_ROOT = Path(__file__).parents[2]
_PRODUCTS = {"num_nodes": 2_449_029, "num_edges": 123_718_280, "num_train": 196_615}
_WARM_UP = 4
_SECONDS = 1800.0
_ID_BYTES, _COUNT_BYTES = 4, 1


@dataclass(frozen=True)
class Contestant:
    """A way to train.

    Attributes:
        name: For the table.
        machines: Number of machines.
        ranks: Ranks a machine.
        overrides: What the command line has beside what all have.
        parts: Folder of the parts; None: the graph is not partitioned.
        method: How it was partitioned.
        servers: Machines that only hold the graph, with one rank each.
    """

    name: str
    machines: int
    ranks: int = 1
    overrides: tuple[str, ...] = ()
    parts: Path | None = None
    method: str = ""
    servers: int = 0

    @property
    def trainers(self) -> int:
        return self.machines * self.ranks - self.servers

    @property
    def owners(self) -> int:
        """Machines that hold the graph."""
        return self.servers or self.machines


@dataclass(frozen=True)
class Traffic:
    """What a training rank asks of other machines in a step, on average, computed from its batches.

    A rank draws in each hop for all nodes that it knows. For those of another machine it sends an
    id and gets a count and the sources; for each node of another machine that is not in the cache
    it sends an id and gets a feature row.

    Attributes:
        ids: Destinations that another machine draws for, over all hops.
        edges: Edges that they get.
        rows: Nodes whose features come from another machine.
        remote: Nodes of another machine: those of `rows`, and those in the cache.
        row_size: Bytes of a feature row.
    """

    ids: float
    edges: float
    rows: float
    remote: float
    row_size: int

    @property
    def bytes(self) -> tuple[float, float, float]:
        """Of ids, of edges with their counts, of rows."""
        drawn = _ID_BYTES * self.edges + _COUNT_BYTES * self.ids
        return _ID_BYTES * (self.ids + self.rows), drawn, self.row_size * self.rows


@dataclass
class Measured:
    """What a contestant's runs have given.

    Attributes:
        contestant: Who.
        must: What its ranks must send; None: nothing but gradients.
        seconds: Of a step, by round.
        sent: Bytes a step and training rank that the network devices of all machines sent.
        batches: Batches that a loader made in a step, on average: 1 but for those ahead at the end.
        arrays: Calls, and bytes of their arrays, a batch, by name and direction.
        hit_rate: Share of the rows of other machines from the cache, as the run reports it.
        time: Rank 0's seconds a step by phase, of the last round.
        absent: Why there is nothing else; empty: there is.
    """

    contestant: Contestant
    must: Traffic | None
    seconds: list[float] = field(default_factory=list)
    sent: float = 0
    batches: float = 1
    arrays: dict[str, float] = field(default_factory=dict)
    hit_rate: float | None = None
    time: dict[str, float] = field(default_factory=dict)
    absent: str = ""


def contestants(num: int, options: argparse.Namespace, folder: Path) -> list[Contestant]:
    """One machine with as many ranks first, then every way to hold the graph on `num` machines."""
    cache = f"features.cache_ratio={options.cache_ratio:g}"

    def in_parts(name: str, machines: int, method: str, *more: str, servers: int = 0) -> Contestant:
        parts = folder / f"parts-{num}-{method}"
        where = ("distributed.graph=partitioned", f"distributed.parts={parts}", cache, *more)
        return Contestant(name, machines, 1, where, parts, method, servers)

    every = [
        Contestant(ONE, 1, num),
        Contestant("replicated", num),
        Contestant("sharded", num, 1, ("distributed.graph=sharded", cache)),
        *(in_parts(f"partitioned, {method}", num, method) for method in METHODS),
        in_parts("servers, metis", 2 * num, "metis", f"distributed.servers={num}", servers=num),
    ]
    return [
        one for one in every if not options.only or one.name in (ONE, "replicated", *options.only)
    ]


def graph_overrides(scale: float) -> list[str]:
    """A graph shaped as ogbn-products, `scale` times smaller."""
    sizes = {name: round(size / scale) // 2 * 2 for name, size in _PRODUCTS.items()}
    validation = ["dataset.num_val=1000", "dataset.num_test=1000"]
    return [
        "dataset=synthetic_products",
        *(f"dataset.{name}={size}" for name, size in sizes.items()),
        *validation,
    ]


def command(options: argparse.Namespace, contestant: Contestant, steps: int) -> list[str]:
    """The words of a contestant's command line."""
    return [
        *graph_overrides(options.scale),
        "model=sage",
        "model.hidden_channels=256",
        f"model.num_layers={len(options.fan_outs)}",
        "model.dropout=0",
        f"sampler.fan_outs=[{','.join(map(str, options.fan_outs))}]",
        "sampler.threads=1",
        f"trainer.batch_size={options.batch_size}",
        f"trainer.max_steps={steps}",
        "trainer.epochs=1",
        "features.presample_epochs=1",
        "trainer.gpus=0",
        "distributed.threads=1",
        "evaluation=sampled",
        "evaluation.max_steps=1",
        "evaluation.fan_outs=[" + ",".join("1" for _ in options.fan_outs) + "]",
        *contestant.overrides,
        *options.overrides,
    ]


def train(contestant: Contestant, words: Sequence[str]) -> dict[str, Any]:
    """One run; what its ranks and the network devices have counted.

    Raises:
        Failed: It has failed.
    """
    count = contestant.machines
    with Machines(count) as machines, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={count}"]
        torchrun += [f"--nproc-per-node={contestant.ranks}", "--rdzv-backend=c10d"]
        torchrun += ["--rdzv-endpoint=machine0:29500", "-m", "scripts.bench.machine_rank"]
        env = {**VARIABLES, **os.environ, FOLDER: name, "PYTHONPATH": str(_ROOT)}
        machines.run(
            {machine: [*torchrun, *words, f"run.dir={folder}/run"] for machine in range(count)},
            folder=folder,
            env=dict.fromkeys(range(count), env),
            seconds=_SECONDS,
        )
        (line,) = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        calls: Counter[str] = Counter()
        for file in folder.glob("calls-*.json"):
            calls.update(json.loads(file.read_text()))
        return {
            "record": json.loads(line),
            "ends": json.loads((folder / "steps.json").read_text()),
            "sent": sum(machines.bytes_sent(m) for m in range(count)),
            "calls": calls,
        }


def measure_round(
    measured: Measured, options: argparse.Namespace, console: Console, number: int
) -> None:
    contestant, steps = measured.contestant, _WARM_UP + options.steps
    try:
        run = train(contestant, command(options, contestant, steps))
        if number == 0:
            # All but the steps that the longer run has more is the same in both.
            shorter = train(contestant, command(options, contestant, _WARM_UP))
            counted = options.steps * contestant.trainers
            measured.sent = (run["sent"] - shorter["sent"]) / counted
            more, less = run["calls"], shorter["calls"]
            # A batch asks for its rows once. Loaders are ahead of the last step by one or two.
            batches = more["rows/node calls"] - less["rows/node calls"] or counted
            measured.batches = batches / counted
            measured.arrays = {name: (more[name] - less[name]) / batches for name in sorted(more)}
    except Failed as error:
        lines = str(error).splitlines()
        told = [line for line in lines if line.startswith("gnntrain: ")]
        measured.absent = (told or lines)[0]
        console.print(str(error), markup=False, highlight=False)
        return
    ends, record = run["ends"], run["record"]
    measured.seconds.append((ends[-1] - ends[_WARM_UP - 1]) / options.steps)
    measured.time = {name: seconds / steps for name, seconds in record.get("time", {}).items()}
    measured.hit_rate = record.get("cache_hit_rate")
    step = measured.seconds[-1]
    console.print(f"round {number}, {contestant.name}: {step:.3f} s a step", highlight=False)


def traffic(
    contestant: Contestant, options: argparse.Namespace, graph: StoredGraph
) -> Traffic | None:
    """What a contestant's ranks must send beside gradients, see `Traffic`."""
    num_nodes, trainers = graph.num_nodes, contestant.trainers
    owner = np.empty(num_nodes, np.int16)
    if contestant.parts is not None:
        for number, part in enumerate(PartitionedGraph.open(contestant.parts).opened):
            owner[part.originals[NODE]] = number
    elif "distributed.graph=sharded" in contestant.overrides:
        for number in range(trainers):
            owner[rank_range(num_nodes, number, trainers)] = number
    else:
        return None
    sampler = CPUSampler(graph.fused, {EDGE: tuple(options.fan_outs)})
    total = np.zeros(4)
    for rank in range(trainers):
        plan = SeedPlan(graph.split("train"), options.batch_size, rank, trainers, seed=0)

        def batch(step: int, plan: SeedPlan = plan) -> Sample:
            seeds = torch.from_numpy(plan.rank_batch(plan.order(1), step).seeds)
            return sampler.sample(Seeds({NODE: seeds}, NO_TARGETS), SampleKey(0, 1, step))

        # With servers no trainer holds anything: their owners have other numbers.
        is_remote = owner != (-1 if contestant.servers else rank)
        # The cache has the remote rows that the epoch's batches read most.
        counts = np.zeros(num_nodes, np.int64)
        for step in range(plan.num_steps):
            counts[batch(step).nodes[NODE].numpy()] += 1  # a batch has each node once
        counts[~is_remote] = 0
        cached = most_read(counts, round(options.cache_ratio * num_nodes))
        is_fetched = is_remote.copy()
        is_fetched[cached[counts[cached] > 0]] = False
        for step in range(_WARM_UP, _WARM_UP + options.steps):
            drawn = batch(step)
            nodes = drawn.nodes[NODE].numpy()
            for hop in drawn.hops if contestant.parts is not None else ():
                block = hop.edges[EDGE]
                asked = is_remote[nodes[: block.num_dst]]
                total[:2] += asked.sum(), block.indptr.diff().numpy()[asked].sum()
            total[2:] += is_fetched[nodes].sum(), is_remote[nodes].sum()
    ids, edges, rows, remote = (total / (options.steps * trainers)).tolist()
    return Traffic(ids, edges, rows, remote, graph.target_nodes.features.nbytes // num_nodes)


def partition(options: argparse.Namespace, contestant: Contestant) -> None:
    """Cut the graph as the contestant wants it, unless that was done before."""
    if contestant.parts is not None and not contestant.parts.is_dir():
        how = ["--method", contestant.method, "--out", str(contestant.parts)]
        words = [*graph_overrides(options.scale), *how, "--parts", str(contestant.owners)]
        subprocess.run([sys.executable, "-m", "gnntrain", "partition", *words], check=True)


def table(results: Sequence[Measured]) -> Table:
    """One line a contestant: its step beside one machine's, and its bytes beside the arithmetic."""
    (one,) = (result for result in results if result.contestant.name == ONE)
    shown = Table(title_justify="left", title=f"{one.contestant.trainers} training ranks")
    shown.add_column("")
    for heading in ("step s", "quartiles", "× one machine", "MB sent", "gradients MB"):
        shown.add_column(heading, justify="right")
    for heading in ("ids MB", "edges MB", "rows MB", "arithmetic", "÷ arithmetic", "cache"):
        shown.add_column(heading, justify="right")
    gradients = next(r.sent for r in results if r.contestant.name == "replicated")
    for result in results:
        cells = ["absent"] if result.absent else _cells(result, one, gradients)
        shown.add_row(result.contestant.name, *cells)
    return shown


def _cells(result: Measured, one: Measured, gradients: float) -> Iterator[str]:
    step = Spread.of(result.seconds)
    ratios = [a / b for a, b in zip(result.seconds, one.seconds, strict=True)]
    yield from (f"{step.median:.3f}", f"{step.lower:.3f} - {step.upper:.3f}")
    yield f"{Spread.of(ratios).median:.2f}"
    yield from _megabytes(result.sent, gradients if result is not one else 0.0)
    if (must := result.must) is None:
        return
    ids = sum(size for name, size in result.arrays.items() if name.endswith(" sent"))
    edges = result.arrays.get("draw received", 0.0)
    yield from _megabytes(ids, edges, result.arrays.get("rows/node received", 0.0))
    yield " + ".join(_megabytes(*must.bytes))
    yield f"{(result.sent - gradients) / (result.batches * sum(must.bytes)):.3f}"
    told = "" if result.hit_rate is None else f" ({result.hit_rate:.3f})"
    yield f"{1 - must.rows / must.remote if must.remote else 1.0:.3f}{told}"


def _megabytes(*sizes: float) -> Iterator[str]:
    yield from (f"{size / 1e6:.2f}" for size in sizes)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.machines", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--machines", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--only", nargs="+", default=[], help="names of contestants; default: all")
    parser.add_argument("--scale", type=float, default=4.0, help="how much smaller than products")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="timed in each run")
    parser.add_argument("--batch-size", type=int, default=1024, help="seeds a rank")
    parser.add_argument("--fan-outs", nargs="+", type=int, default=[15, 10, 5])
    parser.add_argument("--cache-ratio", type=float, default=0.1, help="of all feature rows")
    parser.add_argument("--overrides", nargs="+", default=[], help="keys for all contestants")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    console, progress = Console(width=None if sys.stdout.isatty() else 200), Console(stderr=True)
    graph = prepare_store(compose_config(graph_overrides(options.scale)).dataset).store
    command = shlex.join(["python", "-m", "scripts.bench.machines", *sys.argv[1:]])
    report: dict[str, Any] = {"machine": describe_environment(seed=0) | {"command": command}}
    with tempfile.TemporaryDirectory() as folder:
        for num_machines in options.machines:
            results = []
            for contestant in contestants(num_machines, options, Path(folder)):
                partition(options, contestant)
                results.append(Measured(contestant, traffic(contestant, options, graph)))
            for number in range(options.rounds):
                for result in (result for result in results if not result.absent):
                    measure_round(result, options, progress, number)
            console.print(table(results))
            for result in (result for result in results if result.absent):
                console.print(f"{result.contestant.name}: {result.absent}", markup=False)
            report[f"{num_machines} machines"] = [asdict(result) for result in results]
            if options.json is not None:
                options.json.write_text(json.dumps(report, indent=2, default=str) + "\n")


if __name__ == "__main__":
    main()
