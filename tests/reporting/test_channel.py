"""A run that tells a parent process instead of a person."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from gnntrain.errors import Interrupted
from gnntrain.reporting.channel import Channel
from gnntrain.training.records import Pruned
from tests.reporting.samples import INFO, RECORD, record


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
