"""How fast gnntrain is on a GPU.

    python -m scripts.bench.gpu --json gpu.json

Epochs of the training part, eager and as a recorded CUDA graph; sampling alone; exact inference; a
cache of hot rows beside all rows on the GPU; sampling with gathering, beside WholeGraph where it is
installed; the CPU's sampler feeding the GPU; torch's operators alone. One after another, on the
same graphs, each in a process of its own. The first rounds, which compile, do not count. A kernel
that fails the self-check is replaced; the figure's notes say so.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from gnntrain.build import (
    build_layerwise,
    build_loaders,
    build_model,
    build_task,
    training_plan,
)
from gnntrain.compute.features import LazyFeatures, as_tensor
from gnntrain.compute.selection import select
from gnntrain.config import Config, from_dict
from gnntrain.data.graph import EDGE, NODE
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.build import LoaderBuilder
from gnntrain.loading.features import rows_of
from gnntrain.models import GNN
from gnntrain.reporting.environment import describe_environment
from gnntrain.run import prepare_store
from gnntrain.sampling.base import NO_TARGETS, SampleKey, Seeds
from gnntrain.selfcheck import kernel_choice
from gnntrain.training.cuda_graph import Record
from gnntrain.training.evaluation import Evaluator, SplitMetrics
from gnntrain.training.trainer import Trainer
from scripts.bench import wholegraph
from scripts.bench.gpu_apart import end_a_hang, run_apart
from scripts.bench.gpu_figures import (
    BY_TORCH,
    CACHED,
    FROM_HOST,
    GATHERING,
    RESIDENT,
    WHOLEGRAPH,
    WORK,
    Figure,
    Report,
)
from scripts.bench.wholegraph import Gathered, LeftOut

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
    Case("reddit, sage", "epoch", [_REDDIT], most=0.30),
    Case("reddit, sage, recorded", "epoch", [_REDDIT, _RECORDED], most=0.10),
    Case(RESIDENT, "epoch", [_PRODUCTS], most=0.60),
    Case("products, sage, recorded", "epoch", [_PRODUCTS, _RECORDED], most=0.20),
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

    def __init__(
        self, config: Config, store: StoredGraph, context: DistributedContext, scratch_dir: Path
    ) -> None:
        self.config, self.store, self.context = config, store, context
        self.scratch_dir = scratch_dir
        self.task = build_task(config, store)
        self.model = build_model(config, self.task, store, context)
        self.kernels = kernel_choice(config, context.device.type)
        select(self.kernels, context.device.type)
        loaders = build_loaders(config, self.task, self.model, store, context)
        assert isinstance(loaders, LoaderBuilder), "of a graph with one type"
        self.loaders = loaders


def measure(
    case: Case,
    store: StoredGraph,
    config: Config,
    device: torch.device,
    rounds: int,
    record: Record | None = None,
) -> Figure:
    """Measure one case on an opened store."""
    if device.type == "cuda":
        # What earlier cases have left would count as taken.
        gc.collect()
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(config, store, DistributedContext(device=device), Path(scratch))
        stage, unit = _STAGES[case.stage]
        values, notes = stage(bench, rounds, record)
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    must = case.most if case.most is not None else case.least
    reached = None
    if must is not None:
        reached = median <= must if case.most is not None else median >= must
    notes.setdefault("placement", list(bench.loaders.why_placed))
    notes["kernels"] = asdict(bench.kernels)
    if device.type == "cuda":
        notes["peak_gpu_bytes"] = torch.cuda.max_memory_allocated(device)
    return Figure(case.name, unit, values, median, lower, upper, must, reached, notes)


def _epochs(bench: Bench, rounds: int, record: Record | None) -> tuple[list[float], dict[str, Any]]:
    loader = bench.loaders.training_loader()
    trainer = Trainer(
        bench.model,
        loader,
        NoEvaluation(),
        task=bench.task,
        config=bench.config.trainer,
        context=bench.context,
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
    bench: Bench, rounds: int, _record: Record | None
) -> tuple[list[float], dict[str, Any]]:
    sampler = bench.loaders.sampler(bench.config.sampler.fan_outs)
    plan = training_plan(bench.config, bench.task, bench.context)
    order = plan.order(0)
    batches = [plan.rank_batch(order, step).seeds for step in range(plan.num_steps)]

    def draw(turn: int, step: int) -> int:
        seeds = Seeds({NODE: as_tensor(batches[step])}, NO_TARGETS)
        drawn = sampler.sample(seeds, SampleKey(0, turn, step))
        return sum(drawn.num_sampled_edges[EDGE])

    rates = _rates(bench.context.device, rounds, len(batches), draw)
    return rates, {"batches": len(batches)}


def _gathering(
    bench: Bench, rounds: int, _record: Record | None
) -> tuple[list[float], dict[str, Any]]:
    """Batches are drawn, and the rows of all their nodes copied, in the store's precision."""
    sampler = bench.loaders.sampler(bench.config.sampler.fan_outs)
    table = LazyFeatures(rows_of(bench.store.nodes[NODE]).to(bench.context.device))

    def draw(seeds: Tensor, key: SampleKey) -> Gathered:
        drawn = sampler.sample(Seeds({NODE: seeds}, NO_TARGETS), key)
        nodes = drawn.nodes[NODE]
        rows = replace(table, nodes=nodes).whole(table.rows.dtype)
        return Gathered(sum(hop.num_edges for hop in drawn.hops), nodes, rows)

    return _gathering_rates(bench, rounds, torch.int64, draw)


