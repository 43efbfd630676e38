from __future__ import annotations

import io

import pytest
from rich.console import Console

from gnntrain.reporting.columns import epoch_columns, epoch_line, fitting, to_table
from gnntrain.training.records import EpochRecord
from tests.reporting.samples import RECORD, record, record_with_val


def titles(width: int, first: EpochRecord = RECORD, metric: str = "accuracy") -> list[str]:
    return [column.title for column in fitting(epoch_columns(30, metric, first), width)]


def drawn(width: int, metric: str, *records: EpochRecord, best: EpochRecord | None) -> list[str]:
    columns = fitting(epoch_columns(30, metric, RECORD), width)
    file = io.StringIO()
    Console(file=file, width=width).print(to_table(columns, records, best=best))
    return file.getvalue().splitlines()


def test_all_columns_are_there_where_nothing_limits_them() -> None:
    assert titles(160) == titles(1000)
    assert {"lr", "train accuracy", "test accuracy", "eval"} < set(titles(1000))


def test_at_80_columns_the_less_important_give_way() -> None:
    assert titles(80) == [
        *("epoch", "loss", "val accuracy", "time", "eval", "seeds/s", "edges/s", "memory")
    ]


def test_gpu_memory_has_a_column_where_there_is_a_gpu() -> None:
    shown = titles(80, record(gpu_memory_bytes=2**30))
    assert shown[-1] == "GPU"
    assert "eval" not in shown


def test_only_splits_with_metrics_have_a_column() -> None:
    assert titles(1000, record_with_val(1, 0.5))[2:4] == ["val accuracy", "lr"]
    assert "val accuracy" in titles(1000, record(metrics={}))


@pytest.mark.parametrize("metric", ["accuracy", "average_precision", "f1_macro"])
@pytest.mark.parametrize("width", [40, 80, 120, 160])
def test_rows_keep_to_the_width_and_end_under_their_titles(width: int, metric: str) -> None:
    rows = RECORD, record(2, metrics={}, train_loss=float("nan")), record(30, seconds=9e4)
    lines = drawn(width, metric, *rows, best=RECORD)
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= width
    assert not any("…" in line for line in lines)


def test_the_best_epoch_is_marked_without_moving_the_numbers() -> None:
    best = drawn(80, "accuracy", RECORD, best=RECORD)[1]
    assert "* 0.5000" in best
    assert best.replace("*", " ") == drawn(80, "accuracy", RECORD, best=None)[1]


def test_a_line_of_a_log_names_its_numbers() -> None:
    line = epoch_line(epoch_columns(30, "accuracy", RECORD), RECORD, is_best=True)
    for part in ("epoch  1/30", "loss 1.9375", "val accuracy 0.5000 *", "seeds/s 12.3k"):
        assert part in line.split("  ") or part in line
