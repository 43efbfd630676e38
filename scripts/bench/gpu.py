"""How fast gnntrain is on a GPU.

    python -m scripts.bench.gpu --json gpu.json

Epochs of the training part, eager and as a recorded CUDA graph; sampling alone; a cache of hot
rows beside all rows on the GPU; the CPU's sampler feeding the GPU; exact inference. All in one
process, one after another, on the same graphs; the first rounds, which compile, do not count.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from gnntrain.assembly import Parts
from gnntrain.config import Config, from_dict
from gnntrain.data.store import GraphStore
from gnntrain.distributed.context import DistributedContext
from gnntrain.models import GNN
from gnntrain.reporting.environment import describe_environment
from gnntrain.run import prepare_store
from gnntrain.sampling.base import SampleKey
from gnntrain.training.evaluation import LayerwiseEvaluator, SplitMetrics
from gnntrain.training.recorded import Record
from gnntrain.training.trainer import Trainer

Keys = Mapping[str, Mapping[str, Any]]

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
_RECORDED = {"trainer": {"cuda_graph": True}}
_CACHED = {"features": {"placement": "cached", "cache_ratio": 0.1}}
_FROM_HOST = {"sampler": {"fan_outs": [15, 10, 5], "backend": "numba"}}


@dataclass(frozen=True)
class Case:
    """One figure.

    Attributes:
        name: What is measured.
        stage: `epoch` (seconds of the training part), `sampling` (edges/s), `inference` (seconds).
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
    Case("reddit, sage", "epoch", [_REDDIT], most=0.30),
    Case("reddit, sage, recorded", "epoch", [_REDDIT, _RECORDED], most=0.10),
    Case("products, sage", "epoch", [_PRODUCTS], most=0.60),
    Case("products, sage, recorded", "epoch", [_PRODUCTS, _RECORDED], most=0.20),
    Case("products, gat", "epoch", [_PRODUCTS, _GAT], most=2.0),
    Case("products, sampling", "sampling", [_PRODUCTS], least=1.5e9),
    Case("products, sage, 10 % of the rows cached", "epoch", [_PRODUCTS, _CACHED]),
    Case("products, sage, drawn by the CPU", "epoch", [_PRODUCTS, _FROM_HOST]),
    Case("products, exact inference", "inference", [_PRODUCTS], most=0.5),
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


class NoEvaluation:
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


def measure(
    case: Case,
    store: GraphStore,
    config: Config,
    device: torch.device,
    rounds: int,
    record: Record | None = None,
) -> Figure:
    """Measure one case on an opened store."""
    if device.type == "cuda":
        # What earlier cases have left would count as taken.
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with tempfile.TemporaryDirectory() as scratch:
        parts = Parts(config, store, DistributedContext(device=device), Path(scratch))
        stage = {"epoch": _epochs, "sampling": _sampling, "inference": _inference}[case.stage]
        values, notes = stage(parts, rounds, record)
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    must = case.most if case.most is not None else case.least
    reached = None
    if must is not None:
        reached = median <= must if case.most is not None else median >= must
    unit = "edges/s" if case.stage == "sampling" else "s"
    notes["placement"] = list(parts.placement_in_words)
    if device.type == "cuda":
        notes["peak_gpu_bytes"] = torch.cuda.max_memory_allocated(device)
    return Figure(case.name, unit, values, median, lower, upper, must, reached, notes)


