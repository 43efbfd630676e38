"""Callbacks of the training loop: hooks between steps and epochs.

All ranks have the same callbacks in the same order and call each hook after the same step, so that
a hook may use collectives. Listeners and the checkpoint writer show, log and write files; only rank
0 has them.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gnntrain import devices
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.run_control import Phase
from gnntrain.errors import Interrupted
from gnntrain.training.memory import resident_bytes
from gnntrain.training.records import EpochRecord, Listener, Pruned, StepProgress
from gnntrain.training.snapshot import EpochTotals

if TYPE_CHECKING:
    from gnntrain.training.trainer import Trainer

_GPU_STEPS = 10


class Callback:
    """Hooks into the loop; each does nothing unless a callback overrides it."""

    def on_fit_start(self, trainer: Trainer) -> None:
        """Training begins, or goes on from a checkpoint."""

    def before_epoch(self, trainer: Trainer) -> None:
        """Another epoch is due, or the rest of one."""

    def before_step(self, trainer: Trainer) -> None:
        """The step `trainer.step` is about to be computed."""

    def after_step(self, trainer: Trainer, totals: EpochTotals) -> None:
        """The weights have moved; a GPU may still be computing. Must be cheap."""

    def after_steps(self, trainer: Trainer, totals: EpochTotals) -> None:
        """All steps of the epoch are done; it is not evaluated yet."""

    def after_epoch(self, trainer: Trainer, record: EpochRecord) -> None:
        """The epoch is evaluated, if that was due, and `record` is in `trainer.result`."""

    def on_fit_end(self, trainer: Trainer) -> None:
        """Training ends, also by an exception."""


class RankProgress(Callback):
    """Publishes this rank's phase and step, for the message if a rank is late or fails."""

    def on_fit_start(self, trainer: Trainer) -> None:
        """Publish the phase `TRAINING`."""
        self._enter(trainer, Phase.TRAINING)

    def before_step(self, trainer: Trainer) -> None:
        """Publish the step."""
        self._enter(trainer, Phase.TRAINING)

    def after_steps(self, trainer: Trainer, totals: EpochTotals) -> None:  # noqa: ARG002
        """Publish the phase `EVALUATING`."""
        self._enter(trainer, Phase.EVALUATING)

    def on_fit_end(self, trainer: Trainer) -> None:
        """Publish the phase `CLOSING`."""
        self._enter(trainer, Phase.CLOSING)

    def _enter(self, trainer: Trainer, phase: Phase) -> None:
        context = trainer.context
        context.control.enter(phase, trainer.step)


class StopOnSignal(Callback):
    """Has all ranks save, or save and end training, after the same step once a signal asks for it.

    It needs no collective of its own: see `RunControl.agreed`. Steps on several GPUs are enqueued
    ahead of the gradient exchange: there only every tenth step is synchronised and checked.

    Args:
        listeners: Get a message with the saved step; on rank 0 only.
    """

    def __init__(self, context: DistributedContext, listeners: Sequence[Listener] = ()) -> None:
        self._context = context
        self._listeners = listeners
        runs_ahead = devices.is_gpu(context.device) and context.world_size > 1
        self._every = _GPU_STEPS if runs_ahead else 1

    def before_epoch(self, trainer: Trainer) -> None:
        """End training if a rank was asked to stop and an epoch is saved. Collective."""
        number = max(self._context.gather(self._context.control.stop_requested))
        if number and trainer.result.records:
            raise Interrupted(number)

    def before_step(self, trainer: Trainer) -> None:
        """Rank 0 decides, before the step's gradient exchange, whether all act after this step."""
        if self._context.is_main and trainer.step % self._every == 0:
            self._context.control.commit(trainer.step)

    def after_step(self, trainer: Trainer, totals: EpochTotals) -> None:  # noqa: ARG002
        """Act on the decision. Collective if there is one.

        Raises:
            Interrupted: The signal also ends the run. The checkpoint has been handed over.
        """
        if trainer.step % self._every:
            return
        if self._every > 1:
            devices.synchronize_stream(self._context.device)
        if number := self._context.control.agreed(trainer.step):
            trainer.save_checkpoint()
            ends = number != signal.SIGUSR1
            message = f"{signal.Signals(number).name}: saving step {trainer.step}"
            for listener in self._listeners:
                listener.on_message(message + (" and stopping." if ends else "."))
            if ends:
                raise Interrupted(number)


class MetricSchedule(Callback):
    """Passes the validation metric to the learning-rate schedule."""

    def after_epoch(self, trainer: Trainer, record: EpochRecord) -> None:
        """Step the schedule if the epoch has the metric."""
        value = record.metric("val", trainer.task.metric.name)
        if value is not None and not math.isnan(value):
            trainer.update.schedule.after_evaluation(value)


class Reporting(Callback):
    """Calls the listeners of rank 0 after steps and epochs; one of them may prune the run.

    Args:
        listeners: Empty on other ranks.
        log_every: Steps between two that read the loss, which synchronises a GPU.
        every_step: Also report the steps between those, without the loss.
    """

    def __init__(self, listeners: Sequence[Listener], log_every: int, *, every_step: bool) -> None:
        self._listeners = listeners
        self._log_every = log_every
        self._every_step = every_step

    def after_step(self, trainer: Trainer, totals: EpochTotals) -> None:
        """Report the step, if it is due; on rank 0 only."""
        reads_loss = totals.num_steps % self._log_every == 0
        if not self._listeners or not (reads_loss or self._every_step):
            return
        ranks = trainer.context.world_size  # rank 0 reports for all: their batches are equal
        num_edges = totals.total_edges() if reads_loss else totals.num_edges
        progress = StepProgress(
            epoch=trainer.epoch,
            step=totals.num_steps,
            num_steps=len(trainer.loader),
            loss=float(totals.loss) / max(1, totals.num_seeds) if reads_loss else None,
            seeds_per_s=ranks * totals.num_seeds / totals.seconds,
            edges_per_s=ranks * num_edges / totals.seconds,
            memory_bytes=resident_bytes() * ranks,
        )
        for listener in self._listeners:
            listener.on_step(progress)

    def after_epoch(self, trainer: Trainer, record: EpochRecord) -> None:
        """Report the epoch; all ranks end training if a listener prunes the run. Collective."""
        is_pruned = False
        for listener in self._listeners:
            try:
                listener.on_epoch(record)
            except Pruned:
                is_pruned = True
        trainer.result.is_pruned = trainer.context.broadcast(is_pruned)


class EarlyStopping(Callback):
    """Ends training once the validation metric has stalled.

    Args:
        patience: Evaluations without a better one until training ends; 0: never.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience

    def on_fit_start(self, trainer: Trainer) -> None:
        """A resumed run may have stalled already."""
        if trainer.totals is None:
            self._judge(trainer)

    def after_epoch(self, trainer: Trainer, record: EpochRecord) -> None:  # noqa: ARG002
        """All ranks have the same metrics, so they all stop after the same epoch."""
        self._judge(trainer)

    def _judge(self, trainer: Trainer) -> None:
        if trainer.result.has_stalled(self._patience):
            trainer.should_stop = True
