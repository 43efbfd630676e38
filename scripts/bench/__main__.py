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
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from gnntrain.app import compose_config
from gnntrain.data.store import StoredGraph
from gnntrain.limits import available_cores
from gnntrain.reporting.environment import describe_environment
from gnntrain.run import prepare_store
from scripts.bench.cases import (
    BATCH_SIZE,
    BEFORE,
    GRAPHS,
    OURS,
    PEER_STAGES,
    PEERS,
    STAGES,
    TYPED_PEER_STAGES,
    Entry,
    Graph,
)
from scripts.bench.peers.turns import Spec
from scripts.bench.process import Absent, Contestant
from scripts.bench.report import as_json, floor_key, show, show_floor, title
from scripts.bench.sitting import Rules, Say, sit


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    console, progress = Console(width=None if sys.stdout.isatty() else 140), Console(stderr=True)
    command = ["python", "-m", "scripts.bench", *(sys.argv[1:] if arguments is None else arguments)]
    report: dict[str, Any] = {
        "machine": describe_environment(seed=0, command=command),
        "sittings": [],
    }
    for name in options.graphs:
        graph = GRAPHS[name]
        store = opened(graph)
        for stage in (stage for stage in options.stages if stage in graph.stages):
            spec = spec_of(graph, stage, store)
            heading = title(name, spec)
            say = _teller(progress, heading)
            has_floor = stage == "step" and not graph.is_typed
            floors = measured_floors(spec, options, say) if has_floor else {}
            results = sit(
                spec, list(entries_of(stage, graph, options)), rules_of(stage, options), say
            )
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
    try:
        options.pythons = dict(python_of(text) for text in options.peer_python)
    except ValueError as error:
        parser.error(str(error))
    return options


def python_of(text: str) -> tuple[str, Path]:
    """`peer=path` as a pair."""
    peer, _, path = text.partition("=")
    if peer not in PEERS.values() or not Path(path).is_file():
        choices = " or ".join(sorted(set(PEERS.values())))
        raise ValueError(f"--peer-python {text}: give {choices}, an = and a Python's path")
    return peer, Path(path).absolute()  # not resolved: a virtual environment's is a link


def opened(graph: Graph) -> StoredGraph:
    """The graph's store, built first where it is not there yet."""
    config = compose_config([f"dataset={graph.dataset}", *graph.overrides]).config
    return prepare_store(config.dataset).store


def spec_of(graph: Graph, stage: str, store: StoredGraph) -> Spec:
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
        types=types_of(store) if graph.is_typed else None,
    )


def types_of(store: StoredGraph) -> dict[str, Any]:
    """See `peers.typed.Types`."""
    schema = store.schema
    return {
        "num_nodes": dict(schema.num_nodes),
        "edge_types": schema.edge_types,
        "target": schema.target,
        "features": {
            name: f"features_{number}.npy"
            for number, (name, width) in enumerate(schema.num_features.items())
            if width
        },
        "labels": "labels.npy",
        "train": "split_train.npy",
    }


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


def rules_of(stage: str, options: argparse.Namespace) -> Rules:
    batches = options.batches or STAGES[stage]
    return Rules(options.rounds, batches, options.seconds, options.pythons, options.before)


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


def _teller(console: Console, heading: str) -> Say:
    def say(words: str) -> None:
        console.print(f"{heading}: {words}", style="dim", highlight=False)

    return say


if __name__ == "__main__":
    main()
