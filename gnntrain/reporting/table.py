"""An epoch as one line: the same columns in the same order, as many as the width has room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gnntrain.reporting.text import (
    format_bytes,
    format_loss,
    format_metric,
    format_rate,
    format_seconds,
    shown_metric,
)
from gnntrain.training.records import EpochRecord

_GAP = "  "
_BEST = "*"


Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column.

    Attributes:
        title: Its heading.
        cell: Its text in a row.
        width: Characters, at least those of the title.
        weight: Where the columns do not fit, the lightest goes first.
        is_decisive: Whether it is the metric that decides; the best epoch is marked there.
    """

    title: str
    cell: Callable[[Row], str]
    width: int
    weight: int
    is_decisive: bool = False


class EpochTable:
    """The lines of a run's epochs.

    Args:
        epochs: Epochs that were asked for.
        metric: The metric that decides.
        first: The first record: which splits and devices there are.
        width: Characters a line may have; ``None`` for no limit.

    Attributes:
        gap: What stands between two cells.
        columns: Those that the width has room for.
    """

    gap = _GAP

    def __init__(self, epochs: int, metric: str, first: EpochRecord, width: int | None) -> None:
        self.columns = fitting(_columns(epochs, metric, first), width)

    def header(self) -> str:
        """The headings over :meth:`cells`."""
        return _GAP.join(column.title.rjust(column.width) for column in self.columns)

    def cells(self, record: EpochRecord, *, is_best: bool) -> list[str]:
        """The texts of a row in the columns' widths, to be joined by :attr:`gap`."""
        return [
            _marked(column, record, is_best=is_best, padded=True).rjust(column.width)
            for column in self.columns
        ]

    def sentence(self, record: EpochRecord, *, is_best: bool) -> str:
        """A row that explains itself, for a log: ``epoch 3/10  loss 0.5123  …``."""
        return _GAP.join(
            f"{column.title} {_marked(column, record, is_best=is_best, padded=False)}"
            for column in self.columns
        )


def _marked(
    column: Column[EpochRecord], record: EpochRecord, *, is_best: bool, padded: bool
) -> str:
    if not column.is_decisive:
        return column.cell(record)
    mark = f" {_BEST}" if is_best else "  " if padded else ""
    return column.cell(record) + mark


def _columns(epochs: int, metric: str, first: EpochRecord) -> list[Column[EpochRecord]]:
    def of_split(split: str, weight: int) -> Column[EpochRecord]:
        title = f"{split} {shown_metric(metric)}"
        return Column(
            title,
            lambda record: format_metric(record.metric(split, metric)),
            max(len(title), 10 if split == "val" else 8),  # of val with the best one's mark
            weight,
            is_decisive=split == "val",
        )

    digits = len(str(epochs))
    columns = [
        Column("epoch", lambda r: f"{r.epoch:{digits}}/{epochs}", max(5, 2 * digits + 1), 99),
        Column("loss", lambda r: format_loss(r.train_loss), 7, 98),
        of_split("val", 97),
    ]
    columns += [of_split(split, 2) for split in ("train", "test") if first.metrics.get(split)]
    columns += [
        Column("lr", lambda r: f"{r.lr:.3g}", 8, 1),
        Column("time", lambda r: format_seconds(r.seconds), 8, 6),
        Column("eval", lambda r: format_seconds(r.eval_seconds), 8, 3),
        Column("seeds/s", lambda r: format_rate(r.seeds_per_s), 7, 4),
        Column("edges/s", lambda r: format_rate(r.edges_per_s), 7, 7),
        Column("memory", lambda r: format_bytes(r.memory_bytes), 8, 8),
    ]
    if first.gpu_memory_bytes is not None:
        columns.append(Column("GPU", lambda r: format_bytes(r.gpu_memory_bytes), 8, 9))
    if first.cache_hit_rate is not None:
        columns.append(Column("cache", lambda r: format_metric(r.cache_hit_rate), 8, 5))
    return columns


def fitting(columns: Sequence[Column[Row]], width: int | None) -> list[Column[Row]]:
    """The columns that the width has room for, of any width where ``None``."""
    kept = list(columns)
    while width is not None and len(kept) > 2 and _width_of(kept) > width:
        kept.remove(min(reversed(kept), key=lambda column: column.weight))
    return kept


def _width_of(columns: Sequence[Column[Row]]) -> int:
    return sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1)
