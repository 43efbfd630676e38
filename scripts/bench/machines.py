"""How fast a run is over several machines, and how many bytes they send each other.

    python -m scripts.bench.machines --json docs/benchmarks/machines.json
    python -m scripts.bench.machines --machines 2 --scale 40 --rounds 1     # tries the benchmark

The machines are network namespaces of this one (`scripts.cluster.machines`), which share its cores:
a run over several is compared with one machine that has as many ranks. Every round each contestant
trains once, in turns; medians and quartiles are over the rounds. Bytes are counted by the network
devices, by the program, and computed from the batches (`scripts.bench.crossing`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from gnntrain.app import compose_config
from gnntrain.data.graph import NODE
from gnntrain.data.partitioned_graph import METHODS, PartitionedGraph
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import rank_range
from gnntrain.reporting.environment import describe_environment
from gnntrain.run import prepare_store
from gnntrain.startup import VARIABLES
from scripts.bench.crossing import Batches, Traffic, cached_nodes, traffic
from scripts.bench.machine_rank import FOLDER
from scripts.bench.sitting import Spread
from scripts.cluster.machines import Failed, Machines

ONE = "one machine"

_ROOT = Path(__file__).parents[2]
_PRODUCTS = {"num_nodes": 2_449_029, "num_edges": 123_718_280, "num_train": 196_615}
_WARM_UP = 4
_SECONDS = 1800.0


@dataclass(frozen=True)
class Contestant:
    """A way to train.

    Attributes:
        name: For the table.
        machines: Number of machines.
        ranks: Ranks a machine.
        overrides: What the command line has beside what all have.
        method: How the graph was partitioned; empty: it is not.
        servers: Machines that only hold the graph, with one rank each.
    """

    name: str
    machines: int
    ranks: int = 1
    overrides: tuple[str, ...] = ()
    method: str = ""
    servers: int = 0

    @property
    def trainers(self) -> int:
        return self.machines * self.ranks - self.servers

    @property
    def owners(self) -> int:
        """Machines that hold the graph."""
        return self.servers or self.machines


@dataclass
class Measured:
    """What a contestant's runs have given.

    Attributes:
        contestant: Who.
        seconds: Of a step, by round.
        sent: Bytes a step and training rank that the network devices of all machines sent.
        batches: Batches that a loader made in a step, on average: 1 but for those ahead at the end.
        arrays: Calls, and bytes of their arrays, a batch, by name and direction.
        framed: Bytes a batch with what the exchange adds, sent by callers and owners, by name.
        hit_rate: Share of the rows of other machines from the cache, as the run reports it.
        time: Rank 0's seconds a step by phase, of the last round.
        absent: Why there is nothing else; empty: there is.
    """

    contestant: Contestant
    seconds: list[float] = field(default_factory=list)
    sent: float = 0
    batches: float = 1
    arrays: dict[str, float] = field(default_factory=dict)
    framed: dict[str, float] = field(default_factory=dict)
    hit_rate: float | None = None
    time: dict[str, float] = field(default_factory=dict)
    absent: str = ""


def contestants(num_machines: int, cache_ratio: float, folder: Path) -> list[Contestant]:
    """One machine with as many ranks first, then every way to hold the graph."""
    cache = f"features.cache_ratio={cache_ratio:g}"

    def in_parts(method: str) -> tuple[str, ...]:
        parts = parts_folder(folder, num_machines, method)
        return "distributed.graph=partitioned", f"distributed.parts={parts}", cache

    num = num_machines
    servers = (*in_parts("metis"), f"distributed.servers={num}")
    return [
        Contestant(ONE, 1, num),
        Contestant("replicated", num),
        Contestant("sharded", num, 1, ("distributed.graph=sharded", cache)),
        *(Contestant(f"partitioned, {m}", num, 1, in_parts(m), m) for m in METHODS),
        Contestant("servers, metis", 2 * num, 1, servers, "metis", num),
    ]


def parts_folder(folder: Path, num_parts: int, method: str) -> Path:
    return folder / f"parts-{num_parts}-{method}"


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
        return {
            "record": json.loads(line),
            "ends": json.loads((folder / "steps.json").read_text()),
            "sent": sum(machines.bytes_sent(m) for m in range(count)),
            "calls": [json.loads(file.read_text()) for file in folder.glob("calls-*.json")],
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
            _count_bytes(measured, run, shorter, options.steps * contestant.trainers)
    except Failed as error:
        lines = str(error).splitlines()
        told = [line for line in lines if line.startswith("gnntrain: ")]
        measured.absent = (told or lines)[0]
        console.print(str(error), markup=False, highlight=False)
        return
    ends = run["ends"]
    measured.seconds.append((ends[-1] - ends[_WARM_UP - 1]) / options.steps)
    record = run["record"]
    measured.time = {name: seconds / steps for name, seconds in record.get("time", {}).items()}
    measured.hit_rate = record.get("cache_hit_rate")
    step = measured.seconds[-1]
    console.print(f"round {number}, {contestant.name}: {step:.3f} s a step", highlight=False)


def _count_bytes(
    measured: Measured, run: Mapping[str, Any], shorter: Mapping[str, Any], steps: int
) -> None:
    """Fill in the bytes. `steps` are those that the longer run has more, of all ranks."""
    measured.sent = (run["sent"] - shorter["sent"]) / steps
    more, less = (_summed(calls, "arrays") for calls in (run["calls"], shorter["calls"]))
    # Every batch asks for its rows once. Loaders are ahead of the last step, by one batch or two.
    batches = more["rows calls"] - less["rows calls"] or steps
    measured.batches = batches / steps
    measured.arrays = {name: (more[name] - less[name]) / batches for name in sorted(more)}
    more, less = (_summed(calls, "framed") for calls in (run["calls"], shorter["calls"]))
    measured.framed = {name: (more[name] - less[name]) / batches for name in sorted(more)}


def _summed(calls: Sequence[Mapping[str, Any]], kind: str) -> Counter[str]:
    """The bytes of all ranks by name."""
    total: Counter[str] = Counter()
    for rank in calls:
        for name, value in rank[kind].items():
            total[name] += value
    return total


class Arithmetic:
    """What each contestant must send, computed from its batches.

    Args:
        options: The command line.
        graph: The whole graph.
        folder: Where the parts are.
    """

    def __init__(self, options: argparse.Namespace, graph: StoredGraph, folder: Path) -> None:
        self._options = options
        self._graph = graph
        self._folder = folder
        self.row_bytes = graph.features.nbytes // graph.num_nodes

    def traffic(self, contestant: Contestant) -> Traffic | None:
        """The mean of a training rank and step; None: nothing but gradients crosses."""
        if "distributed.graph=sharded" not in contestant.overrides and not contestant.method:
            return None
        owner, trainers = self._owner(contestant), contestant.trainers
        return mean_traffic(
            self._batches(trainers),
            owner,
            # With servers no trainer holds anything: their owners have other numbers.
            machine_of=[-1 if contestant.servers else rank for rank in range(trainers)],
            cached_rows=round(self._options.cache_ratio * self._graph.num_nodes),
            steps=range(_WARM_UP, _WARM_UP + self._options.steps),
            edges_are_local=not contestant.method,
        )

    def _batches(self, trainers: int) -> Batches:
        options = self._options
        return Batches(self._graph, options.fan_outs, options.batch_size, trainers)

    def _owner(self, contestant: Contestant) -> np.ndarray[Any, np.dtype[np.int16]]:
        if not contestant.method:
            return range_owners(self._graph.num_nodes, contestant.owners)
        parts = PartitionedGraph.open(
            parts_folder(self._folder, contestant.owners, contestant.method)
        )
        owner = np.empty(self._graph.num_nodes, np.int16)
        for number, part in enumerate(parts.opened):
            owner[part.originals[NODE]] = number
        return owner


def range_owners(num_nodes: int, num_machines: int) -> np.ndarray[Any, np.dtype[np.int16]]:
    """The machine of each node's feature row with `distributed.graph=sharded`."""
    owner = np.empty(num_nodes, np.int16)
    for machine in range(num_machines):
        owner[rank_range(num_nodes, machine, num_machines)] = machine
    return owner