def _epochs(parts: Parts, rounds: int, record: Record | None) -> tuple[list[float], dict[str, Any]]:
    loader = parts.loader()
    trainer = Trainer(
        parts.model,
        loader,
        NoEvaluation(),
        task=parts.store.task,
        metric=parts.store.metric,
        config=parts.config.trainer,
        context=parts.context,
        record=record,
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


def _sampling(
    parts: Parts, rounds: int, _record: Record | None
) -> tuple[list[float], dict[str, Any]]:
    sampler = parts.device_sampler(tuple(parts.config.sampler.fan_outs))
    plan = parts.plan()
    order = plan.order(0)
    batches = [plan.share(order, step).seeds for step in range(plan.num_steps)]
    rates = []
    for turn in range(rounds + 1):
        _wait(parts.context.device)
        begin, num_edges = time.perf_counter(), 0
        for step, seeds in enumerate(batches):
            drawn = sampler.sample(seeds, key=SampleKey(0, turn, step))
            num_edges += sum(drawn.num_sampled_edges)
        _wait(parts.context.device)
        rates.append(num_edges / (time.perf_counter() - begin))
    return rates[1:], {"batches": len(batches)}


def _inference(
    parts: Parts, rounds: int, _record: Record | None
) -> tuple[list[float], dict[str, Any]]:
    evaluator, model = parts.evaluator, parts.model
    assert isinstance(evaluator, LayerwiseEvaluator)
    assert isinstance(model, GNN)
    seconds = []
    for _ in range(rounds + 1):
        _wait(parts.context.device)
        begin = time.perf_counter()
        evaluator.evaluate(model)
        _wait(parts.context.device)
        seconds.append(time.perf_counter() - begin)
    return seconds[1:], {"with": "the metrics of all splits"}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ratios(figures: Sequence[Figure]) -> dict[str, float]:
    """What is told as a share of another figure: the cache's speed, and the CPU sampler's."""
    seconds = {one.name: one.median for one in figures}
    resident = seconds.get("products, sage")
    others = {
        "speed with 10 % cached, of all rows on the GPU": (
            resident,
            seconds.get("products, sage, 10 % of the rows cached"),
        ),
        "speed-up over the CPU's sampler": (
            seconds.get("products, sage, drawn by the CPU"),
            resident,
        ),
    }
    return {name: a / b for name, (a, b) in others.items() if a is not None and b is not None}


def show(console: Console, figures: Sequence[Figure]) -> None:
    """The figures as a table."""
    table = Table(title="on a GPU, bf16, batches of 1,024", title_justify="left")
    table.add_column("what")
    for name in ("median", "quartiles", "unit", "must", "reached"):
        table.add_column(name, justify="right")
    for one in figures:
        must = "" if one.must is None else f"{one.must:.3g}"
        reached = {None: "", True: "yes", False: "no"}[one.reached]
        spread = f"{one.lower:.3g} - {one.upper:.3g}"
        table.add_row(one.name, f"{one.median:.3g}", spread, one.unit, must, reached)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="that count (default 5)")
    parser.add_argument(
        "--only", nargs="*", default=[], help="cases whose name contains one of these"
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("scripts.bench.gpu: torch sees no GPU on this machine")
    console = Console(width=None if sys.stdout.isatty() else 120)
    given = sys.argv[1:] if arguments is None else arguments
    command = ["python", "-m", "scripts.bench.gpu", *given]
    chosen = [
        case for case in CASES if not options.only or any(w in case.name for w in options.only)
    ]
    if len(run(chosen, options.rounds, console, options.json, command)) < len(chosen):
        sys.exit("scripts.bench.gpu: not all cases could be measured")


def run(
    cases: Sequence[Case],
    rounds: int,
    console: Console,
    path: Path | None,
    command: Sequence[str],
    *,
    device: torch.device | None = None,
    smaller: Keys | None = None,
    record: Callable[[Callable[[], None]], Callable[[], None]] | None = None,
) -> list[Figure]:
    """Measure the cases, print them, and write them after each, so that what was measured stays.

    A case that fails is told with its traceback, and the others are measured all the same.
    """
    place = device or torch.device("cuda", 0)
    machine = describe_environment(seed=0, command=command)
    figures: list[Figure] = []
    failures: dict[str, str] = {}
    for case in cases:
        console.print(f"{case.name} ...", highlight=False)
        try:
            config = config_of(case, epochs=rounds + 2, smaller=smaller)
            store = prepare_store(config.dataset).store
            figures.append(measure(case, store, config, place, rounds, record))
        except Exception:
            failures[case.name] = traceback.format_exc()
            console.print(failures[case.name], highlight=False, markup=False)
        if path is not None:
            report = {
                "machine": machine,
                "figures": [asdict(one) for one in figures],
                "ratios": ratios(figures),
                "failures": failures,
            }
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    show(console, figures)
    for name, value in ratios(figures).items():
        console.print(f"{name}: {value:.2f}", highlight=False)
    return figures


if __name__ == "__main__":
    main()
