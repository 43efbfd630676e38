from __future__ import annotations

import pytest

from gnntrain.reporting.progress import Best, Progress, format_eta
from tests.reporting.samples import info, record, record_with_val, step
from tests.reporting.terminals import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_best_epoch_is_the_first_with_the_highest_metric(clock: Clock) -> None:
    progress = Progress(info(), clock)
    values = [0.5, 0.7, 0.7, 0.6]
    assert [progress.note_epoch(record_with_val(e, v)) for e, v in enumerate(values, 1)] == [
        *(True, True, False, False)
    ]
    assert progress.best == Best(0.7, 2)


def test_an_epoch_without_evaluation_is_never_the_best(clock: Clock) -> None:
    progress = Progress(info(), clock)
    assert not progress.note_epoch(record(1, metrics={}))
    assert not progress.note_epoch(record_with_val(2, float("nan")))
    assert progress.note_epoch(record_with_val(3, 0.1))


def test_an_epoch_too_short_to_report_steps_counts_as_done(clock: Clock) -> None:
    progress = Progress(info(epochs=4, steps_per_epoch=1), clock)
    progress.note_epoch(record(1))
    clock.now = 10
    assert (progress.epoch(), progress.share(), progress.eta()) == ("epoch 1/4", 0.25, "30 s")


@pytest.mark.parametrize(("epoch", "number", "eta"), [(1, 10, "3:10"), (9, 20, "10 s")])
def test_the_time_left_is_that_of_the_epochs_of_this_process(
    clock: Clock, epoch: int, number: int, eta: str
) -> None:
    progress = Progress(info(epochs=10), clock)
    progress.note_step(step(epoch=epoch, step=number, num_steps=20))
    clock.now = 10
    assert progress.eta() == eta


def test_there_is_no_time_left_to_tell_before_the_first_step() -> None:
    assert format_eta(10, 0) == "-"


def test_a_step_without_a_loss_keeps_the_loss_before(clock: Clock) -> None:
    progress = Progress(info(), clock)
    progress.note_epoch(record_with_val(1, 0.5))
    progress.note_step(step(epoch=2, loss=None))
    assert progress.facts()[:3] == ["loss 1.9375", "val accuracy 0.5000", "12.3k seeds/s"]


def test_a_resumed_run_keeps_the_best_of_the_epochs_before(clock: Clock) -> None:
    progress = Progress(info(first_epoch=3, best_epoch=2, best_value=0.8), clock)
    assert not progress.note_epoch(record_with_val(3, 0.7))
    assert progress.best is not None
    assert (progress.best.epoch, progress.best.value) == (2, 0.8)
    assert progress.note_epoch(record_with_val(4, 0.9))
