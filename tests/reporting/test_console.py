"""A run on a terminal and in a log."""

from __future__ import annotations

import io
import re

import pytest

from gnntrain.data.summary import DataSummary
from gnntrain.reporting.console import Console, start_pairs
from gnntrain.training.records import Summary
from tests.reporting.samples import (
    INFO,
    RECORD,
    SUMMARY,
    info,
    record,
    record_with_val,
    step,
    summary,
)
from tests.reporting.terminals import Clock, drawn_lines, final_lines, golden

READ = DataSummary(
    labels="3 classes", features="2 a node", edges="6 given", split="4 train, 1 val, 2 test"
)


def shown_live(width: int, end: Summary = SUMMARY) -> str:
    file = io.StringIO()
    with Console(file, width=width, live=True, clock=Clock()) as console:
        console.on_start(INFO)
        for epoch, value in enumerate([0.5, 0.7, 0.6], 1):
            console.on_step(step(epoch=epoch))
            console.on_epoch(record_with_val(epoch, value))
        console.on_finish(end)
    return file.getvalue()


def logged(end: Summary, *epochs: int, **changes: object) -> str:
    file = io.StringIO()
    with Console(file, clock=Clock()) as console:
        console.on_start(info(**changes))
        for epoch in epochs:
            console.on_epoch(record_with_val(epoch, epoch / 10))
        console.on_finish(end)
    return file.getvalue()


def test_a_run_leaves_a_table_on_a_terminal_of_80_columns() -> None:
    assert final_lines(shown_live(80))[2:-1] == golden("run")[2:]


def test_a_resumed_run_that_fails_leaves_plain_lines_in_a_log() -> None:
    end = summary(status="failed", error="The loss is\nnan in epoch 4.", epochs=3, best_epoch=3)
    assert logged(end, 3, epochs=4, first_epoch=3).splitlines()[2:] == golden("failed_run")[2:]


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_live_view_keeps_to_the_width(width: int) -> None:
    lines = drawn_lines(shown_live(width))
    assert max(map(len, lines)) <= width
    assert any("━" in line and "step 20/20  ETA" in line for line in lines)
    assert any(line.startswith("loss 1.9375") and "12.3k" in line for line in lines)
    assert any("best 0.7000 in epoch 2" in line for line in lines)
    facts = [line for line in lines if line.startswith("loss 1.9375")]
    assert not any("…" in line for line in facts)


def test_a_run_resumed_for_fewer_epochs_counts_those_that_it_has() -> None:
    assert "completed after 2,000 of 2,000 epochs" in logged(summary(epochs=2000), 1, epochs=400)


def test_a_log_gets_a_line_a_minute_from_inside_a_long_epoch() -> None:
    file, clock = io.StringIO(), Clock()
    with Console(file, clock=clock) as console:
        console.on_start(INFO)
        for number in range(1, 21):
            clock.now += 7
            console.on_step(step(step=number))
    assert re.findall(r"step (\d+)/20  ETA", file.getvalue()) == ["9", "18"]


def test_a_long_run_keeps_some_of_its_rows_on_a_terminal_and_all_in_a_log() -> None:
    kept = {}
    for live in (True, False):
        file = io.StringIO()
        with Console(file, width=80, live=live) as console:
            console.on_start(info(epochs=200))
            for epoch in range(1, 193):
                console.on_epoch(record(epoch))
            console.on_finish(SUMMARY)
        lines = "\n".join(final_lines(file.getvalue()))
        kept[live] = [int(number) for number in re.findall(r"(\d+)/200 ", lines)]
    assert kept[True] == [1, *range(5, 191, 5), 192]
    assert kept[False] == list(range(1, 193))


def test_a_notice_is_one_line_as_it_was_written() -> None:
    file = io.StringIO()
    with Console(file) as console:
        console.on_message("fan-outs [25, 10]\n :smile: [red]x[/red] " + "long " * 40)
    assert file.getvalue().count("\n") == 1
    assert "[25, 10] :smile: [red]x[/red] long" in file.getvalue()


def test_only_a_run_that_completed_offers_its_evaluation() -> None:
    assert logged(SUMMARY, run_dir="my runs/a").endswith("gnntrain evaluate 'my runs/a'\n")
    for end in (summary(status="interrupted"), summary(best_epoch=None)):
        assert "gnntrain evaluate" not in logged(end)


def test_a_run_that_ends_before_it_began_is_shown_too() -> None:
    file = io.StringIO()
    with Console(file) as console:
        console.on_step(step())
        console.on_epoch(RECORD)
        console.on_finish(summary(status="interrupted", error=None))
    assert "interrupted after 3 of 3 epochs" in file.getvalue()


def test_numbers_that_are_not_finite_are_shown() -> None:
    file, nan = io.StringIO(), float("nan")
    with Console(file, width=80, live=True) as console:
        console.on_start(INFO)
        console.on_step(step(loss=nan, seeds_per_s=float("inf")))
        for epoch in (1, 2):
            undefined = {"val": {"accuracy": nan}}
            console.on_epoch(record(epoch, train_loss=nan, edges_per_s=nan, metrics=undefined))
        console.on_finish(summary(train_loss=[nan, float("inf")]))
    assert "nan" in file.getvalue()
    assert not re.search("^  accuracy .*→", "\n".join(final_lines(file.getvalue())), re.MULTILINE)


def labels_of(data: DataSummary | None) -> list[str]:
    return [label for label, text in start_pairs(info(data=data)) if text and label]


def test_a_users_own_graph_has_a_line_for_each_of_its_parts() -> None:
    own = READ.model_copy(update={"ids": "row numbers", "left_out": {"z": "text"}})
    parts = ["ids", "labels", "features", "edges", "split", "left out"]
    assert labels_of(own)[2:8] == parts
    assert set(labels_of(READ)) - set(labels_of(None)) == {"split"}


def test_the_start_tells_features_or_types() -> None:
    assert "1 feature ·" in dict(start_pairs(info(num_features=1)))["graph"]
    typed = dict(start_pairs(info(num_features=0, num_edge_types=90)))["graph"]
    assert "1 node type, 90 edge types" in typed
    assert "feature" not in typed


@pytest.mark.parametrize(
    ("task", "number", "words"),
    [
        ("multiclass", 3, "3 classes"),
        ("binary", 2, "2 classes"),
        ("multilabel", 12, "12 labels"),
        ("continuous", 1, "1 target"),
    ],
)
def test_the_outputs_of_a_task_have_their_own_word(task: str, number: int, words: str) -> None:
    rows = dict(start_pairs(info(label_kind=task, num_classes=number)))
    assert rows["graph"].endswith(words)
