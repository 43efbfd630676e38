"""A few steps and a part of the evaluation, on all ranks, as the run would do them."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gnntrain.components import Components
from gnntrain.config import Config
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.models import GNN, PlainModel
from gnntrain.planning.evaluation import PartialEvaluator
from gnntrain.planning.measured import BatchSize, EvaluationCost, RankMeasure
from gnntrain.planning.resident import OwnPeak, mapped_from, resident
from gnntrain.planning.steps import WatchedLoader
from gnntrain.training.forward import needs_of
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
class Job:
    """What a rank needs to know; plain and picklable.

    Attributes:
        config: The resolved configuration.
        store: Directory of the graph store.
        answer: File for what was measured.
    """

    config: Config
    store: Path
    answer: Path


def calibrate(config: Config, store: StoredGraph, plan: LaunchPlan) -> list[RankMeasure]:
    """What every rank measured, in rank order. Nothing is left behind.

    Raises:
        GnntrainError: A rank failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "measured.json"
        launch(
            "gnntrain.planning.calibration:measure_rank",
            Job(config, store.path, answer),
            LaunchPlan(plan.world_size, plan.use_gpus, plan.threads, plan.timeout, Path(folder)),
        )
        return [_measure(plain) for plain in json.loads(answer.read_text())]


def measure_rank(context: DistributedContext, job: Job) -> None:
    """One rank's part; rank 0 writes down what all measured."""
    import gnntrain.worker  # noqa: F401  # what a run's rank has in memory

    config = job.config
    store = StoredGraph.open(job.store, check=False)
    with tempfile.TemporaryDirectory() as folder, OwnPeak() as peak:
        components = Components(config, store, context, Path(folder))
        loader = components.loader()
        watched = WatchedLoader(loader, context)
        evaluator = PartialEvaluator(components, peak)
        Trainer(
            components.model,
            watched,
            evaluator,
            task=components.task,
            config=config.trainer.model_copy(update=_UNBOUNDED),
            context=context,
        ).fit()
        assert evaluator.cost is not None
        measured = RankMeasure(
            num_parameters=components.num_parameters,
            steps_per_epoch=len(loader),
            step_seconds=watched.seconds / watched.num_timed,
            num_timed=watched.num_timed,
            batches=tuple(watched.sizes),
            own_peak=evaluator.own_peak,
            own_after=evaluator.own_before,
            library_bytes=resident().files - mapped_from(store.path),
            store_bytes=_bytes_read(store, components.model),
            gpu_peak=peak_gpu_bytes(context.device),
            evaluation=evaluator.cost,
            placement=components.loaders.why_placed,
        )
    everyone = context.gather(asdict(measured))
    if context.is_main:
        job.answer.write_text(json.dumps(everyone))


def _bytes_read(store: StoredGraph, model: GNN | PlainModel) -> int:
    """Bytes of the store's arrays that training and evaluation read."""
    needs = needs_of(model)
    unread = {"node_ids"}
    unread |= set() if needs.weight else {"edge_weight"}
    unread |= set() if needs.norm else {"gcn_norm"}
    return sum(array.bytes for name, array in store.meta.arrays.items() if name not in unread)


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
