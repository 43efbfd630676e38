"""Tables of epochs and trials: columns that fit the width, drawn by rich."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.table import Table
from rich.text import Text

from gnntrain.reporting.text import (
    format_bytes,
    format_loss,
    format_metric,
    format_rate,
    format_seconds,
    shown_metric,
)
from gnntrain.training.records import EpochRecord

GAP = "  "
BEST = "*"

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column.

    Attributes:
        title: Its heading.
        cell: Its text in a row.
        width: Characters, at least those of the title.
        weight: Where the columns do not fit, the lightest goes first.
        is_decisive: Whether it is the metric that decides, where the best row is marked.
    """

    title: str
    cell: Callable[[Row], str]
    width: int
    weight: int
    is_decisive: bool = False


def fitting(columns: Sequence[Column[Row]], width: int) -> list[Column[Row]]:
    """The heaviest columns that fit the width."""
    kept = list(columns)
    while len(kept) > 2 and _width_of(kept) > width:
        kept.remove(min(reversed(kept), key=lambda column: column.weight))
    return kept


def _width_of(columns: Sequence[Column[Row]]) -> int:
    return sum(column.width + len(GAP) for column in columns) - len(GAP)


def to_table(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row] = (),
    *,
    best: Row | None = None,
    header: bool = True,
    style: str = "",
) -> Table:
    """Rows under each other in the columns' widths, so that a table can grow by single rows.

    Args:
        columns: The columns.
        rows: The rows.
        best: The row whose decisive column is marked.
        header: Whether the titles stand above.
        style: rich's style of the rows.
    """
    table = plain_table(show_header=header)
    for column in columns:
        table.add_column(column.title, width=column.width, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*[_cell(column, row, is_best=row is best) for column in columns], style=style)
    return table


def _cell(column: Column[Row], row: Row, *, is_best: bool) -> str | Text:
    cell = column.cell(row)
    return Text(f"{BEST} {cell}", "bold green") if is_best and column.is_decisive else cell


def plain_table(*header: str, show_header: bool = True) -> Table:
    """An empty table without lines, under dim titles."""
    table = Table(
        *header,
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        show_header=show_header,
        header_style="dim",
    )
    for column in table.columns:
        column.overflow = "fold"
    return table


def epoch_columns(epochs: int, metric: str, first: EpochRecord) -> list[Column[EpochRecord]]:
    """The columns of a table of epochs.

    Args:
        epochs: Epochs of the run.
        metric: The metric that decides.
        first: The first record: its splits and devices have columns.
    """

    def of_split(split: str, weight: int) -> Column[EpochRecord]:
        title = f"{split} {shown_metric(metric)}"
        return Column(
            title,
            lambda record: format_metric(record.metric(split, metric)),
            max(len(title), 10 if split == "val" else 8),  # val: with the mark of the best
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


def epoch_line(
    columns: Sequence[Column[EpochRecord]], record: EpochRecord, *, is_best: bool
) -> str:
    """An epoch for a log: ``epoch 3/10  loss 0.5123  val accuracy 0.7000 *  …``."""
    mark = f" {BEST}" if is_best else ""
    return GAP.join(
        f"{column.title} {column.cell(record)}{mark if column.is_decisive else ''}"
        for column in columns
    )
