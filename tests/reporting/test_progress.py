from __future__ import annotations

import pytest

from gnntrain.reporting.progress import Progress
from gnntrain.reporting.text import ASCII
from tests.reporting.samples import info, record, record_with_val, step


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_best_epoch_is_the_first_with_the_highest_metric(clock: Clock) -> None:
    progress = Progress(info(), clock)
    values = [0.5, 0.7, 0.7, 0.6]
    assert [progress.note_epoch(record_with_val(e, v)) for e, v in enumerate(values, 1)] == [
        *(True, True, False, False)
    ]
    assert progress.best is not None
    assert (progress.best.value, progress.best.epoch) == (0.7, 2)


def test_an_epoch_without_evaluation_is_never_the_best(clock: Clock) -> None:
    progress = Progress(info(), clock)
    assert not progress.note_epoch(record(1, metrics={}))
    assert not progress.note_epoch(record_with_val(2, float("nan")))
    assert progress.note_epoch(record_with_val(3, 0.1))


def test_epochs_too_short_to_tell_their_steps_move_the_bar_too(clock: Clock) -> None:
    progress = Progress(info(epochs=4, steps_per_epoch=1), clock)
    progress.note_epoch(record(1))
    clock.now += 10
    assert progress.bar(20, ASCII) == ("=" * 5, "." * 15)
    assert progress.position() == ("epoch 1/4", "step 1/1  ETA 30 s")


def test_the_bar_shows_the_epoch(clock: Clock) -> None:
    progress = Progress(info(), clock)
    progress.note_step(step(epoch=2, step=5, num_steps=20))
    assert progress.bar(20, ASCII) == ("=" * 5, "." * 15)


def test_the_bar_of_an_epoch_of_few_steps_shows_the_run(clock: Clock) -> None:
    progress = Progress(info(epochs=4), clock)
    progress.note_step(step(epoch=1, step=1, num_steps=1))
    assert progress.bar(20, ASCII) == ("=" * 5, "." * 15)


def test_a_bar_without_room_is_left_out(clock: Clock) -> None:
    progress = Progress(info(), clock)
    assert progress.bar(40, ASCII) == ("", "")
    progress.note_step(step())
    assert progress.bar(5, ASCII) == ("", "")


def test_the_time_left_is_that_of_the_run(clock: Clock) -> None:
    progress = Progress(info(epochs=10), clock)
    progress.note_step(step(epoch=1, step=10, num_steps=20))
    clock.now += 10
    assert progress.position() == ("epoch 1/10", "step 10/20  ETA 3:10")


def test_a_run_that_goes_on_counts_its_own_epochs_for_the_time_left(clock: Clock) -> None:
    progress = Progress(info(epochs=10), clock)
    progress.note_step(step(epoch=9, step=20, num_steps=20))
    clock.now += 10
    assert progress.position()[1].endswith("ETA 10 s")


def test_the_facts_name_loss_metric_speed_and_memory(clock: Clock) -> None:
    progress = Progress(info(), clock)
    progress.note_step(step())
    progress.note_epoch(record_with_val(1, 0.5))
    progress.note_step(step(epoch=2, loss=None))
    facts = "loss 1.9375  val accuracy 0.5000  12.3k seeds/s  1.21M edges/s  1.50 GiB"
    assert progress.facts(80) == facts
    assert progress.facts(160) == facts
    assert progress.facts(30) == "loss 1.9375"


def test_the_course_of_the_metric_is_drawn_with_its_best(clock: Clock) -> None:
    progress = Progress(info(), clock)
    assert progress.course(80, ASCII) == ""
    for epoch, value in enumerate((0.5, 0.7, 0.6), 1):
        progress.note_epoch(record_with_val(epoch, value))
    assert progress.course(80, ASCII) == "_#=  best 0.7000 in epoch 2"
    assert progress.course(30, ASCII) == "best 0.7000 in epoch 2"
