"""The epoch loop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from gnntrain.config import CheckpointConfig, TrainerConfig
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.run_control import Phase
from gnntrain.errors import Interrupted
from gnntrain.loading.batch import MiniBatch
from gnntrain.loading.loader import BlockLoader, Loader
from gnntrain.loading.padded import PaddedBatches, SeedBatch
from gnntrain.models import GNN, PlainModel
from gnntrain.phases import Phases, combined
from gnntrain.tasks import Task
from gnntrain.training.checkpoint import CheckpointError, State, load_weights
from gnntrain.training.checkpoint_writer import CheckpointClock, CheckpointWriter
from gnntrain.training.cuda_graph import CUDAGraphStep, Record
from gnntrain.training.divergence import DivergenceGuard
from gnntrain.training.evaluation import Evaluator, SplitMetrics
from gnntrain.training.measure import peak_gpu_bytes, resident_bytes
from gnntrain.training.memory import evaluation_hint, memory_explained, training_hint
from gnntrain.training.records import Callback, EpochRecord, FitResult, Pruned, StepProgress
from gnntrain.training.snapshot import EpochTotals, rank_state, restore_rng, restored_totals
from gnntrain.training.stop_signal import StopSignal
from gnntrain.training.update import Update

_log = logging.getLogger("gnntrain")

# What optimisers, schedules and generators say of a state that is none.
_UNUSABLE = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError)


class Trainer:
    """Trains a model: every rank makes one and calls `fit`.

    Args:
        model: On the context's device already, with equal weights on all ranks.
        loader: This rank's mini-batches.
        evaluator: Called every `config.eval_every` epochs and after the last.
        task: Loss and metrics; its deciding metric, on the validation split, says which epoch is
            the best.
        config: The `trainer` keys.
        callbacks: Told what happens; on rank 0 only.
        checkpoints: Directory for `last.pt` and `best.pt`; None writes none.
        saving: The `checkpoint` keys: when to save inside an epoch.
        identity: Plain data that a checkpoint carries besides (the resolved configuration).
        record: How a step is recorded with `config.cuda_graph`, see `CUDAGraphStep`; the loader is
            then a `BlockLoader` whose sampler can pad.
    """

    def __init__(
        self,
        model: GNN | PlainModel,
        loader: Loader,
        evaluator: Evaluator,
        *,
        task: Task,
        config: TrainerConfig,
        context: DistributedContext | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoints: Path | None = None,
        saving: CheckpointConfig | None = None,
        identity: dict[str, Any] | None = None,
        record: Record | None = None,
    ) -> None:
        self.result = FitResult()
        self._model = model
        self._loader = loader
        self._evaluator = evaluator
        self._metric = task.metric.name
        self._config = config
        self._context = context or DistributedContext()
        self._callbacks = callbacks if self._context.is_main else ()
        self._writer = CheckpointWriter(checkpoints) if checkpoints is not None else None
        self._clock = CheckpointClock(saving or CheckpointConfig(), self._context)
        self._guard = DivergenceGuard(loader, config.lr)
        self._stop_signal = StopSignal(self._context, self._callbacks)
        self._identity = identity or {}
        self._broken_off: EpochTotals | None = None
        self._phases = Phases(self._context.device)
        self._began = time.monotonic()
        self._step = 0
        self._num_steps = config.epochs * len(loader)
        if config.max_steps is not None:
            self._num_steps = min(self._num_steps, config.max_steps)
        self._update = Update(
            model,
            task,
            config,
            self._context,
            steps_per_epoch=len(loader),
            num_steps=self._num_steps,
            phases=self._phases,
        )
        self._recorded: CUDAGraphStep | None = None
        if config.cuda_graph:
            batches = PaddedBatches(cast(BlockLoader, loader))
            self._recorded = CUDAGraphStep(
                batches, self._update, self._update.optimizer, self._context.device, record
            )

    def load_state(self, state: State, path: Path | str = "") -> None:
        """Go on from a checkpoint, on any number of ranks with the same global batch.

        With as many ranks as before, on the CPU, all that follows is bit for bit what it would
        have been. Called on all ranks, before `fit`.

        Args:
            state: As `load_checkpoint` gives it.
            path: Where it came from, for messages.

        Raises:
            CheckpointError: It is another model's, or does not hold what is needed.
        """
        load_weights(self._model, state, path)
        try:
            self._update.load_state_dict(state)
            self._loader.load_state_dict(state["loader"])
            self._step = int(state["step"])
            self.result.records[:] = [EpochRecord(**row) for row in state["history"]]
            self.result.best_epoch, self.result.best = state["best_epoch"], state["best"]
            self.result.seconds_before = float(state["seconds"])
            self._broken_off = restored_totals(state["ranks"], self._context)
            restore_rng(state["ranks"], self._context, seed=self._config.seed, step=self._step)
        except _UNUSABLE as error:
            reason = f"it does not hold what going on needs ({type(error).__name__}: {error})"
            raise CheckpointError(Path(path), reason) from error

    def fit(self) -> FitResult:
        """Train to the end, or until the validation metric has stalled for `patience` evaluations.

        `result` is up to date at any time, and the checkpoints of what was reached are written
        also when an exception ends it.

        Raises:
            Interrupted: A signal asked for it: on all ranks after the same step, or instead of the
                same evaluation; a checkpoint of just that is written.
            Diverged: The loss is not finite.
            RunError: Memory ran out; or the last checkpoint could not be written.
        """
        self._began = time.monotonic()
        self._clock.restart(self._step)
        self._enter(Phase.TRAINING, self._step)
        try:
            while not self._is_over():
                self._run_epoch(len(self.result.records) + 1)
        finally:
            self._enter(Phase.CLOSING, self._step)
            if self._writer is not None:
                self._writer.close()
        if self._writer is not None:
            self._writer.raise_failure()
        return self.result

    def _is_over(self) -> bool:
        if self._broken_off is not None:
            return False
        num_done = len(self.result.records)
        enough = num_done >= self._config.epochs or self._step >= self._num_steps
        stalled = self.result.has_stalled(self._config.patience)
        return enough or stalled or self.result.is_pruned

    def _run_epoch(self, epoch: int) -> None:
        where = lambda: f"in epoch {epoch}, at step {self._step} of the run"  # noqa: E731
        with memory_explained(where, training_hint(self._loader, self._config)):
            totals = self._train(epoch)
        loss, num_seeds, num_edges, hit_rate = self._reduced(totals)
        seconds = totals.seconds
        _log.info("epoch %d: step %d, loss %g, %.3f s", epoch, self._step, loss, seconds)
        evaluated = time.perf_counter()
        metrics = self._evaluated(epoch, totals)
        eval_seconds = time.perf_counter() - evaluated
        facts = self._context.gather((resident_bytes(), self._context.control.stop_requested))
        record = EpochRecord(
            epoch=epoch,
            step=self._step,
            train_loss=loss,
            metrics=metrics,
            lr=totals.lr,
            seconds=seconds,
            eval_seconds=eval_seconds,
            seeds_per_s=num_seeds / seconds,
            edges_per_s=num_edges / seconds,
            memory_bytes=sum(memory for memory, _ in facts),
            gpu_memory_bytes=peak_gpu_bytes(self._context.device) or None,
            cache_hit_rate=hit_rate,
            time=totals.times | {"evaluation": eval_seconds},
        )
        improved = self.result.add(record, self._metric)
        self._checkpoint(None, improved=improved)
        self._tell(record)
        if (asked := max(number for _, number in facts)) and not self._is_over():
            raise Interrupted(asked)

    def _tell(self, record: EpochRecord) -> None:
        """Tell rank 0's callbacks of an epoch; all ranks stop where one of them prunes the run."""
        is_pruned = False
        for callback in self._callbacks:
            try:
                callback.on_epoch(record)
            except Pruned:
                is_pruned = True
        self.result.is_pruned = self._context.broadcast(is_pruned)

    def _enter(self, phase: Phase, step: int) -> None:
        self._context.control.enter(phase, step)

    def _train(self, epoch: int) -> EpochTotals:
        self._update.begin_epoch()
        totals, self._broken_off = self._broken_off, None
        if totals is None:
            totals = EpochTotals.start(self._context.device)
            self._loader.set_epoch(epoch)
            self._loader.take_reads()  # evaluation's do not count
        begin = time.perf_counter() - totals.seconds
        if self._step < self._num_steps:
            for batch in self._phases.each("wait", self._batches()):
                self._train_step(batch, totals)
                totals.seconds = time.perf_counter() - begin
                self._after_step(epoch, totals)
                del batch  # or it would live on while the next is waited for
                if self._step >= self._num_steps:
                    break
        self._guard.refuse_loss(epoch, totals)
        self._guard.tell_skipped(epoch, totals)
        totals.seconds = time.perf_counter() - begin
        totals.add_times(self._new_times())
        return totals

    def _batches(self) -> Iterator[MiniBatch | SeedBatch]:
        """The epoch's batches; for a recorded step, what it makes them of."""
        if self._recorded is None:
            return iter(self._loader)
        return iter(self._recorded.batches)

    def _new_times(self) -> dict[str, float]:
        return combined(self._phases.drain(), self._loader.phases.drain())

    def _after_step(self, epoch: int, totals: EpochTotals) -> None:
        # To read the loss waits for a GPU: not at every step.
        is_due = totals.num_steps % self._config.log_every == 0
        if is_due or self._context.device.type == "cpu":
            self._guard.refuse_loss(epoch, totals)
        if self._callbacks and (is_due or self._recorded is None):
            self._report_step(epoch, totals, with_loss=is_due)
        self._stop_signal.after_step(self._step, lambda: self._save(epoch, totals, at_once=True))
        if self._clock.is_due(self._step):
            self._save(epoch, totals)

    def _save(self, epoch: int, totals: EpochTotals, *, at_once: bool = False) -> None:
        """Save inside an epoch. Collective."""
        self._guard.refuse_loss(epoch, totals)
        self._checkpoint(totals, improved=False, at_once=at_once)

    def _train_step(self, batch: MiniBatch | SeedBatch, totals: EpochTotals) -> None:
        self._enter(Phase.TRAINING, self._step + 1)
        self._stop_signal.before_exchange(self._step + 1)
        totals.lr = self._update.lr
        totals.num_steps += 1
        self._step += 1
        if not isinstance(batch, MiniBatch):
            assert self._recorded is not None
            with self._phases("replay"):
                self._recorded(batch, totals)
            totals.num_seeds += batch.num_counted
        elif self._update(self._moved(batch), totals):
            totals.num_seeds += batch.num_counted
        else:
            totals.num_skipped += 1
        self._update.schedule.after_step()

    def _moved(self, batch: MiniBatch) -> MiniBatch:
        with self._phases("transfer"):
            moved: MiniBatch = batch.to(self._context.device, non_blocking=True)
            return moved

    def _report_step(self, epoch: int, totals: EpochTotals, *, with_loss: bool) -> None:
        ranks = self._context.world_size  # rank 0 speaks for all: their shares are even
        num_edges = totals.total_edges() if with_loss else totals.num_edges
        progress = StepProgress(
            epoch=epoch,
            step=totals.num_steps,
            num_steps=len(self._loader),
            loss=float(totals.loss) / max(1, totals.num_seeds) if with_loss else None,
            seeds_per_s=ranks * totals.num_seeds / totals.seconds,
            edges_per_s=ranks * num_edges / totals.seconds,
            memory_bytes=resident_bytes() * ranks,
        )
        for callback in self._callbacks:
            callback.on_step(progress)

    def _reduced(self, totals: EpochTotals) -> tuple[float, int, int, float | None]:
        """The epoch's mean loss, seeds, edges and share of cached rows over all ranks."""
        values = [float(totals.loss), totals.num_seeds, totals.total_edges()]
        values += self._loader.take_reads()
        sums = self._context.sum(
            torch.tensor(values, dtype=torch.float64, device=self._context.device)
        )
        loss, num_seeds, num_edges, num_hits, num_reads = sums.tolist()
        hit_rate = num_hits / num_reads if num_reads else None
        return loss / max(1.0, num_seeds), int(num_seeds), int(num_edges), hit_rate

    def _evaluated(self, epoch: int, totals: EpochTotals) -> SplitMetrics:
        self._enter(Phase.EVALUATING, self._step)
        hint = evaluation_hint(self._evaluator, self._context.device)
        try:
            with memory_explained(lambda: f"in the evaluation after epoch {epoch}", hint):
                return self._evaluate(epoch)
        except Interrupted:
            # Where all ranks have met, the epoch's training is saved, and its evaluation is due.
            if self._context.world_size == 1 or not self._context.control.is_abandoned:
                self._checkpoint(totals, improved=False, at_once=True)
            raise

    def _evaluate(self, epoch: int) -> SplitMetrics:
        last = epoch == self._config.epochs or self._step >= self._num_steps
        if not last and epoch % self._config.eval_every:
            return {}
        # Batch-norm statistics differ between ranks; the checkpoint holds rank 0's.
        self._context.synchronize_buffers(self._model)
        metrics = self._evaluator.evaluate(self._model)
        value = metrics["val"].get(self._metric)
        if value is not None and not math.isnan(value):
            self._update.schedule.after_evaluation(value)
        return metrics

    def _checkpoint(
        self, totals: EpochTotals | None, *, improved: bool, at_once: bool = False
    ) -> None:
        """Save where training stands, inside an epoch with its totals so far. Collective."""
        self._guard.refuse_weights(self._model, self._step)
        if totals is not None:
            totals.add_times(self._new_times())
        ranks = self._context.gather_to_main(rank_state(totals, self._context.device))
        if self._writer is not None and self._context.is_main:
            self._writer.offer(self._state(ranks), best=improved, at_once=at_once)
        self._clock.restart(self._step)

    def _state(self, ranks: list[dict[str, Any]]) -> State:
        return {
            **self._update.state_dict(),
            "loader": self._loader.state_dict(),
            "ranks": ranks,
            "epoch": len(self.result.records),
            "step": self._step,
            "best_epoch": self.result.best_epoch,
            "best": self.result.best,
            # not copies: what was told of an epoch does not change, and many epochs are many
            "history": [vars(record) for record in self.result.records],
            "world_size": self._context.world_size,
            "global_batch_size": self._loader.plan.global_batch_size,
            "seconds": self.result.seconds_before + time.monotonic() - self._began,
            **self._identity,
        }
