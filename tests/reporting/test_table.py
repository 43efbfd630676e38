from __future__ import annotations

import pytest

from gnntrain.reporting.table import EpochTable
from gnntrain.training.records import EpochRecord
from tests.reporting.samples import RECORD, record, record_with_val


def titles(width: int | None, first: EpochRecord = RECORD, metric: str = "accuracy") -> list[str]:
    return [column.title for column in EpochTable(30, metric, first, width).columns]


def test_all_columns_are_there_where_nothing_limits_them() -> None:
    assert titles(None) == [
        *("epoch", "loss", "val accuracy", "train accuracy", "test accuracy", "lr"),
        *("time", "eval", "seeds/s", "edges/s", "memory"),
    ]
    assert titles(160) == titles(None)


def test_at_80_columns_the_less_important_give_way() -> None:
    assert titles(80) == [
        *("epoch", "loss", "val accuracy", "time", "eval", "seeds/s", "edges/s", "memory")
    ]


def test_gpu_memory_has_a_column_where_there_is_a_gpu() -> None:
    shown = titles(80, record(gpu_memory_bytes=2**30))
    assert shown[-1] == "GPU"
    assert "eval" not in shown


def test_only_splits_with_metrics_have_a_column() -> None:
    assert titles(None, record_with_val(1, 0.5))[2:4] == ["val accuracy", "lr"]
    assert "val accuracy" in titles(None, record(metrics={}))


@pytest.mark.parametrize("metric", ["accuracy", "average_precision", "f1_macro"])
@pytest.mark.parametrize("width", [40, 80, 120, 160])
def test_lines_keep_to_the_width_and_stand_under_their_titles(width: int, metric: str) -> None:
    table = EpochTable(30, metric, RECORD, width)
    header = table.header()
    assert len(header) <= width
    for row in (RECORD, record(2, metrics={}, train_loss=float("nan")), record(30, seconds=9e4)):
        assert len(table.gap.join(table.cells(row, is_best=True))) == len(header)


def test_the_best_epoch_is_marked_without_moving_the_numbers() -> None:
    table = EpochTable(30, "accuracy", RECORD, 80)
    best = table.gap.join(table.cells(RECORD, is_best=True))
    other = table.gap.join(table.cells(RECORD, is_best=False))
    assert "0.5000 *" in best
    assert best.replace("*", " ") == other


def test_a_sentence_explains_itself() -> None:
    table = EpochTable(30, "accuracy", record_with_val(1, 0.5), None)
    assert table.sentence(record_with_val(3, 0.5), is_best=True) == (
        "epoch  3/30  loss 1.9375  val accuracy 0.5000 *  lr 0.001  time 600 ms  eval 200 ms"
        "  seeds/s 12.3k  edges/s 1.21M  memory 1.50 GiB"
    )
