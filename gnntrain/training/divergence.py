"""Losses, gradients and weights that are not finite: the step, its seeds, and a hint; and outputs
that are all equal."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from gnntrain.errors import Diverged
from gnntrain.training.callbacks import Callback
from gnntrain.training.records import EpochRecord
from gnntrain.training.snapshot import EpochTotals

if TYPE_CHECKING:
    from gnntrain.training.trainer import Trainer

_log = logging.getLogger("gnntrain")


class DivergenceGuard(Callback):
    """Ends training if the loss or the weights are not finite; warns once of equal outputs."""

    def __init__(self) -> None:
        self._has_warned = False

    def after_step(self, trainer: Trainer, totals: EpochTotals) -> None:
        """Check the loss: on a CPU always; on a GPU, which this synchronises, when it is due."""
        is_due = totals.num_steps % trainer.config.log_every == 0
        if is_due or trainer.context.device.type == "cpu":
            refuse_loss(trainer, totals)

    def after_steps(self, trainer: Trainer, totals: EpochTotals) -> None:
        """Check the loss, and log the number of skipped steps."""
        refuse_loss(trainer, totals)
        _tell_skipped(trainer, totals)

    def after_epoch(self, trainer: Trainer, record: EpochRecord) -> None:  # noqa: ARG002
        """Warn of equal outputs, once."""
        if record.constant and not self._has_warned:
            self._has_warned = True
            warn_of_constant(record.constant, record.epoch)


def warn_of_constant(splits: Sequence[str], epoch: int) -> None:
    """Warn that the model of an epoch gives all nodes of these splits the same outputs."""
    _log.warning(
        "The model of epoch %d gives all nodes of %s the same outputs: it tells none apart. Try a "
        "lower trainer.lr, another model.norm or model.activation; or are all features equal?",
        epoch,
        ", ".join(splits),
    )


def refuse_loss(trainer: Trainer, totals: EpochTotals) -> None:
    """Raises Diverged if a loss of the epoch was not finite; synchronises a GPU."""
    step = int(totals.first_bad)
    if step > 0:
        raise Diverged(
            f"The training loss is {float(totals.loss)} in epoch {trainer.epoch}, step {step} of "
            f"{len(trainer.loader)} ({_seeds_in_words(trainer, step)}).",
            f"Lower trainer.lr (now {trainer.config.lr}), set trainer.clip_norm=1 or "
            "trainer.on_nonfinite=skip, or look for extreme features; earlier checkpoints are "
            "kept.",
        )


def refuse_weights(trainer: Trainer) -> None:
    """Raises Diverged if a weight is not finite.

    All ranks have the same weights, so all raise.
    """
    finite = torch.stack([weight.isfinite().all() for weight in trainer.model.parameters()])
    if not bool(finite.all()):
        raise Diverged(
            f"After step {trainer.step} weights are not finite, though the loss still was.",
            f"Lower trainer.lr (now {trainer.config.lr}), or set trainer.clip_norm=1 or "
            "trainer.on_nonfinite=skip; earlier checkpoints are kept.",
        )


def _tell_skipped(trainer: Trainer, totals: EpochTotals) -> None:
    """Warn of the epoch's skipped steps; raises Diverged if all were skipped."""
    if totals.num_skipped == 0:
        return
    message = f"{totals.num_skipped} of {totals.num_steps} steps of epoch {trainer.epoch}"
    if totals.num_skipped == totals.num_steps:
        raise Diverged(
            f"The gradient was not finite in any of the {message}.",
            f"Lower trainer.lr (now {trainer.config.lr}), or look for extreme features.",
        )
    _log.warning("%s were skipped: their gradient was not finite.", message)


def _seeds_in_words(trainer: Trainer, step: int) -> str:
    """The first seeds of this rank in a step (from 1) of the epoch."""
    plan = trainer.loader.plan
    seeds = plan.rank_batch(plan.order(trainer.epoch), step - 1).seeds
    return f"seed {trainer.task.in_words(seeds)}"
