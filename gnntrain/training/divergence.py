"""Losses, gradients and weights that are not finite: where, with which seeds, what to do."""

from __future__ import annotations

import logging

import torch
from torch import nn

from gnntrain.errors import Diverged
from gnntrain.loading.loader import Loader
from gnntrain.training.snapshot import EpochTotals

_log = logging.getLogger("gnntrain")

_SHOWN_SEEDS = 5


class DivergenceGuard:
    """Ends a training whose numbers are not finite any more.

    Args:
        loader: Whose plan says which seeds a step had.
        lr: The learning rate, for hints.
    """

    def __init__(self, loader: Loader, lr: float) -> None:
        self._loader = loader
        self._lr = lr

    def refuse_loss(self, epoch: int, totals: EpochTotals) -> None:
        """Raises Diverged where a loss of the epoch was not finite; waits for a GPU."""
        step = int(totals.first_bad)
        if step > 0:
            raise Diverged(
                f"The training loss is {float(totals.loss)} in epoch {epoch}, step {step} of "
                f"{len(self._loader)} ({self._seeds_in_words(epoch, step)}).",
                f"Lower trainer.lr (now {self._lr}), set trainer.clip_norm=1 or "
                "trainer.on_nonfinite=skip, or look for extreme features; the checkpoints of what "
                "was before are kept.",
            )

    def refuse_weights(self, model: nn.Module, step: int) -> None:
        """Raises Diverged where a weight is not finite: a checkpoint must be worth going on from.

        All ranks have the same weights, and raise alike.
        """
        finite = torch.stack([weight.isfinite().all() for weight in model.parameters()])
        if not bool(finite.all()):
            raise Diverged(
                f"After step {step} weights are not finite, though the loss still was.",
                f"Lower trainer.lr (now {self._lr}), or set trainer.clip_norm=1 or "
                "trainer.on_nonfinite=skip; the checkpoints of what was before are kept.",
            )

    def tell_skipped(self, epoch: int, totals: EpochTotals) -> None:
        """Warn of the epoch's skipped steps; raises Diverged where no other step is left."""
        if totals.num_skipped == 0:
            return
        message = f"{totals.num_skipped} of {totals.num_steps} steps of epoch {epoch}"
        if totals.num_skipped == totals.num_steps:
            raise Diverged(
                f"The gradient was not finite in any of the {message}.",
                f"Lower trainer.lr (now {self._lr}), or look for extreme features.",
            )
        _log.warning("%s were skipped: their gradient was not finite.", message)

    def _seeds_in_words(self, epoch: int, step: int) -> str:
        """The first seeds of this rank in a step (from 1) of an epoch."""
        plan = self._loader.plan
        seeds = plan.rank_batch(plan.order(epoch), step - 1).seeds
        shown = ", ".join(map(str, seeds[:_SHOWN_SEEDS].tolist()))
        return f"seed nodes {shown}{', ...' if len(seeds) > _SHOWN_SEEDS else ''}"
