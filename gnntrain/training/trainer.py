"""The training loop: epochs, steps, evaluations, checkpoints, signals."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnntrain import devices
from gnntrain.config import CheckpointConfig, TrainerConfig
from gnntrain.devices import is_gpu
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.run_control import SAVE, Phase
from gnntrain.errors import Diverged, Interrupted
from gnntrain.loading.loader import Loader, SampledLoader
from gnntrain.models import AnyModel
from gnntrain.models.embedding import num_parameters
from gnntrain.phases import Phases, combined
from gnntrain.tasks import Task
from gnntrain.training.checkpoint import CheckpointError, CheckpointWriter, State, load_weights
from gnntrain.training.cuda_graph import CUDAGraphStep
from gnntrain.training.evaluation import Evaluator, SplitMetrics, take_marks, warn_of_constant
from gnntrain.training.memory import memory_explained, resident_bytes, training_hint
from gnntrain.training.records import EpochRecord, FitResult, Listener, Pruned, StepProgress
from gnntrain.training.totals import EpochTotals
from gnntrain.training.update import Update

_log = logging.getLogger("gnntrain")

# Steps on several GPUs are enqueued ahead of the gradient exchange. Signals are looked for at every
# tenth step, which is waited for.
_GPU_STEPS = 10

# Exceptions of optimisers, schedules and generators for a state of another kind.
_UNUSABLE = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError)


class Callback:
    """Hooks into the training loop; each does nothing unless a callback overrides it.

    All ranks have the same callbacks and call each hook after the same step, so that a hook may use
    collectives.
    """

    def before_epoch(self, trainer: Trainer) -> None:
        """Another epoch is due, or the rest of one."""

    def after_step(self, trainer: Trainer, totals: EpochTotals) -> None:
        """The weights have moved; a GPU may still be computing. Must be cheap."""

    def after_steps(self, trainer: Trainer, totals: EpochTotals) -> None:
        """All steps of the epoch are done; it is not evaluated yet."""


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
        callbacks: Further hooks, the same on all ranks.
        checkpoints: Directory for `last.pt` and `best.pt`; None, also on other ranks than 0:
            nothing is written.
        checkpoint_config: The `checkpoint` keys: when to save inside an epoch.
        identity: Plain data that a checkpoint carries besides (the resolved configuration).

    Attributes:
        result: The result so far.
        step: Optimiser steps since the run began, the present one included.
        num_steps: Steps of the run; a callback may lower it, on all ranks after the same step.
        totals: Sums over the steps of the present epoch; None between epochs.
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
    ) -> None:
        self.model = model
        self.loader = loader
        self.evaluator = evaluator
        self.task = task
        self.config = config = config or TrainerConfig()
        self.context = context = context or DistributedContext()
        self.listeners = listeners if context.is_main else ()
        self.callbacks = list(callbacks)
        self.result = FitResult()
        self.step = 0
        self.totals: EpochTotals | None = None
        self.num_steps = config.epochs * len(loader)
        if config.max_steps is not None:
            self.num_steps = min(self.num_steps, config.max_steps)
        self._identity = identity or {}
        self._checkpoint_config = checkpoint_config or CheckpointConfig()
        self._writer = None if checkpoints is None else CheckpointWriter(checkpoints)
        if self._writer is not None:
            context.control.is_writing = self._writer.is_writing
        self._has_warned = False
        self._began = self._saved = time.monotonic()
        self._phases = Phases(context.device)
        self.update = Update(
            model,
            task,
            config,
            context,
            steps_per_epoch=len(loader),
            num_steps=self.num_steps,
            phases=self._phases,
        )
        self._recorded: CUDAGraphStep | None = None
        if loader.records_steps:
            assert isinstance(loader, SampledLoader)
            self._recorded = CUDAGraphStep(loader, self.update, self._phases)
        runs_ahead = is_gpu(context.device) and context.world_size > 1
        self._signal_steps = _GPU_STEPS if runs_ahead else 1

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
        is_done = self.epoch > self.config.epochs or self.step >= self.num_steps
        return is_done or self.result.is_pruned or self.result.has_stalled(self.config.patience)

    def fit(self) -> FitResult:
        """Train to the end, or until the metric has stalled or a listener prunes the run.

        Pending checkpoints are written also if an exception ends it.

        Raises:
            Interrupted: A signal asked for it: on all ranks after the same step, or instead of the
                same evaluation; the checkpoint is written.
            Diverged: The loss is not finite.
            RunError: Memory ran out; or the last checkpoint could not be written.
        """
        control = self.context.control
        self._began = self._saved = time.monotonic()
        control.enter(Phase.TRAINING, self.step)
        try:
            while not self.is_over:
                for callback in self.callbacks:
                    callback.before_epoch(self)
                if self.result.records:  # the checkpoint of the epoch before is written
                    self.context.meet()
                self._run_epoch()
        finally:
            control.enter(Phase.CLOSING, self.step)
            if self._writer is not None:
                self._writer.close()
        if self._writer is not None:
            self._writer.raise_failure()
        return self.result

    def _run_epoch(self) -> None:
        where = lambda: f"in epoch {self.epoch}, at step {self.step} of the run"  # noqa: E731
        with memory_explained(where, training_hint(self.loader, self.config)):
            totals = self._train()
        # The sums over all ranks.
        values = [float(totals.loss), totals.num_seeds, totals.total_edges()]
        values += self.loader.take_reads()
        if self.context.world_size > 1:
            own = torch.tensor(values, dtype=torch.float64, device=self.context.device)
            values = self.context.sum(own).tolist()
        loss_sum, num_seeds, num_edges, num_hits, num_reads = values
        loss, seconds = loss_sum / max(1, num_seeds), totals.seconds
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
            gpu_memory_bytes=devices.peak_memory(self.context.device) or None,
            cache_hit_rate=num_hits / num_reads if num_reads else None,
            time=totals.times | {"evaluation": eval_seconds},
        )
        if record.constant and not self._has_warned:
            self._has_warned = True
            warn_of_constant(record.constant, record.epoch)
        self.totals = None
        self.result.add(record, self.task.metric.name)
        self.update.after_evaluation(record.metric("val", self.task.metric.name))
        self.save_checkpoint(is_best=record.epoch == self.result.best_epoch)
        self._saved = time.monotonic()
        is_pruned = False
        for listener in self.listeners:
            try:
                listener.on_epoch(record)
            except Pruned:
                is_pruned = True
        self.result.is_pruned = self.context.broadcast(is_pruned)

    def _train(self) -> EpochTotals:
        """The steps of the epoch, or the rest of them."""
        context, config, control = self.context, self.config, self.context.control
        self.model.train()
        if self.totals is None:
            self.totals = EpochTotals.start(context.device)
            self.loader.set_epoch(self.epoch)
            self.loader.take_reads()  # evaluation's do not count
        totals = self.totals
        take_step = self._recorded or self.update
        begin = time.perf_counter() - totals.seconds
        for batch in self._batches():
            self.step += 1
            control.enter(Phase.TRAINING, self.step)
            looks_for_signals = self.step % self._signal_steps == 0
            if context.is_main and looks_for_signals:
                control.commit(self.step, save=self._is_time_to_save())
            totals.lr = self.update.lr
            totals.num_steps += 1
            take_step(batch, totals)
            del batch  # or it would live on while the next is waited for
            self.update.after_step()
            totals.seconds = time.perf_counter() - begin

            reads_loss = totals.num_steps % config.log_every == 0  # which a GPU is waited for
            if reads_loss or not is_gpu(context.device):
                self._refuse_loss(totals)  # before it is saved or shown
            every = self._checkpoint_config.every_steps
            if every is not None and self.step % every == 0:
                self.save_checkpoint()
            if self.listeners and (reads_loss or self._recorded is None):
                progress = self._progress(totals, reads_loss=reads_loss)
                for listener in self.listeners:
                    listener.on_step(progress)
            for callback in self.callbacks:
                callback.after_step(self, totals)
            if looks_for_signals:
                if self._signal_steps > 1:
                    devices.synchronize(context.device, stream_only=True)
                self._obey(control.agreed(self.step))
        control.enter(Phase.EVALUATING, self.step)
        self._refuse_loss(totals)
        if totals.num_skipped:
            message = f"{totals.num_skipped} of {totals.num_steps} steps of epoch {self.epoch}"
            if totals.num_skipped == totals.num_steps:
                raise Diverged(
                    f"The gradient was not finite in any of the {message}.",
                    f"Lower trainer.lr (now {config.lr}), or look for extreme features.",
                )
            _log.warning("%s were skipped: their gradient was not finite.", message)
        for callback in self.callbacks:
            callback.after_steps(self, totals)
        totals.seconds = time.perf_counter() - begin
        self._take_times(totals)
        return totals

    def _batches(self) -> Iterator[Any]:
        """The rest of the epoch's batches, at most as many as steps are left."""
        if self.step >= self.num_steps:
            return
        batches = self.loader if self._recorded is None else self._recorded.loader.seed_batches()
        for batch in self._phases.each("wait", batches):
            yield batch
            del batch  # or it would live on while the next is waited for
            if self.step >= self.num_steps:
                return

    def _progress(self, totals: EpochTotals, *, reads_loss: bool) -> StepProgress:
        ranks = self.context.world_size  # rank 0 reports for all: their batches are equal
        num_edges = totals.total_edges() if reads_loss else totals.num_edges
        return StepProgress(
            epoch=self.epoch,
            step=totals.num_steps,
            num_steps=len(self.loader),
            loss=float(totals.loss) / max(1, totals.num_seeds) if reads_loss else None,
            seeds_per_s=ranks * totals.num_seeds / totals.seconds,
            edges_per_s=ranks * num_edges / totals.seconds,
            memory_bytes=resident_bytes() * ranks,
        )

    def _obey(self, number: int) -> None:
        """Do what all ranks have agreed to do after this step, see `RunControl.agreed`."""
        if number == 0:
            return
        self.save_checkpoint(at_once=number != SAVE)
        if number == SAVE:
            return
        ends = number != signal.SIGUSR1
        message = f"{signal.Signals(number).name}: saving step {self.step}"
        for listener in self.listeners:
            listener.on_message(message + (" and stopping." if ends else "."))
        if ends:
            raise Interrupted(number)

    def _evaluate(self) -> SplitMetrics:
        """The metrics of all splits; empty if no evaluation is due."""
        is_last = self.epoch == self.config.epochs or self.step >= self.num_steps
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
                self.save_checkpoint(at_once=True)
            raise

    def _refuse_loss(self, totals: EpochTotals) -> None:
        """Raises Diverged if a loss of the epoch was not finite; synchronises a GPU."""
        step = int(totals.first_bad)
        if step == 0:
            return
        plan = self.loader.plan
        seeds = plan.rank_batch(plan.order(self.epoch), step - 1).seeds
        raise Diverged(
            f"The training loss is {float(totals.loss)} in epoch {self.epoch}, step {step} of "
            f"{len(self.loader)} (seed {self.task.in_words(seeds)}).",
            f"Lower trainer.lr (now {self.config.lr}), set trainer.clip_norm=1 or "
            "trainer.on_nonfinite=skip, or look for extreme features.",
        )

    def _is_time_to_save(self) -> bool:
        minutes, now = self._checkpoint_config.every_minutes, time.monotonic()
        is_time = minutes is not None and now - self._saved >= 60 * minutes
        if is_time:
            self._saved = now
        return is_time

    def save_checkpoint(self, *, is_best: bool = False, at_once: bool = False) -> None:
        """Save where training stands; inside an epoch its sums so far, too. Collective.

        Args:
            is_best: Whether it is the best epoch so far.
            at_once: Write it now, however short ago the one before was.

        Raises:
            Diverged: A number is not finite: resuming from it would fail again.
        """
        context = self.context
        if self.totals is not None:
            self._refuse_loss(self.totals)
        # All ranks have the same weights, so all raise.
        finite = torch.stack([weight.isfinite().all() for weight in self.model.parameters()])
        if not bool(finite.all()):
            raise Diverged(
                f"After step {self.step} weights are not finite, though the loss still was.",
                f"Lower trainer.lr (now {self.config.lr}), or set trainer.clip_norm=1 or "
                "trainer.on_nonfinite=skip.",
            )
        rank_state: State = {"rng": torch.get_rng_state()}
        if is_gpu(context.device):
            rank_state[f"{context.device.type}_rng"] = devices.rng_state(context.device)
        if self.totals is not None:
            self._take_times(self.totals)
            rank_state["totals"] = self.totals.state_dict()
        ranks = context.gather_to_main(rank_state)
        if self._writer is not None:
            self._writer.offer(self._state_dict(ranks), best=is_best, at_once=at_once)

    def _state_dict(self, ranks: list[State]) -> State:
        """The state for `load_state`, copied. Records are immutable and many, and not copied."""
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
        context, device = self.context, self.context.device
        load_weights(self.model, state, path)
        try:
            self.update.load_state_dict(state)
            self.loader.load_state_dict(state["loader"])
            self.step = int(state["step"])
            self.result.records[:] = [EpochRecord(**row) for row in state["history"]]
            self.result.best_epoch, self.result.best = state["best_epoch"], state["best"]
            self.result.seconds_before = float(state["seconds"])
            ranks = state["ranks"]
            totals = [rank["totals"] for rank in ranks if "totals" in rank]
            self.totals = EpochTotals.restored(totals, context) if totals else None
            if len(ranks) == context.world_size:
                own = ranks[context.rank]
                torch.set_rng_state(own["rng"])
                if f"{device.type}_rng" in own:
                    devices.set_rng_state(own[f"{device.type}_rng"], device)
            else:  # each rank gets its own stream, different from those of earlier steps
                words = [self.config.seed, self.step, context.rank]
                (key,) = np.random.SeedSequence(words).generate_state(1, np.uint64)
                devices.seed_generators(int(key), device)
        except _UNUSABLE as error:
            reason = f"it does not hold what going on needs ({type(error).__name__}: {error})"
            raise CheckpointError(Path(path), reason) from error

    def _take_times(self, totals: EpochTotals) -> None:
        totals.add_times(combined(self._phases.drain(), self.loader.phases.drain()))
