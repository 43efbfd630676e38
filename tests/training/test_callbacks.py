from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import Interrupted
from gnntrain.training.callbacks import StopOnSignal
from gnntrain.training.records import Listener
from gnntrain.training.snapshot import EpochTotals


def step_after(number: int | None) -> list[str]:
    """What happens in one step after a signal."""
    events: list[str] = []
    context = DistributedContext()
    listener = create_autospec(Listener, instance=True)
    listener.on_message.side_effect = events.append
    stop = StopOnSignal(context, [listener])
    trainer: Any = SimpleNamespace(step=3, save_checkpoint=lambda: events.append("saved"))
    if number == signal.SIGUSR1:
        context.control.request_save()
    elif number is not None:
        context.control.request_stop(number)
    stop.before_step(trainer)
    try:
        stop.after_step(trainer, EpochTotals.start(context.device))
    except Interrupted as interrupted:
        events.append(f"ended by {interrupted.number}")
    return events


def test_without_a_signal_nothing_happens() -> None:
    assert step_after(None) == []


def test_sigusr1_saves_and_training_goes_on() -> None:
    saved, message = step_after(signal.SIGUSR1)
    assert saved == "saved"
    assert "SIGUSR1" in message
    assert "3" in message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_other_signals_save_before_they_end_training(number: signal.Signals) -> None:
    saved, message, ended = step_after(number)
    assert saved == "saved"
    assert number.name in message
    assert ended == f"ended by {int(number)}"
