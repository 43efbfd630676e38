"""How fast gnntrain is on a GPU.

    python -m scripts.bench.gpu --json gpu.json

Epochs of the training part, eager and as a recorded CUDA graph; sampling alone; exact inference; a
cache of hot rows beside all rows on the GPU; sampling with gathering, beside WholeGraph where it is
installed; the CPU's sampler feeding the GPU; torch's operators alone. One after another, on the
same graphs, each in a process of its own: a case that crashes, hangs or spoils the GPU for its
process loses no other. The first rounds, which compile, do not count. A kernel that fails the
self-check is replaced; the figure's notes say so.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from gnntrain.build import build_evaluator, build_loaders, build_model, build_task, training_plan
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.selection import select
from gnntrain.config import Config, from_dict
from gnntrain.data.graph import EDGE, NODE, Int64Array
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.build import LoaderBuilder
from gnntrain.loading.features import rows_of
from gnntrain.models import GNN
from gnntrain.reporting.environment import describe_environment
from gnntrain.run import prepare_store
from gnntrain.sampling.base import NO_TARGETS, SampleKey, Seeds
from gnntrain.selfcheck.choice import kernel_choice
from gnntrain.training.evaluation import Evaluator, SplitMetrics
from gnntrain.training.trainer import Trainer
from scripts.bench import wholegraph
from scripts.bench.sitting import Spread
from scripts.bench.wholegraph import Gathered, LeftOut

Keys = Mapping[str, Mapping[str, Any]]

RESIDENT = "products, sage"
CACHED = "products, sage, 10 % of the rows cached"
FROM_HOST = "products, sage, drawn by the CPU"
BY_TORCH = "products, sage, torch's operators"
GATHERING = "products, sampling and gathering"
WHOLEGRAPH = "products, sampling and gathering, WholeGraph"

_RATIOS = [
    ("speed with 10 % cached, of all rows on the GPU", RESIDENT, CACHED, 0.6),
    ("speed-up over the CPU's sampler", FROM_HOST, RESIDENT, 10.0),
    ("speed-up over torch's operators", BY_TORCH, RESIDENT, 1.0),
    ("speed-up over WholeGraph, sampling and gathering", GATHERING, WHOLEGRAPH, 1.5),
]
"""Of two figures' medians: name, the one above the line, the one below it, the bound."""

_WORK = ("edges_per_batch", "rows_per_batch")
"""Notes of figures that are fair to compare only where these agree, within `_MOST_APART`."""
_MOST_APART = 0.02
_MOST_SECONDS = 100  # of a case
_ROOT = Path(__file__).parents[2]

_REDDIT: Keys = {
    "dataset": {"name": "synthetic_reddit", "feature_dtype": "bfloat16"},
    "model": {"name": "sage", "num_layers": 2, "hidden_channels": 256},
    "sampler": {"fan_outs": [25, 10], "backend": "triton"},
}
_PRODUCTS: Keys = {
    "dataset": {"name": "synthetic_products", "feature_dtype": "bfloat16"},
    "model": {"name": "sage", "num_layers": 3, "hidden_channels": 256},
    "sampler": {"fan_outs": [15, 10, 5], "backend": "triton"},
}
_GAT = {"model": {"name": "gat", "num_layers": 3, "hidden_channels": 256, "heads": 4}}
_EAGER = {"trainer": {"cuda_graph": False}}
_CACHED = {"features": {"placement": "cached", "cache_ratio": 0.1}}
_HOST = {"sampler": {"fan_outs": [15, 10, 5], "backend": "numba"}}
_TORCH: Keys = {"compute": {"kernels": "torch"}, **_HOST}


@dataclass(frozen=True)
class Case:
    """One figure.

    Attributes:
        name: What is measured.
        stage: A name in `_STAGES`.
        keys: The configuration, by section.
        most: Seconds that it must not exceed; None: no such bound.
        least: Edges a second that it must reach.
    """

    name: str
    stage: str
    keys: Sequence[Keys]
    most: float | None = None
    least: float | None = None


CASES = [
    Case("reddit, sage", "epoch", [_REDDIT], most=0.10),
    Case("reddit, sage, eager", "epoch", [_REDDIT, _EAGER], most=0.30),
    Case(RESIDENT, "epoch", [_PRODUCTS], most=0.20),
    Case("products, sage, eager", "epoch", [_PRODUCTS, _EAGER], most=0.60),
    Case("products, gat", "epoch", [_PRODUCTS, _GAT], most=2.0),
    Case("products, sampling", "sampling", [_PRODUCTS], least=1.5e9),
    Case("products, exact inference", "inference", [_PRODUCTS], most=0.5),
    Case(CACHED, "epoch", [_PRODUCTS, _CACHED]),
    Case(GATHERING, "gathering", [_PRODUCTS]),
    Case(WHOLEGRAPH, "wholegraph", [_PRODUCTS]),
    # the slowest ones last
    Case(FROM_HOST, "epoch", [_PRODUCTS, _HOST]),
    Case(BY_TORCH, "epoch", [_PRODUCTS, _TORCH]),
]


