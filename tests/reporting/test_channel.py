"""A run that tells a parent process instead of a person."""

from __future__ import annotations

import multiprocessing
import threading
import time

import pytest

from gnntrain.errors import Interrupted
from gnntrain.reporting.channel import Channel
from gnntrain.training.records import Pruned
from tests.reporting.samples import INFO, RECORD, SUMMARY, record, step


def test_the_parent_hears_what_happens_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = multiprocessing.Pipe()
    ticks = iter([0.0, 0.1, 0.3, 0.3, 0.4, 0.6, 0.6])
    monkeypatch.setattr(time, "monotonic", lambda: next(ticks))
    channel = Channel(theirs)
    ours.send((1, False))
    channel.on_start(INFO)
    for number in (1, 2, 3, 4):
        channel.on_step(step(step=number))
    channel.on_epoch(RECORD)
    channel.on_message("a note")
    channel.on_finish(SUMMARY)  # whoever waits for the run tells its end
    monkeypatch.undo()
    told = []
    while ours.poll():
        told.append(ours.recv())
    assert [kind for kind, _ in told] == ["start", "step", "step", "epoch", "message"]
    assert [what.step for kind, what in told if kind == "step"] == [2, 4]
    assert told[0][1] == INFO
    assert told[3][1] == RECORD


def test_the_answer_to_its_own_epoch_counts() -> None:
    ours, theirs = multiprocessing.Pipe()
    channel = Channel(theirs)
    ours.send((3, True))  # to an epoch of a rank that was killed
    ours.send((4, False))
    channel.on_epoch(record(4))
    ours.send((5, True))
    with pytest.raises(Pruned):
        channel.on_epoch(record(5))


def test_a_run_ends_where_its_parent_is_gone() -> None:
    ours, theirs = multiprocessing.Pipe()
    channel = Channel(theirs)
    threading.Timer(0.05, ours.close).start()
    with pytest.raises(Interrupted):
        channel.on_epoch(RECORD)
    with pytest.raises(Interrupted):
        channel.on_start(INFO)
