"""Signals during training: all ranks save, or save and stop, after the same step."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from gnntrain import devices
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import Interrupted
from gnntrain.training.records import Listener

_GPU_STEPS = 10


class StopSignal:
    """Has all ranks act on a signal after the same step, without a collective of its own.

    See `RunControl.agreed` for why they agree. Steps on several GPUs are enqueued ahead of the
    gradient exchange: there only every tenth step is synchronised and checked.

    Args:
        listeners: Get a message with the saved step; on rank 0 only.
    """

    def __init__(self, context: DistributedContext, listeners: Sequence[Listener] = ()) -> None:
        self._context = context
        self._listeners = listeners
        runs_ahead = devices.is_gpu(context.device) and context.world_size > 1
        self._every = _GPU_STEPS if runs_ahead else 1

    def before_exchange(self, step: int) -> None:
        """Called on all ranks before the gradient exchange of `step`."""
        if self._context.is_main and step % self._every == 0:
            self._context.control.commit(step)

    def after_step(self, step: int, save: Callable[[], None]) -> None:
        """Call `save` if a signal asks for it; called on all ranks after `step`.

        Raises:
            Interrupted: The signal also ends the run. The checkpoint has been handed over.
        """
        if step % self._every:
            return
        if self._every > 1:
            devices.synchronize_stream(self._context.device)
        if number := self._context.control.agreed(step):
            save()
            self._act(number, step)

    def _act(self, number: int, step: int) -> None:
        ends = number != signal.SIGUSR1
        message = f"{signal.Signals(number).name}: saving step {step}"
        for listener in self._listeners:
            listener.on_message(message + (" and stopping." if ends else "."))
        if ends:
            raise Interrupted(number)
