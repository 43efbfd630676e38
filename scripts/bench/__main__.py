"""How fast gnntrain is on this machine, next to its peers where they are installed.

    python -m scripts.bench
    python -m scripts.bench --graphs reddit --stages step --precision fp32 bf16 \
        --peer-python graphbolt=/path/to/its/python --json bench.json
    git worktree add /tmp/before COMMIT
    python -m scripts.bench --stages step --peers --before /tmp/before   # did a change cost time?

Every contestant runs in a process of its own and sleeps while it is another's turn; in every round
each has one, on the same graph, so that a disturbance of the machine hits them alike. Ratios are
medians over the rounds of the ratio within a round.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gnntrain.app import compose_config
from gnntrain.data.store import StoredGraph
from gnntrain.limits import available_cores
from gnntrain.reporting.environment import describe_environment
from gnntrain.run import prepare_store
from scripts.bench.peers.turns import Spec
from scripts.bench.sitting import (
    BEFORE,
    OURS,
    PEERS,
    Absent,
    Contestant,
    Entry,
    Result,
    Say,
    Spread,
    ratios,
    sit,
)


@dataclass(frozen=True)
class Graph:
    """A data set of gnntrain's, and how it is sampled.

    Attributes:
        dataset: As `dataset=` takes it.
        fan_outs: In-neighbours drawn a node, the hop next to the seed nodes first.
        stages: What is measured on it.
        overrides: Further overrides of the data set.
        hidden: Width of the hidden layers.
        is_typed: Whether it has several node types: R-GCN is trained then, else GraphSAGE.
    """

    dataset: str
    fan_outs: tuple[int, ...]
    stages: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    hidden: int = 256
    is_typed: bool = False


GRAPHS = {
    "reddit": Graph("synthetic_reddit", (25, 10), ("sampling", "gather", "step", "inference")),
    # A peer's way of inference would need more memory here than most machines have.
    "products": Graph("synthetic_products", (15, 10, 5), ("sampling", "gather", "step")),
    "mag": Graph("synthetic_mag", (25, 20), ("sampling", "step"), hidden=64, is_typed=True),
    # To try the benchmark itself.
    "small": Graph(
        "synthetic",
        (10, 5),
        ("sampling", "gather", "step", "inference"),
        ("dataset.num_nodes=20000",),
    ),
}

# Most batches a turn; a slow contestant's turn is cut short by time.
STAGES = {"sampling": 128, "gather": 48, "step": 16, "inference": 8}

PEER_STAGES = {
    "pyg": ("sampling", "gather", "step", "inference"),
    "pyg-trimmed": ("step",),  # before the step there is nothing to trim
    "graphbolt": ("sampling", "gather", "step"),
}

TYPED_PEER_STAGES = {
    "pyg": ("sampling", "step"),
    "graphbolt": ("sampling", "step"),
    "graphbolt-sparse": ("step",),
}
"""The same on typed graphs."""

BATCH_SIZE = 1024


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    console, progress = Console(width=None if sys.stdout.isatty() else 140), Console(stderr=True)
    command = ["python", "-m", "scripts.bench", *(sys.argv[1:] if arguments is None else arguments)]
    report: dict[str, Any] = {
        "machine": describe_environment(seed=0) | {"command": shlex.join(command)},
        "sittings": [],
    }
    for name in options.graphs:
        graph = GRAPHS[name]
        config = compose_config([f"dataset={graph.dataset}", *graph.overrides])
        store = prepare_store(config.dataset).store
        for stage in (stage for stage in options.stages if stage in graph.stages):
            spec = spec_of(graph, stage, store)
            heading = title(name, spec)

            def say(words: str, heading: str = heading) -> None:
                progress.print(f"{heading}: {words}", style="dim", highlight=False)

            has_floor = stage == "step" and not graph.is_typed
            floors = measured_floors(spec, options, say) if has_floor else {}
            entries = [*entries_of(stage, graph, options)]
            results = sit(spec, entries, options.batches or STAGES[stage], options, say)
            show(console, name, spec, results)
            if floors:
                show_floor(console, floors, results)
            report["sittings"].append({**as_json(name, spec, results), "floors": floors})
            if options.json is not None:  # after each, since the next may take long
                options.json.write_text(json.dumps(report, indent=2) + "\n")


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=["reddit", "products"])
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument(
        "--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32"], help="ours, in step"
    )
    parser.add_argument(
        "--peer-precision",
        nargs="+",
        choices=["fp32", "bf16"],
        default=["fp32"],
        help="the peers', in step",
    )
    parser.add_argument(
        "--threads", nargs="+", type=int, default=[available_cores()], help="cores a contestant"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, help="most batches a turn (default: by stage)")
    parser.add_argument("--seconds", type=float, default=10.0, help="a turn takes, roughly")
    parser.add_argument(
        "--peer-python",
        nargs="+",
        default=[],
        metavar="PEER=PATH",
        help="the Python of pyg or graphbolt, where it has an environment of its own",
    )
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT", help="an older gnntrain, to take part as a peer"
    )
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args(arguments)
    options.pythons = {}
    for text in options.peer_python:
        peer, _, path = text.partition("=")
        if peer not in PEERS.values() or not Path(path).is_file():
            choices = " or ".join(sorted(set(PEERS.values())))
            parser.error(f"--peer-python {text}: give {choices}, an = and a Python's path")
        options.pythons[peer] = Path(path).absolute()  # a virtual environment's is a link
    return options


def spec_of(graph: Graph, stage: str, store: StoredGraph) -> Spec:
    schema = store.schema
    types = {
        "num_nodes": dict(schema.num_nodes),
        "edge_types": schema.edge_types,
        "target": schema.target,
        "features": {
            name: f"features_{number}.npy"
            for number, (name, width) in enumerate(schema.num_features.items())
            if width
        },
    }
    return Spec(
        stage=stage,
        dataset=graph.dataset,
        overrides=list(graph.overrides),
        store=str(store.path),
        num_classes=store.num_classes,
        fan_outs=list(graph.fan_outs),
        batch_size=BATCH_SIZE,
        hidden=graph.hidden,
        threads=1,
        precision="fp32",
        loader_workers=0,
        variant=OURS,
        types=types if graph.is_typed else None,
    )


def entries_of(stage: str, graph: Graph, options: argparse.Namespace) -> Iterator[Entry]:
    """Ours first, with its older self, then the peers that have a way to do the stage."""
    stages = TYPED_PEER_STAGES if graph.is_typed else PEER_STAGES
    peers = [peer for peer in options.peers if stage in stages.get(peer, ())]
    for threads in options.threads:
        for precision in options.precision if stage == "step" else ["fp32"]:
            yield Entry(OURS, precision, threads)
            if options.before is not None:
                yield Entry(BEFORE, precision, threads)
        for precision in options.peer_precision if stage == "step" else ["fp32"]:
            yield from (Entry(peer, precision, threads) for peer in peers)


def measured_floors(spec: Spec, options: argparse.Namespace, say: Say) -> dict[str, dict[str, Any]]:
    """What a step needs at least, for each precision and number of threads."""
    floors = {}
    for precision, threads in product(options.precision, options.threads):
        say(f"the machine's rates, {precision}, {threads} threads")
        try:
            asked = replace(spec, precision=precision, threads=threads)
            with Contestant("floor", asked) as machine:
                floors[floor_key(precision, threads)] = machine.hello
        except Absent as reason:
            raise SystemExit(f"the floor could not be measured: {reason}") from None
    return floors


def title(graph: str, spec: Spec) -> str:
    return f"{graph} {spec.fan_outs}: {spec.stage}"


def show(console: Console, graph: str, spec: Spec, results: Sequence[Result]) -> None:
    """One sitting's table: who, how fast, with how much memory, and how much faster ours is."""
    unit = "passes/s" if spec.stage == "inference" else "batches/s"
    ours = [r.entry for r in results if r.entry.is_ours]
    columns = sorted({entry.label for entry in ours})
    table = Table(title=title(graph, spec), title_justify="left")
    table.add_column("contestant")
    for name in ("threads", unit, "quartiles", "edges", "peak GiB"):
        table.add_column(name, justify="right")
    for name in columns:
        table.add_column(f"{name} is", justify="right")
    shares = ratios(results)
    for result in (r for r in results if not r.absent):
        entry, rate = result.entry, result.rate
        by_ours = {
            mine.label: _ratio(share, its if its.is_ours else None)
            for (mine, its), share in shares.items()
            if entry == (mine if its.is_ours else its)
        }
        table.add_row(
            entry.label,
            str(entry.threads),
            _number(rate.median),
            f"{_number(rate.lower)} - {_number(rate.upper)}",
            f"{result.edges_per_batch:,.0f}",
            f"{result.peak_rss_bytes / 2**30:.2f}",
            *(by_ours.get(name, "") for name in columns),
        )
    console.print(table)
    for result in results:
        words = f"absent: {result.absent}" if result.absent else result.note
        used = ", ".join(f"{name} {version}" for name, version in result.versions.items())
        who = f"{result.entry.label} on {result.entry.threads}"
        console.print(f"  {who}: {words}{f' ({used})' if used else ''}", soft_wrap=True)


