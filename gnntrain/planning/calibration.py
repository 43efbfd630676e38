"""A few steps and a part of the evaluation, on all ranks, as the run would do them."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gnntrain.build import build_evaluator, build_loaders, build_model, build_task
from gnntrain.config import Config
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.models import GNN, PlainModel
from gnntrain.planning.evaluation import PartialEvaluator
from gnntrain.planning.measured import BatchSize, EvaluationCost, RankMeasure
from gnntrain.planning.resident import OwnPeak, mapped_from, resident
from gnntrain.planning.steps import WatchedLoader
from gnntrain.training.measure import peak_gpu_bytes
from gnntrain.training.trainer import Trainer

# The watched loader says when it is enough, and takes each batch by itself.
_UNBOUNDED = {
    "epochs": 1,
    "max_steps": None,
    "warmup_epochs": 0,
    "scheduler": "none",
    "cuda_graph": False,
}


@dataclass(frozen=True, slots=True)
class CalibrationJob:
    """All that a rank is told; picklable.

    Attributes:
        config: The resolved configuration.
        store: Directory of the graph store.
        answer: File for the measures of all ranks.
    """

    config: Config
    store: Path
    answer: Path


def calibrate(config: Config, graph: StoredGraph, plan: LaunchPlan) -> list[RankMeasure]:
    """The measures of every rank, in rank order. No file is left behind.

    Raises:
        GnntrainError: A rank failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "measured.json"
        launch(
            "gnntrain.planning.calibration:measure_rank",
            CalibrationJob(config, graph.path, answer),
            plan,
            Path(folder),
        )
        return [_measure(plain) for plain in json.loads(answer.read_text())]


def measure_rank(context: DistributedContext, job: CalibrationJob) -> None:
    """Measure on this rank; rank 0 writes the measures of all."""
    import gnntrain.worker  # noqa: F401  # a rank of a run has it in memory

    config = job.config
    graph = StoredGraph.open(job.store, check=False)
    with tempfile.TemporaryDirectory() as folder, OwnPeak() as peak:
        task = build_task(config, graph)
        model = build_model(config, task, graph, context)
        loaders = build_loaders(config, task, model, graph, context)
        loader = loaders.training_loader()
        watched = WatchedLoader(loader, context)
        whole = build_evaluator(config, task, model, loaders, graph, context, Path(folder))
        evaluator = PartialEvaluator(whole, task, graph, context, peak)
        trainer = Trainer(
            model,
            watched,
            evaluator,
            task=task,
            config=config.trainer.model_copy(update=_UNBOUNDED),
            context=context,
        )
        trainer.fit()
        assert evaluator.cost is not None
        measured = RankMeasure(
            num_parameters=trainer.num_parameters,
            steps_per_epoch=len(loader),
            step_seconds=watched.seconds / watched.num_timed,
            num_timed=watched.num_timed,
            batches=tuple(watched.sizes),
            own_peak=evaluator.own_peak,
            own_after=evaluator.own_before,
            library_bytes=resident().files - mapped_from(graph.path),
            store_bytes=_bytes_read(graph, model),
            gpu_peak=peak_gpu_bytes(context.device),
            evaluation=evaluator.cost,
            placement=loaders.why_placed,
        )
    everyone = context.gather(asdict(measured))
    if context.is_main:
        job.answer.write_text(json.dumps(everyone))


def _bytes_read(graph: StoredGraph, model: GNN | PlainModel) -> int:
    """Bytes of the store's arrays that training and evaluation read."""
    needs = model.needs
    unread = {"node_ids"}
    unread |= set() if needs.weight else {"edge_weight"}
    unread |= set() if needs.norm else {"gcn_norm"}
    return sum(array.bytes for name, array in graph.meta.arrays.items() if name not in unread)


def _measure(plain: dict[str, Any]) -> RankMeasure:
    cost = plain["evaluation"]
    return RankMeasure(
        **plain
        | {
            "batches": tuple(_batch(batch) for batch in plain["batches"]),
            "evaluation": EvaluationCost(
                tuple(cost["seconds"]), cost["extra_bytes"], tuple(cost["widths"])
            ),
            "placement": tuple(plain["placement"]),
        }
    )


def _batch(plain: dict[str, Any]) -> BatchSize:
    return BatchSize(**plain | {key: tuple(plain[key]) for key in ("num_dst", "num_edges")})