def _wholegraph(
    bench: Bench, rounds: int, _record: Record | None
) -> tuple[list[float], dict[str, Any]]:
    """What `_gathering` does, by WholeGraph."""
    fan_outs, store = bench.config.sampler.fan_outs, bench.store
    assert isinstance(fan_outs, tuple)  # the same of all edge types
    memory_type, refused = wholegraph.usable_memory()
    arrays = as_tensor(store.indptr), as_tensor(store.indices), rows_of(store.nodes[NODE])
    with wholegraph.opened(memory_type, *arrays) as peer:
        rates, notes = _gathering_rates(
            bench, rounds, arrays[1].dtype, lambda seeds, _: peer.draw(seeds, fan_outs)
        )
    num_bytes = sum(array.nbytes for array in arrays)
    where = f"{num_bytes / 2**30:.2f} GiB in WholeGraph's {memory_type} memory, beside torch's"
    return rates, notes | {
        "version": wholegraph.version(),
        "placement": [where],
        "refused": refused,
    }


def _gathering_rates(
    bench: Bench,
    rounds: int,
    seed_dtype: torch.dtype,
    draw: Callable[[Tensor, SampleKey], Gathered],
) -> tuple[list[float], dict[str, Any]]:
    """Edges a second of `draw`, which is given seeds on the device; what it drew is noted."""
    device, plan = bench.context.device, training_plan(bench.config, bench.task, bench.context)
    order = plan.order(0)
    shares = [plan.rank_batch(order, step).seeds for step in range(plan.num_steps)]
    batches = [torch.from_numpy(seeds).to(device, seed_dtype) for seeds in shares]
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
    return rates, {"batches": len(batches), **dict(zip(WORK, means, strict=True))}


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


def _inference(
    bench: Bench, rounds: int, _record: Record | None
) -> tuple[list[float], dict[str, Any]]:
    model, context = bench.model, bench.context
    assert isinstance(model, GNN)
    evaluator = build_layerwise(
        bench.config, bench.task, bench.loaders, bench.store, context, bench.scratch_dir
    )
    seconds = []
    for _ in range(rounds + 1):
        _wait(bench.context.device)
        begin = time.perf_counter()
        evaluator.evaluate(model)
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="that count (default 5)")
    parser.add_argument(
        "--only", nargs="*", default=[], help="cases whose name contains one of these"
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
    console = Console(width=None if sys.stdout.isatty() else 120)
    given = sys.argv[1:] if arguments is None else arguments
    command = ["python", "-m", "scripts.bench.gpu", *given]
    if options.here is not None:
        end_a_hang()
        chosen = [case for case in CASES if case.name == options.here]
        report = run(chosen, options.rounds, console, options.json, command)
    else:
        chosen = [
            case for case in CASES if not options.only or any(w in case.name for w in options.only)
        ]
        graphs = {case.name: config_of(case, epochs=1).dataset for case in chosen}
        report = run_apart(
            list(graphs),
            options.rounds,
            console,
            options.json,
            command,
            prepare=lambda name: prepare_store(graphs[name]),
        )
        report.show(console)
    if report.failures:
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
    record: Record | None = None,
) -> Report:
    """Measure the cases here, and write them after each, so that what was measured stays.

    A case that fails is told with its traceback, and the others are measured all the same.
    """
    place = device or torch.device("cuda", 0)
    report = Report(describe_environment(seed=0, command=command))

    def write() -> None:
        if path is not None:
            report.write(path)

    for case in cases:
        console.print(f"{case.name} ...", highlight=False)
        # What stays written where the process is ended.
        report.failures[case.name] = "the process ended while this was measured"
        write()
        try:
            config = config_of(case, epochs=rounds + 2, smaller=smaller)
            store = prepare_store(config.dataset).store
            report.figures.append(measure(case, store, config, place, rounds, record))
            del report.failures[case.name]
        except LeftOut as reason:
            report.left_out[case.name] = str(reason)
            del report.failures[case.name]
        except Exception:
            report.failures[case.name] = traceback.format_exc()
            console.print(report.failures[case.name], highlight=False, markup=False)
        write()
    return report


if __name__ == "__main__":
    main()