@dataclass
class Figure:
    """A case's result.

    Attributes:
        name, unit: What, in what.
        rounds: Every round's.
        median, lower, upper: Over the rounds, with the quartiles.
        must: The bound, if there is one.
        reached: Whether the median keeps to it.
        notes: What else is worth telling.
    """

    name: str
    unit: str
    rounds: list[float]
    median: float
    lower: float
    upper: float
    must: float | None
    reached: bool | None
    notes: dict[str, Any] = field(default_factory=dict)


def ratios(figures: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    """The ratios of which both figures were measured: `value`, or in what the work differed."""
    known = {one.name: one for one in figures}
    found: dict[str, dict[str, Any]] = {}
    for name, *pair, must in _RATIOS:
        if not known.keys() >= set(pair):
            continue
        above, below = (known[one] for one in pair)
        unfair = [
            f"{key}: {above.notes[key]:.0f} and {below.notes[key]:.0f}"
            for key in _WORK
            if key in above.notes
            and abs(above.notes[key] - below.notes[key]) > _MOST_APART * below.notes[key]
        ]
        value = above.median / below.median
        figure = {"unfair": unfair} if unfair else {"value": value, "reached": value >= must}
        found[name] = {**figure, "must": must}
    return found


class NoEvaluation(Evaluator):
    """In the place of an evaluator: nothing is evaluated."""

    def evaluate(self, model: object) -> SplitMetrics:  # noqa: ARG002
        """No metrics."""
        return {"train": {}, "val": {}, "test": {}}


def config_of(case: Case, *, epochs: int, smaller: Keys | None = None) -> Config:
    """The case's configuration: bfloat16, batches of 1,024 seeds."""
    sections: dict[str, dict[str, Any]] = {
        "trainer": {"precision": "bf16", "batch_size": 1024, "epochs": epochs, "lr": 0.003}
    }
    for keys in (*case.keys, smaller or {}):
        for section, values in keys.items():
            known = sections.setdefault(section, {})
            if "name" in values and known.get("name") not in (None, values["name"]):
                known.clear()
            known.update(values)
    return from_dict(sections)


class Bench:
    """What a case measures: model and loaders over an opened store."""

    def __init__(self, config: Config, store: StoredGraph, device: torch.device) -> None:
        self.config, self.store = config, store
        self.context = context = DistributedContext(device=device)
        self.task = build_task(config, store)
        self.model = build_model(config, self.task, store, context)
        self.kernels = kernel_choice(config, context.device.type)
        select(self.kernels, context.device.type)
        loaders = build_loaders(config, self.task, self.model, store, context)
        assert isinstance(loaders, LoaderBuilder), "of a graph with one type"
        self.loaders = loaders

    def batches(self) -> list[Int64Array]:
        """The seeds of an epoch's batches."""
        plan = training_plan(self.config, self.task, self.context)
        order = plan.order(0)
        return [plan.rank_batch(order, step).seeds for step in range(plan.num_steps)]


def measure(
    case: Case, store: StoredGraph, config: Config, device: torch.device, rounds: int
) -> Figure:
    """Measure one case on an opened store."""
    bench = Bench(config, store, device)
    stage, unit = _STAGES[case.stage]
    values, notes = stage(bench, rounds)
    spread = Spread.of(values)
    must = case.most if case.most is not None else case.least
    reached = None
    if must is not None:
        reached = spread.median <= must if case.most is not None else spread.median >= must
    notes.setdefault("placement", list(bench.loaders.why_placed))
    notes["kernels"] = asdict(bench.kernels)
    if device.type == "cuda":
        notes["peak_gpu_bytes"] = torch.cuda.max_memory_allocated(device)
    return Figure(
        case.name, unit, values, **asdict(spread), must=must, reached=reached, notes=notes
    )


def _epochs(bench: Bench, rounds: int) -> tuple[list[float], dict[str, Any]]:
    loader = bench.loaders.training_loader()
    trainer = Trainer(
        bench.model,
        loader,
        NoEvaluation(),
        task=bench.task,
        config=bench.config.trainer,
        context=bench.context,
    )
    records = trainer.fit().records[-rounds:]
    notes = {
        "steps": len(loader),
        "edges_per_step": records[-1].edges_per_s * records[-1].seconds / len(loader),
        "train_loss": records[-1].train_loss,
        "cache_hit_rate": records[-1].cache_hit_rate,
        "time": dict(records[-1].time),
    }
    return [one.seconds for one in records], notes


def _sampling(bench: Bench, rounds: int) -> tuple[list[float], dict[str, Any]]:
    sampler = bench.loaders.sampler(bench.config.sampler.fan_outs)
    batches = bench.batches()

    def draw(turn: int, step: int) -> int:
        seeds = Seeds({NODE: torch.from_numpy(batches[step])}, NO_TARGETS)
        drawn = sampler.sample(seeds, SampleKey(0, turn, step))
        return sum(drawn.num_sampled_edges[EDGE])

    rates = _rates(bench.context.device, rounds, len(batches), draw)
    return rates, {"batches": len(batches)}


def _gathering(bench: Bench, rounds: int) -> tuple[list[float], dict[str, Any]]:
    """Batches are drawn, and the rows of all their nodes copied, in the store's precision."""
    sampler = bench.loaders.sampler(bench.config.sampler.fan_outs)
    table = LazyFeatures(rows_of(bench.store.nodes[NODE]).to(bench.context.device))

    def draw(seeds: Tensor, key: SampleKey) -> Gathered:
        drawn = sampler.sample(Seeds({NODE: seeds}, NO_TARGETS), key)
        nodes = drawn.nodes[NODE]
        rows = replace(table, nodes=nodes).whole(table.rows.dtype)
        return Gathered(sum(hop.num_edges for hop in drawn.hops), nodes, rows)

    return _gathering_rates(bench, rounds, torch.int64, draw)


def _wholegraph(bench: Bench, rounds: int) -> tuple[list[float], dict[str, Any]]:
    """What `_gathering` does, by WholeGraph."""
    fan_outs, store = bench.config.sampler.fan_outs, bench.store
    assert isinstance(fan_outs, tuple)  # the same of all edge types
    edges = store.only_edges
    indptr, indices = map(torch.from_numpy, (edges.indptr, edges.indices))
    arrays = indptr, indices, rows_of(store.nodes[NODE])
    peer = wholegraph.WholeGraph(*arrays)
    rates, notes = _gathering_rates(
        bench, rounds, arrays[1].dtype, lambda seeds, _: peer.draw(seeds, fan_outs)
    )
    peer.close()
    num_bytes = sum(array.nbytes for array in arrays)
    where = f"{num_bytes / 2**30:.2f} GiB in {wholegraph.MEMORY_TYPE} memory, beside torch's"
    version = metadata.version("pylibwholegraph-cu13")
    return rates, notes | {"version": version, "placement": [where]}


def _gathering_rates(
    bench: Bench,
    rounds: int,
    seed_dtype: torch.dtype,
    draw: Callable[[Tensor, SampleKey], Gathered],
) -> tuple[list[float], dict[str, Any]]:
    """Edges a second of `draw`, which is given seeds on the device; what it drew is noted."""
    device = bench.context.device
    batches = [torch.from_numpy(seeds).to(device, seed_dtype) for seeds in bench.batches()]
    first = draw(batches[0], SampleKey(0, 0, 0))
    if not first.rows.cpu().equal(rows_of(bench.store.nodes[NODE])[first.nodes.cpu().long()]):
        raise RuntimeError("the rows that were gathered are not those of the nodes that were drawn")
    sizes = []

    def measured(turn: int, step: int) -> int:
        drawn = draw(batches[step], SampleKey(0, turn, step))
        sizes.append((drawn.num_edges, len(drawn.rows)))
        return drawn.num_edges

    rates = _rates(device, rounds, len(batches), measured)
    means = [statistics.fmean(values) for values in zip(*sizes, strict=True)]
    return rates, {"batches": len(batches), **dict(zip(_WORK, means, strict=True))}


def _rates(
    device: torch.device, rounds: int, num_batches: int, draw: Callable[[int, int], int]
) -> list[float]:
    """Edges a second in every round but the first; `draw` takes the round and the batch."""
    rates = []
    for turn in range(rounds + 1):
        _wait(device)
        begin = time.perf_counter()
        num_edges = sum(draw(turn, step) for step in range(num_batches))
        _wait(device)
        rates.append(num_edges / (time.perf_counter() - begin))
    return rates[1:]


def _inference(bench: Bench, rounds: int) -> tuple[list[float], dict[str, Any]]:
    assert isinstance(bench.model, GNN)
    seconds = []
    with tempfile.TemporaryDirectory() as scratch:
        parts = bench.config, bench.task, bench.model, bench.loaders, bench.store
        evaluator = build_evaluator(*parts, bench.context, Path(scratch), exact=True)
        for _ in range(rounds + 1):
            _wait(bench.context.device)
            begin = time.perf_counter()
            evaluator.evaluate(bench.model)
            _wait(bench.context.device)
            seconds.append(time.perf_counter() - begin)
    return seconds[1:], {"with": "the metrics of all splits"}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_STAGES = {
    "epoch": (_epochs, "s"),  # of the training part
    "sampling": (_sampling, "edges/s"),
    "inference": (_inference, "s"),
    "gathering": (_gathering, "edges/s"),
    "wholegraph": (_wholegraph, "edges/s"),
}


def measure_apart(
    cases: Sequence[Case],
    rounds: int,
    path: Path | None,
    start: Callable[[list[str]], int],
) -> dict[str, Any]:
    """Measure each case in a process of its own, and write what came of them after each.

    Args:
        cases: What to measure.
        rounds: Rounds that count.
        path: File for the figures.
        start: Runs a Python with these arguments to its end; gives its exit status.

    Returns:
        The machine, the figures, their ratios, why others are left out, and which failed.
    """
    figures: list[Figure] = []
    report: dict[str, Any] = {
        "machine": describe_environment(seed=0),
        "left_out": {},
        "failures": {},
    }
    for case in cases:
        with tempfile.TemporaryDirectory() as scratch:
            part = Path(scratch) / "figure.json"
            own = ["--here", case.name, "--rounds", str(rounds), "--json", str(part)]
            status = start(["-m", "scripts.bench.gpu", *own])
            told = json.loads(part.read_text("utf-8")) if part.exists() else {}
        if "left_out" in told:
            report["left_out"][case.name] = told["left_out"]
        elif told:
            figures.append(Figure(**told))
        else:
            said = f"its process ended with exit status {status}; see its output"
            report["failures"][case.name] = said
        report |= {"figures": [asdict(one) for one in figures], "ratios": ratios(figures)}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def measure_here(case: Case, rounds: int, path: Path) -> None:
    """Measure a case in this process, which ends with all stacks if it takes too long."""
    faulthandler.dump_traceback_later(_MOST_SECONDS, exit=True)
    config = config_of(case, epochs=rounds + 2)
    try:
        store = prepare_store(config.dataset).store
        told = asdict(measure(case, store, config, torch.device("cuda", 0), rounds))
    except LeftOut as reason:
        told = {"left_out": str(reason)}
    path.write_text(json.dumps(told), encoding="utf-8")


def lines_of(report: Mapping[str, Any]) -> Iterator[Table | str]:
    """The figures as a table, then the ratios, what was left out and what failed."""
    table = Table(title="on a GPU, bf16, batches of 1,024", title_justify="left")
    table.add_column("what")
    for name in ("median", "quartiles", "unit", "must", "reached"):
        table.add_column(name, justify="right")
    for one in report["figures"]:
        must = "" if one["must"] is None else f"{one['must']:.3g}"
        reached = {None: "", True: "yes", False: "no"}[one["reached"]]
        spread = f"{one['lower']:.3g} - {one['upper']:.3g}"
        table.add_row(one["name"], f"{one['median']:.3g}", spread, one["unit"], must, reached)
    yield table
    for name, ratio in report["ratios"].items():
        if unfair := ratio.get("unfair"):
            yield f"{name}: no fair comparison ({'; '.join(unfair)})"
        else:
            reached = "reached" if ratio["reached"] else "not reached"
            yield f"{name}: {ratio['value']:.2f} (at least {ratio['must']:g}: {reached})"
    yield from (f"{name}: left out, {why}" for name, why in report["left_out"].items())
    yield from (f"{name}: {why}" for name, why in report["failures"].items())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="that count (default 5)")
    parser.add_argument(
        "--only", nargs="*", default=[""], help="cases whose name contains one of these"
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--prepare", action="store_true", help="only build the graphs")
    parser.add_argument("--here", metavar="NAME", help="measure this one case in this process")
    options = parser.parse_args(arguments)
    if options.prepare:
        for graph in (_REDDIT, _PRODUCTS):
            prepare_store(from_dict({"dataset": graph["dataset"]}).dataset)
        return
    if not torch.cuda.is_available():
        sys.exit("scripts.bench.gpu: torch sees no GPU on this machine")
    if options.here is not None:
        (case,) = (case for case in CASES if case.name == options.here)
        measure_here(case, options.rounds, options.json)
        return
    cases = [case for case in CASES if any(word in case.name for word in options.only)]
    for case in cases:
        prepare_store(config_of(case, epochs=1).dataset)

    def start(words: list[str]) -> int:
        return subprocess.run([sys.executable, *words], cwd=_ROOT, check=False).returncode

    report = measure_apart(cases, options.rounds, options.json, start)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for shown in lines_of(report):
        console.print(shown, highlight=False, markup=False)
    if report["failures"]:
        sys.exit("scripts.bench.gpu: not all cases could be measured")


if __name__ == "__main__":
    main()
