"""Signals end training, or have it saved, on all ranks after the same step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import Interrupted
from gnntrain.training.callbacks import Callback
from gnntrain.training.records import Listener
from gnntrain.training.snapshot import EpochTotals
from gnntrain.training.wishes import Wishes

if TYPE_CHECKING:
    from gnntrain.training.trainer import Trainer


class StopOnSignal(Callback):
    """Acts on what signals ask for.

    Args:
        context: This rank.
        listeners: Told which step is saved; on rank 0 only.
    """

    def __init__(self, context: DistributedContext, listeners: Sequence[Listener]) -> None:
        self._wishes = Wishes(context, listeners)

    def before_epoch(self, trainer: Trainer) -> None:
        """End training where any rank was asked to stop and an epoch is saved. Collective."""
        asked = max(trainer.context.gather(trainer.context.board.stop_asked))
        if asked and trainer.result.records:
            raise Interrupted(asked)

    def before_step(self, trainer: Trainer) -> None:
        """Rank 0 decides before the gradient exchange, which no rank leaves before."""
        self._wishes.settle(trainer.step)

    def after_step(self, trainer: Trainer, totals: EpochTotals) -> None:  # noqa: ARG002
        """Save, and end training if the signal asks for that too. Collective if so."""
        if number := self._wishes.after(trainer.step):
            trainer.save_checkpoint()
            self._wishes.answer(number, trainer.step)
