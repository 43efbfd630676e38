"""Checkpoints of the loop's state: all ranks save after the same step, rank 0 writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gnntrain.config import CheckpointConfig
from gnntrain.distributed.context import DistributedContext
from gnntrain.training.callbacks import Callback
from gnntrain.training.checkpoint_writer import CheckpointClock, CheckpointWriter
from gnntrain.training.divergence import refuse_loss, refuse_weights
from gnntrain.training.records import EpochRecord
from gnntrain.training.snapshot import EpochTotals

if TYPE_CHECKING:
    from gnntrain.training.trainer import Trainer


class Checkpointing(Callback):
    """Saves after every epoch, and inside one when the clock says so or `save` is called.

    Args:
        directory: Where `last.pt` and `best.pt` go; None: nothing is written, as on other ranks
            than 0.
        config: When to save inside an epoch.
        context: This rank.
    """

    def __init__(
        self, directory: Path | None, config: CheckpointConfig, context: DistributedContext
    ) -> None:
        self._writer = None if directory is None else CheckpointWriter(directory)
        if self._writer is not None:
            context.control.is_writing = self._writer.is_writing
        self._clock = CheckpointClock(config, context)

    def on_fit_start(self, trainer: Trainer) -> None:
        """Start the clock."""
        self._clock.restart(trainer.step)

    def after_step(self, trainer: Trainer, totals: EpochTotals) -> None:  # noqa: ARG002
        """Save if it is due. Collective."""
        if self._clock.is_due(trainer.step):
            self.save(trainer)

    def after_epoch(self, trainer: Trainer, record: EpochRecord) -> None:
        """Save, also as the best one if it is. Collective."""
        self.save(trainer, is_best=record.epoch == trainer.result.best_epoch)

    def on_fit_end(self, trainer: Trainer) -> None:  # noqa: ARG002
        """Write the pending states."""
        if self._writer is not None:
            self._writer.close()

    def save(self, trainer: Trainer, *, is_best: bool = False, at_once: bool = False) -> None:
        """Save where training stands. Collective.

        Args:
            trainer: Inside an epoch its sums so far are saved, too.
            is_best: Whether it is the best epoch so far.
            at_once: Write it now, however short ago the one before was.

        Raises:
            Diverged: A number is not finite: resuming from it would fail again.
        """
        if trainer.totals is not None:
            refuse_loss(trainer, trainer.totals)
        refuse_weights(trainer)
        ranks = trainer.gather_rank_states()
        if self._writer is not None:
            self._writer.offer(trainer.state_dict(ranks), best=is_best, at_once=at_once)
        self._clock.restart(trainer.step)

    def raise_failure(self) -> None:
        """Raises RunError where the newest states could not be written."""
        if self._writer is not None:
            self._writer.raise_failure()