def mean_traffic(
    batches: Batches,
    owner: np.ndarray[Any, np.dtype[np.int16]],
    *,
    machine_of: Sequence[int],
    cached_rows: int,
    steps: Sequence[int],
    edges_are_local: bool,
) -> Traffic:
    """What a rank asks of other machines in a step, on average.

    Args:
        batches: The run's batches.
        owner: The machine that holds each node, `[num_nodes]`.
        machine_of: The machine of each rank that counts, each with a machine of its own.
        cached_rows: Rows of a machine's cache.
        steps: Steps that count.
        edges_are_local: Whether each machine has all edges.
    """
    total = Traffic()
    for rank, machine in enumerate(machine_of):
        is_remote = owner != machine
        is_cached = cached_nodes(batches, [rank], is_remote, cached_rows)
        total += traffic(
            batches, rank, steps, is_remote, is_cached, edges_are_local=edges_are_local
        )
    return total.over(len(steps) * len(machine_of))


def partition(options: argparse.Namespace, contestant: Contestant, folder: Path) -> None:
    """Cut the graph as the contestant wants it, unless that was done before."""
    if not contestant.method:
        return
    out = parts_folder(folder, contestant.owners, contestant.method)
    if not out.is_dir():
        words = [*graph_overrides(options.scale), "--method", contestant.method, "--out", str(out)]
        partitioning = [sys.executable, "-m", "gnntrain", "partition", *words]
        subprocess.run([*partitioning, "--parts", str(contestant.owners)], check=True)


