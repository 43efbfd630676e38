"""What signals ask of training, seen on all ranks alike after the same step."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import torch

from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import Interrupted
from gnntrain.training.records import Listener

_GPU_STEPS = 10


class Wishes:
    """Has all ranks act on a signal after the same step, without a collective for it.

    Rank 0 settles the step before it enters the step's gradient exchange, which no rank leaves
    before all have entered it. GPUs' steps are enqueued ahead of the exchange: there every tenth
    step is waited for, and only after those it is looked.

    Args:
        callbacks: Told what is done; on rank 0 only.
    """

    def __init__(self, context: DistributedContext, callbacks: Sequence[Listener]) -> None:
        self._context = context
        self._callbacks = callbacks
        runs_ahead = context.device.type == "cuda" and context.world_size > 1
        self._every = _GPU_STEPS if runs_ahead else 1

    def settle(self, step: int) -> None:
        """Called on all ranks before the gradient exchange of `step`."""
        if self._context.is_main and step % self._every == 0:
            self._context.board.settle(step)

    def after(self, step: int) -> int:
        """The signal to act on after `step`, on all ranks the same; 0: none."""
        if step % self._every:
            return 0
        if self._every > 1:
            torch.cuda.current_stream(self._context.device).synchronize()
        return self._context.board.settled(step)

    def answer(self, number: int, step: int) -> None:
        """Tell that the checkpoint of `step` is being written; end training, unless by SIGUSR1.

        Raises:
            Interrupted: The signal ends the run.
        """
        saves = number == signal.SIGUSR1
        told = f"{signal.Signals(number).name}: saving step {step}"
        for callback in self._callbacks:
            callback.on_message(told + ("." if saves else " and stopping."))
        if not saves:
            raise Interrupted(number)