def show_floor(
    console: Console, floors: Mapping[str, Mapping[str, Any]], results: Sequence[Result]
) -> None:
    """How far ours is from what the machine could do, by precision."""
    table = Table(title="floor of a step", title_justify="left")
    table.add_column("precision and threads")
    for name in ("GFLOP", "MB", "GFLOP/s", "rows GB/s", "floor s", "step s", "step / floor"):
        table.add_column(name, justify="right")
    for result in results:
        floor = floors.get(floor_key(result.entry.precision, result.entry.threads))
        if floor is None or not result.entry.is_ours or result.absent:
            continue
        step = 1 / result.rate.median
        table.add_row(
            f"{result.entry.precision}, {result.entry.threads}",
            f"{floor['flops'] / 1e9:.1f}",
            f"{floor['bytes'] / 1e6:.0f}",
            f"{max(floor['gemm_flops_per_s'].values()) / 1e9:.0f}",
            f"{floor['random_rows_bytes_per_s'] / 1e9:.1f}",
            f"{floor['floor_s']:.3f}",
            f"{step:.3f}",
            f"{step / floor['floor_s']:.2f}",
        )
    console.print(table)


def floor_key(precision: str, threads: int) -> str:
    return f"{precision} on {threads}"


def as_json(graph: str, spec: Spec, results: Sequence[Result]) -> dict[str, Any]:
    """One sitting, with every round's figure."""
    shares = ratios(results)
    rows = []
    for result in results:
        row = {**asdict(result.entry), **asdict(result)}
        del row["entry"]
        if not result.absent:
            row["rate"] = asdict(result.rate)
            row["faster_than"] = [
                {**asdict(its), **asdict(share)}
                for (mine, its), share in shares.items()
                if mine == result.entry
            ]
        rows.append(row)
    asked = {key: asdict(spec)[key] for key in ("stage", "dataset", "overrides", "fan_outs")}
    size = {"batch_size": spec.batch_size, "hidden": spec.hidden}
    return {"graph": graph, **asked, **size, "contestants": rows}


def _ratio(share: Spread, itself: Entry | None) -> str:
    beside = "" if itself is None else f" itself on {itself.threads}"
    return f"{share.median:.2f}x{beside} ({share.lower:.2f} - {share.upper:.2f})"


def _number(value: float) -> str:
    """Three significant digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    main()