def table(results: Sequence[Measured], arithmetic: Arithmetic) -> Table:
    """One line a contestant: its step beside one machine's, and its bytes beside the arithmetic."""
    (one,) = (result for result in results if result.contestant.name == ONE)
    found = Table(title_justify="left", title=f"{one.contestant.trainers} training ranks")
    found.add_column("")
    for heading in ("step s", "quartiles", "× one machine", "MB sent", "gradients MB"):
        found.add_column(heading, justify="right")
    for heading in ("ids MB", "edges MB", "rows MB", "arithmetic", "÷ arithmetic", "cache"):
        found.add_column(heading, justify="right")
    gradients = next(r.sent for r in results if r.contestant.name == "replicated")
    for result in results:
        found.add_row(result.contestant.name, *_cells(result, one, gradients, arithmetic))
    return found


def _cells(
    result: Measured, one: Measured, gradients: float, arithmetic: Arithmetic
) -> Iterator[str]:
    if result.absent:
        yield "absent"
        return
    step = Spread.of(result.seconds)
    ratios = [a / b for a, b in zip(result.seconds, one.seconds, strict=True)]
    yield from (f"{step.median:.3f}", f"{step.lower:.3f} - {step.upper:.3f}")
    yield f"{Spread.of(ratios).median:.2f}"
    yield from _megabytes(result.sent, gradients if result is not one else 0.0)
    must = arithmetic.traffic(result.contestant)
    if must is None:
        return
    ids = sum(size for name, size in result.arrays.items() if name.endswith(" sent"))
    edges = result.arrays.get("draw received", 0.0)
    yield from _megabytes(ids, edges, result.arrays.get("rows received", 0.0))
    total = must.bytes(arithmetic.row_bytes)
    parts = must.id_bytes(), must.edge_bytes(), must.row_bytes(arithmetic.row_bytes)
    yield " + ".join(_megabytes(*parts))
    yield f"{(result.sent - gradients) / (result.batches * total):.3f}"
    yield f"{must.hit_rate():.3f}" + (
        "" if result.hit_rate is None else f" ({result.hit_rate:.3f})"
    )


def _megabytes(*sizes: float) -> Iterator[str]:
    yield from (f"{size / 1e6:.2f}" for size in sizes)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
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
    parser.add_argument("--parts", type=Path, help="folder for the parts, kept (default: none is)")
    parser.add_argument("--overrides", nargs="+", default=[], help="keys for all contestants")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    console, progress = Console(width=None if sys.stdout.isatty() else 200), Console(stderr=True)
    graph = prepare_store(compose_config(graph_overrides(options.scale)).config.dataset).store
    words = ["python", "-m", "scripts.bench.machines", *(sys.argv[1:] if not arguments else [])]
    report: dict[str, Any] = {"machine": describe_environment(seed=0, command=words)}
    folder = options.parts or Path(tempfile.mkdtemp())
    try:
        for num_machines in options.machines:
            arithmetic = Arithmetic(options, graph, folder)
            results = sit(options, num_machines, folder, progress)
            console.print(table(results, arithmetic))
            for result in (result for result in results if result.absent):
                console.print(f"{result.contestant.name}: {result.absent}", markup=False)
            report[f"{num_machines} machines"] = [as_json(result, arithmetic) for result in results]
            if options.json is not None:
                options.json.write_text(json.dumps(report, indent=2) + "\n")
    finally:
        if options.parts is None:
            shutil.rmtree(folder)


def sit(
    options: argparse.Namespace, num_machines: int, folder: Path, say: Console
) -> list[Measured]:
    """All rounds; every contestant has one run in each."""
    chosen = [
        contestant
        for contestant in contestants(num_machines, options.cache_ratio, folder)
        if not options.only or contestant.name in (ONE, "replicated", *options.only)
    ]
    for contestant in chosen:
        partition(options, contestant, folder)
    results = [Measured(contestant) for contestant in chosen]
    for number in range(options.rounds):
        for result in results:
            if not result.absent:
                measure_round(result, options, say, number)
    return results


def as_json(result: Measured, arithmetic: Arithmetic) -> dict[str, Any]:
    must = arithmetic.traffic(result.contestant)
    row = {**asdict(result), "row_bytes": arithmetic.row_bytes}
    return row if must is None else {**row, "arithmetic": asdict(must)}


if __name__ == "__main__":
    main()
