"""gnntrain itself, configured, assembled and launched as the command does it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numba
import torch

import gnntrain
from gnntrain.app import compose_config
from gnntrain.build import build_evaluator, build_loaders, build_model, build_task
from gnntrain.config import Config
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.loading.batch import Batch
from gnntrain.loading.build import LoaderBuilder
from gnntrain.loading.loader import SeedPlan
from gnntrain.models import AnyModel
from gnntrain.run import prepare_store
from gnntrain.sampling.base import NO_TARGETS, SampleKey, Seeds
from gnntrain.sampling.cpu import CPUSampler
from gnntrain.startup import collection_paused, resume_collection
from gnntrain.tasks import Task
from gnntrain.training.evaluation import Evaluator
from gnntrain.training.records import Listener, StepProgress
from gnntrain.training.trainer import Trainer
from scripts.bench.peers.turns import Spec, Turns, compete

_LEAD_IN = 2
_SAGE = ("model=sage", "model.dropout=0")
# As GraphBolt's example: papers' features as they are, tables as wide.
_RGCN = (
    "model=rgcn",
    "model.dropout=0.5",
    "model.project_inputs=false",
    "model.featureless=embedding",
    "model.embedding_channels=128",
)


class _Finished(Exception):
    """The benchmark has no more turns."""


class StepTurns(Listener):
    """A listener that cuts the trainer's steps into turns, and waits between two."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._batch_size = turns.spec.batch_size
        self._number = self._left = 0
        self._began = 0.0

    def begin(self) -> None:
        """Wait for the next turn. Its first steps are not timed: their batches lay ready."""
        number = self._turns.wait()
        if number is None:
            raise _Finished
        self._number, self._left = number, number + _LEAD_IN

    def on_step(self, progress: StepProgress) -> None:
        self._left -= 1
        if self._left == self._number:
            self._began = time.perf_counter()
        elif self._left == 0:
            seconds = time.perf_counter() - self._began
            edges_a_seed = progress.edges_per_s / progress.seeds_per_s
            edges = round(edges_a_seed * self._number * self._batch_size)
            self._turns.report(self._number, seconds, edges)
            self.begin()


def config_of(spec: Spec) -> Config:
    """What a user would ask the command for."""
    model = _SAGE if spec.types is None else _RGCN
    overrides = [
        f"dataset={spec.dataset}",
        *spec.overrides,
        *model,
        f"model.hidden_channels={spec.hidden}",
        f"model.num_layers={len(spec.fan_outs)}",
        f"sampler.fan_outs={spec.fan_outs}",
        f"trainer.batch_size={spec.batch_size}",
        f"trainer.precision={spec.precision}",
        f"dataset.feature_dtype={'bfloat16' if spec.precision == 'bf16' else 'float32'}",
        "trainer.drop_last=true",
        "trainer.epochs=1000000",
        "trainer.eval_every=1000000",
        "trainer.gpus=0",
        f"distributed.threads={spec.threads}",
    ]
    if spec.stage == "gather":  # no step beside it: the threads are the loader's
        overrides += [f"sampler.threads={spec.threads}", f"sampler.prefetch={spec.threads}"]
    return compose_config(overrides)


def _built(
    context: DistributedContext, spec: Spec
) -> tuple[Config, StoredGraph, Task, AnyModel, LoaderBuilder]:
    config = config_of(spec)
    graph = prepare_store(config.dataset).store
    task = build_task(config, graph)
    model = build_model(config, task, graph, context)
    return config, graph, task, model, build_loaders(config, task, model, graph, context)


def train(context: DistributedContext, turns: Turns) -> None:
    """`step`: the trainer's own loop, from the loader to the optimiser."""
    config, graph, task, model, loaders = _built(context, turns.spec)
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        listener = StepTurns(turns)
        trainer = Trainer(
            model,
            loaders.training_loader(),
            build_evaluator(config, task, model, loaders, graph, context, scratch),
            task=task,
            config=config.trainer,
            context=context,
            listeners=[listener],
        )
        _ready(turns, f"Trainer, {loaders.backend} sampler, {config.trainer.precision}")
        try:
            listener.begin()
            trainer.fit()
        except _Finished:
            pass


def gather(context: DistributedContext, turns: Turns) -> None:
    """`gather`: the loader alone, with all that it does to make a batch ready."""
    config, *_, loaders = _built(context, turns.spec)
    loader = loaders.training_loader()

    def batches() -> Iterator[Batch]:
        for epoch in count(1):
            loader.set_epoch(epoch)
            yield from loader

    endless = batches()
    _ready(turns, f"loader with {config.sampler.threads} threads")
    lead_in = _LEAD_IN * turns.spec.threads
    turns.take(lambda: sum(hop.num_edges for hop in next(endless).hops), lead_in)


def sample(_: DistributedContext, turns: Turns) -> None:
    """`sampling`: the sampler alone, one batch a thread."""
    spec = turns.spec
    store = prepare_store(config_of(spec).dataset).store
    fan_outs = dict.fromkeys(store.edges, tuple(spec.fan_outs))
    sampler = CPUSampler(store.fused, fan_outs)
    plan = SeedPlan(store.split("train"), spec.batch_size, drop_last=True)
    order = plan.order(1)

    def draw(step: int) -> int:
        seeds = torch.from_numpy(plan.rank_batch(order, step % plan.num_steps).seeds)
        drawn = sampler.sample(Seeds({store.target: seeds}, NO_TARGETS), SampleKey(0, 1, step))
        return sum(hop.num_edges for hop in drawn.hops)

    _ready(turns, f"{type(sampler).__name__}, one batch a thread")
    step = 0
    with ThreadPoolExecutor(spec.threads) as pool:
        for number in turns:
            began = time.perf_counter()
            edges = sum(pool.map(draw, range(step, step + number)))
            turns.report(number, time.perf_counter() - began, edges)
            step += number


def infer(context: DistributedContext, turns: Turns) -> None:
    """`inference`: exact outputs of all nodes; every batch is one whole pass."""
    config, graph, task, model, loaders = _built(context, turns.spec)
    with tempfile.TemporaryDirectory() as directory:
        evaluator = build_evaluator(
            config, task, model, loaders, graph, context, Path(directory), exact=True
        )
        _ready(turns, "LayerwiseEvaluator.infer, all nodes")
        turns.take(lambda: _pass(evaluator, model, graph))


def _pass(evaluator: Evaluator, model: AnyModel, store: StoredGraph) -> int:
    evaluator.infer(model)
    return store.num_edges * len(model.convs)  # type: ignore[arg-type]


def _ready(turns: Turns, note: str) -> None:
    resume_collection()  # as a rank does when all is built
    versions = {
        "gnntrain": gnntrain.__version__,
        "torch": torch.__version__,
        "numba": numba.__version__,
    }
    turns.ready(note, versions)


STAGES = {"sampling": sample, "gather": gather, "step": train, "inference": infer}


def _run(turns: Turns) -> None:
    launch(STAGES[turns.spec.stage], turns, LaunchPlan.of(config_of(turns.spec)))


if __name__ == "__main__":
    with collection_paused():
        compete(_run)
