"""The training loop: epochs, batches, steps; callbacks do the rest."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from gnntrain.config import CheckpointConfig, TrainerConfig
from gnntrain.devices import peak_memory
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import Interrupted
from gnntrain.loading.loader import Loader
from gnntrain.models import AnyModel
from gnntrain.models.embedding import num_parameters
from gnntrain.phases import Phases, combined
from gnntrain.tasks import Task
from gnntrain.training.callbacks import (
    Callback,
    EarlyStopping,
    MetricSchedule,
    RankProgress,
    Reporting,
    StopOnSignal,
)
from gnntrain.training.checkpoint import CheckpointError, State, load_weights
from gnntrain.training.checkpointing import Checkpointing
from gnntrain.training.cuda_graph import Record
from gnntrain.training.divergence import DivergenceGuard
from gnntrain.training.evaluation import Evaluator, SplitMetrics, take_marks
from gnntrain.training.memory import memory_explained, resident_bytes, training_hint
from gnntrain.training.records import EpochRecord, FitResult, Listener
from gnntrain.training.snapshot import (
    EpochTotals,
    RankState,
    rank_state,
    restore_rng,
    restored_totals,
)
from gnntrain.training.step import PlainStep, ReplayedStep, Step
from gnntrain.training.update import Update

_log = logging.getLogger("gnntrain")

# Exceptions of optimisers, schedules and generators for a state of another kind.
_UNUSABLE = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError)


class Trainer:
    """Trains a model: every rank makes one and calls `fit`.

        trainer = Trainer(model, loader, evaluator, task=task, config=TrainerConfig(epochs=10))
        result = trainer.fit()

    One rank runs the same code as many: with a world size of 1 a collective is the identity.

    Args:
        model: On the context's device already, with equal weights on all ranks.
        loader: This rank's mini-batches.
        evaluator: Called every `config.eval_every` epochs and after the last.
        task: Loss and metrics; its deciding metric, on the validation split, says which epoch is
            the best.
        config: The `trainer` keys; None: the defaults.
        context: This rank; None: the only one, on the CPU.
        listeners: Called after steps and epochs; on rank 0 only.
        callbacks: Further hooks, called after the trainer's own, but before a signal ends training;
            the same on all ranks.
        checkpoints: Directory for `last.pt` and `best.pt`; None, also on other ranks than 0:
            nothing is written.
        checkpoint_config: The `checkpoint` keys: when to save inside an epoch.
        identity: Plain data that a checkpoint carries besides (the resolved configuration).
        record: How a step is recorded with `config.cuda_graph`, see `CUDAGraphStep`; the loader is
            then a `SampledLoader` whose sampler can pad.

    Attributes:
        result: The result so far.
        step: Optimiser steps since the run began, the present one included.
        totals: Sums over the steps of the present epoch; None between epochs.
        update: The optimiser and its schedule.
        callbacks: In the order in which their hooks are called.
        should_stop: Set by a callback, on all ranks, to end training after the present epoch.
    """

    def __init__(
        self,
        model: AnyModel,
        loader: Loader,
        evaluator: Evaluator,
        *,
        task: Task,
        config: TrainerConfig | None = None,
        context: DistributedContext | None = None,
        listeners: Sequence[Listener] = (),
        callbacks: Sequence[Callback] = (),
        checkpoints: Path | None = None,
        checkpoint_config: CheckpointConfig | None = None,
        identity: dict[str, Any] | None = None,
        record: Record | None = None,
    ) -> None:
        self.model = model
        self.loader = loader
        self.evaluator = evaluator
        self.task = task
        self.config = config = config or TrainerConfig()
        self.context = context = context or DistributedContext()
        self.result = FitResult()
        self.step = 0
        self.totals: EpochTotals | None = None
        self.should_stop = False
        self._num_steps = config.epochs * len(loader)
        if config.max_steps is not None:
            self._num_steps = min(self._num_steps, config.max_steps)
        self._identity = identity or {}
        self._began = time.monotonic()
        self._phases = Phases(context.device)
        self.update = Update(
            model,
            task,
            config,
            context,
            steps_per_epoch=len(loader),
            num_steps=self._num_steps,
            phases=self._phases,
        )
        self._take_step: Step = PlainStep(self.update, loader, context, self._phases)
        if config.cuda_graph:
            self._take_step = ReplayedStep(self.update, loader, context, self._phases, record)
        listeners = listeners if context.is_main else ()
        self._checkpointing = Checkpointing(
            checkpoints, checkpoint_config or CheckpointConfig(), context
        )
        self.callbacks: list[Callback] = [
            RankProgress(),
            DivergenceGuard(),  # before a callback saves or shows a loss that is not finite
            MetricSchedule(),  # before the schedule is saved
            self._checkpointing,
            Reporting(listeners, config.log_every, every_step=not config.cuda_graph),
            EarlyStopping(config.patience),
            *callbacks,
            StopOnSignal(context, listeners),  # after all others have seen the step
        ]

    @property
    def num_parameters(self) -> int:
        """Trainable parameters of the model."""
        return num_parameters(self.model)

    @property
    def epoch(self) -> int:
        """The present epoch, from 1; between two epochs the next one."""
        return len(self.result.records) + 1

    @property
    def is_over(self) -> bool:
        """Whether training is complete; equal on all ranks."""
        if self.totals is not None:  # an epoch was broken off
            return False
        is_done = self.epoch > self.config.epochs or self.step >= self._num_steps
        return is_done or self.should_stop or self.result.is_pruned

    def fit(self) -> FitResult:
        """Train to the end, or until a callback stops it.

        Pending checkpoints are written also if an exception ends it.

        Raises:
            Interrupted: A signal asked for it: on all ranks after the same step, or instead of the
                same evaluation; the checkpoint is written.
            Diverged: The loss is not finite.
            RunError: Memory ran out; or the last checkpoint could not be written.
        """
        self._began = time.monotonic()
        for callback in self.callbacks:
            callback.on_fit_start(self)
        try:
            while not self.is_over:
                for callback in self.callbacks:
                    callback.before_epoch(self)
                record = self._run_epoch()
                for callback in self.callbacks:
                    callback.after_epoch(self, record)
        finally:
            for callback in self.callbacks:
                callback.on_fit_end(self)
        self._checkpointing.raise_failure()
        return self.result

    def _run_epoch(self) -> EpochRecord:
        where = lambda: f"in epoch {self.epoch}, at step {self.step} of the run"  # noqa: E731
        with memory_explained(where, training_hint(self.loader, self.config)):
            totals = self._train()
        loss, num_seeds, num_edges, hit_rate = self._reduced(totals)
        seconds = totals.seconds
        _log.info("epoch %d: step %d, loss %g, %.3f s", self.epoch, self.step, loss, seconds)
        began = time.perf_counter()
        metrics = self._evaluate()
        eval_seconds = time.perf_counter() - began
        record = EpochRecord(
            epoch=self.epoch,
            step=self.step,
            train_loss=loss,
            metrics=metrics,
            constant=take_marks(metrics),
            lr=totals.lr,
            seconds=seconds,
            eval_seconds=eval_seconds,
            seeds_per_s=num_seeds / seconds,
            edges_per_s=num_edges / seconds,
            memory_bytes=sum(self.context.gather(resident_bytes())),
            gpu_memory_bytes=peak_memory(self.context.device) or None,
            cache_hit_rate=hit_rate,
            time=totals.times | {"evaluation": eval_seconds},
        )
        self.totals = None
        self.result.add(record, self.task.metric.name)
        return record

    def _train(self) -> EpochTotals:
        totals = self._begin_epoch()
        begin = time.perf_counter() - totals.seconds
        for batch in self._batches():
            self.step += 1
            for callback in self.callbacks:
                callback.before_step(self)
            totals.lr = self.update.lr
            totals.num_steps += 1
            self._take_step(batch, totals)
            self.update.schedule.after_step()
            totals.seconds = time.perf_counter() - begin
            for callback in self.callbacks:
                callback.after_step(self, totals)
            del batch  # or it would live on while the next is waited for
        for callback in self.callbacks:
            callback.after_steps(self, totals)
        totals.seconds = time.perf_counter() - begin
        totals.add_times(self._new_times())
        return totals

    def _begin_epoch(self) -> EpochTotals:
        """The totals of the epoch: those of an unfinished epoch, or new ones."""
        self.update.begin_epoch()
        if self.totals is None:
            self.totals = EpochTotals.start(self.context.device)
            self.loader.set_epoch(self.epoch)
            self.loader.take_reads()  # evaluation's do not count
        return self.totals

    def _batches(self) -> Iterator[Any]:
        """The rest of the epoch's batches, at most as many as steps are left."""
        if self.step >= self._num_steps:
            return
        for batch in self._phases.each("wait", self._take_step.batches()):
            yield batch
            del batch  # or it would live on while the next is waited for
            if self.step >= self._num_steps:
                return

    def _reduced(self, totals: EpochTotals) -> tuple[float, int, int, float | None]:
        """The epoch's mean loss, seeds, edges and share of cached rows over all ranks."""
        values = [float(totals.loss), totals.num_seeds, totals.total_edges()]
        values += self.loader.take_reads()
        if self.context.world_size > 1:
            own = torch.tensor(values, dtype=torch.float64, device=self.context.device)
            values = self.context.sum(own).tolist()
        loss, num_seeds, num_edges, num_hits, num_reads = values
        hit_rate = num_hits / num_reads if num_reads else None
        return loss / max(1.0, num_seeds), int(num_seeds), int(num_edges), hit_rate

    def _evaluate(self) -> SplitMetrics:
        """The metrics of all splits; empty if no evaluation is due."""
        is_last = self.epoch == self.config.epochs or self.step >= self._num_steps
        if not is_last and self.epoch % self.config.eval_every:
            return {}
        # Batch-norm statistics differ between ranks; the checkpoint holds rank 0's.
        self.context.synchronize_buffers(self.model)
        where = f"in the evaluation after epoch {self.epoch}"
        try:
            with memory_explained(lambda: where, self.evaluator.memory_hint):
                return self.evaluator.evaluate(self.model)
        except Interrupted:
            # All ranks have met: the epoch's training is saved, its evaluation still due.
            if self.context.world_size == 1 or not self.context.control.is_abandoned:
                self.save_checkpoint()
            raise

    def save_checkpoint(self) -> None:
        """Have rank 0 write a checkpoint at once. Collective.

        Raises:
            Diverged: A number is not finite.
        """
        self._checkpointing.save(self, at_once=True)

    def gather_rank_states(self) -> list[RankState]:
        """The states of all ranks, on rank 0; empty on the others. Collective."""
        if self.totals is not None:
            self.totals.add_times(self._new_times())
        return self.context.gather_to_main(rank_state(self.totals, self.context.device))

    def state_dict(self, ranks: list[RankState]) -> State:
        """The state for `load_state`, copied. Records are immutable and many, and not copied.

        Args:
            ranks: As `gather_rank_states` gives them.
        """
        return {
            **self.update.state_dict(),
            "loader": self.loader.state_dict(),
            "ranks": ranks,
            "epoch": len(self.result.records),
            "step": self.step,
            "best_epoch": self.result.best_epoch,
            "best": self.result.best,
            "history": [vars(record) for record in self.result.records],
            "world_size": self.context.world_size,
            "num_parameters": self.num_parameters,
            "global_batch_size": self.loader.plan.global_batch_size,
            "seconds": self.result.seconds_before + time.monotonic() - self._began,
            **self._identity,
        }

    def load_state(self, state: State, path: Path | str = "") -> None:
        """Go on from a checkpoint, on any number of ranks with the same global batch.

        On the CPU, with as many ranks as before, the run equals an uninterrupted one bit for bit.
        Called on all ranks, before `fit`.

        Args:
            state: As `load_checkpoint` gives it.
            path: Where it came from, for messages.

        Raises:
            CheckpointError: It is another model's, or lacks an entry.
        """
        load_weights(self.model, state, path)
        try:
            self.update.load_state_dict(state)
            self.loader.load_state_dict(state["loader"])
            self.step = int(state["step"])
            self.result.records[:] = [EpochRecord(**row) for row in state["history"]]
            self.result.best_epoch, self.result.best = state["best_epoch"], state["best"]
            self.result.seconds_before = float(state["seconds"])
            self.totals = restored_totals(state["ranks"], self.context)
            restore_rng(state["ranks"], self.context, seed=self.config.seed, step=self.step)
        except _UNUSABLE as error:
            reason = f"it does not hold what going on needs ({type(error).__name__}: {error})"
            raise CheckpointError(Path(path), reason) from error

    def _new_times(self) -> dict[str, float]:
        return combined(self._phases.drain(), self.loader.phases.drain())
