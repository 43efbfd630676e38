"""Labels of nodes: classes, several labels a node, or quantities."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gnntrain.data.graph import AnyArray, Int64Array
from gnntrain.data.read.columns import label_columns
from gnntrain.data.read.features import NodeRows
from gnntrain.data.read.nodes import utf8
from gnntrain.data.summary import first_names
from gnntrain.data.tables import BadRows, Columns, Record, Rows
from gnntrain.data.values import TEXT, BoolArray, listed_marks, number_of, to_categories
from gnntrain.errors import UserError
from gnntrain.metrics import LabelKind

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

_logger = logging.getLogger("gnntrain")

_MOST_CLASSES = 50  # of whole numbers that are taken as classes without a question
_FEW_NODES = 5
_FEW_TEXTS = 2  # nodes of a typical text
_NODES_A_CLASS = 5  # with fewer, a feature may look like the class by chance
_MOST_VALUES = 1 << 24
_LARGEST = float(np.finfo(np.float32).max)
_TWO_KEYS = (
    "Set task.type=node_regression if it is a quantity, or dataset.task=multiclass if each value "
    "is a class."
)


@dataclass(frozen=True)
class Targets:
    """Labels of the nodes, as `GraphData` has them: int32, uint8, or float64 of quantities.

    `labelled` says which nodes have labels; `rows`, where they were read, may have columns of
    splits; `phrase` is that of `DataSummary.labels`.
    """

    labels: AnyArray
    num_classes: int
    task: LabelKind
    labelled: BoolArray
    rows: Rows
    class_names: AnyArray | None = None
    phrase: str = ""


def read_targets(
    given: Columns | None, nodes: NodeRows, options: FilesConfig, bad: BadRows, *, ask: bool = True
) -> Targets:
    """Labels from the columns of a table of their own, or without one of the nodes' table.

    One column of texts or of whole numbers gives classes, numbered in sorted order; −1 means
    "no label", and so does a missing value. Several columns of 0 and 1 are multi-label. With
    `dataset.task=regression`, the columns are quantities. `ask`: labels that may be no classes are
    an error.
    """
    if given is not None:
        rows = nodes.index.locate(given.read(), bad)
    else:
        within = label_columns(nodes.rows.source.table, nodes.spec, options, within=True)
        rows = within.read_of(nodes.rows)
    if "label" in rows.columns:
        targets = _classes(rows, nodes, options, bad, ask=ask)
    else:
        targets = _numbers(rows, nodes, options, bad)
    num_missing = int((~targets.labelled).sum())
    if not num_missing:
        return targets
    listed = listed_marks(rows.missing_marks)
    if listed and targets.class_names is not None and targets.class_names.dtype.kind == "S":
        message = "%s: these labels are read as missing, not as classes: %s"
        _logger.warning(message, rows.path, listed)
    phrase = f"{targets.phrase}; {num_missing:,} of {nodes.index.num_nodes:,} nodes have none"
    return replace(targets, phrase=phrase + (f" ({listed})" if listed else ""))


def _classes(
    rows: Rows, nodes: NodeRows, options: FilesConfig, bad: BadRows, *, ask: bool
) -> Targets:
    """Classes from one column, which may also be binary labels."""
    if options.task == "multilabel":
        raise UserError(
            f"dataset.task=multilabel: {rows.path} has one column of labels.",
            "Give a column of 0 and 1 for each label, or leave dataset.task=auto.",
        )
    where, column = _where(rows, [rows.source.places["label"]]), rows.columns["label"]
    has_label = ~rows.is_missing("label")
    if column.type != TEXT:
        values = column.fill_null(-1).to_numpy()
        has_label = np.asarray(values != -1)
    if ask and options.task == "auto":
        _refuse_doubtful(column.filter(has_label), where, nodes.spec.label.key("column"))
    if column.type != TEXT:
        wrong = np.asarray((values < -1) | (values != np.floor(values)) | np.isinf(values))
        reason = "label {} is not a whole number from 0 on, or −1 for none"
        rows = rows.drop(wrong, bad, reason, role="label")
        has_label = has_label[~wrong]
    found = rows.columns["label"].filter(has_label).dictionary_encode()
    classes, codes = np.unique(found.dictionary.to_numpy(zero_copy_only=False), return_inverse=True)
    labels = np.full(nodes.index.num_nodes, -1, np.int32)
    labels[rows.nodes[has_label]] = codes[found.indices.to_numpy()]
    if len(classes) < 2:
        bad.report()  # bad rows may be why
        number = "only one label" if len(classes) else "no label"
        raise UserError(
            f"{rows.path} has {number}; there is nothing to tell apart.",
            "Give two labels or more; -1 stands for none.",
        )
    if options.task == "binary" and len(classes) != 2:
        raise UserError(
            f"dataset.task=binary: {rows.path} has {len(classes)} different labels.",
            "Set dataset.task=multiclass.",
        )
    names: AnyArray | None = None
    if classes.dtype == object:
        names = utf8(classes)
    elif (classes != np.arange(len(classes))).any():
        names = classes.astype(np.int64)
    is_binary = len(classes) == 2 and options.task != "multiclass"
    task: LabelKind = "binary" if is_binary else "multiclass"
    phrase = f"{where}: {len(classes):,} classes ({first_names(classes.tolist())})"
    return Targets(labels, len(classes), task, labels >= 0, rows, names, phrase)


def _numbers(rows: Rows, nodes: NodeRows, options: FilesConfig, bad: BadRows) -> Targets:
    """Several labels of 0 and 1, or quantities, from columns of numbers."""
    table, key = rows.source.table, nodes.spec.label.key("column")
    columns = {place: table.shown(place) for place in rows.source.numbers}
    is_quantity = options.task == "regression"
    if not is_quantity and options.task not in ("auto", "multilabel"):
        raise UserError(
            f"dataset.task={options.task}: {rows.path} has {len(columns)} columns of labels.",
            f"Say which one is meant with {key}.",
        )
    where = _where(rows, [*columns])
    has_label = np.asarray((rows.matrix == rows.matrix).any(axis=1))  # NaN, of any type, is none
    if is_quantity:
        wrong = np.isinf(rows.matrix.astype(np.float32, copy=False)).any(axis=1)
        expected, hint = "a number", f"Give the column of the quantity as {key}."
    else:
        wrong = ~np.isin(rows.matrix, (0, 1)).all(axis=1)
        expected, hint = "0 or 1", f"If only one column holds the labels, set {key}; if they are "
        hint += "quantities, task.type=node_regression."
    wrong &= has_label

    def reason(record: Record) -> str:
        for place, name in columns.items():
            number = number_of(record[place], table.decimal)
            if abs(number) > _LARGEST or not (is_quantity or number in (0, 1)):
                return f"label {name} is {record[place]!r} instead of {expected}"
        return f"a label is not {expected}"

    rows = rows.drop(np.asarray(wrong), bad, reason, hint)
    has_label = has_label[~wrong]
    shape = nodes.index.num_nodes, len(columns)
    labelled = np.zeros(len(nodes.rows), bool)
    labelled[rows.nodes[has_label]] = True
    names = None  # where a name stands twice or all are places, which say nothing
    if len({*columns.values()}) == len(columns) and not all(map(str.isdecimal, columns.values())):
        names = utf8(np.array([*columns.values()], object))
    if not is_quantity:
        labels: AnyArray = np.zeros(shape, np.uint8)
        labels[rows.nodes[has_label]] = rows.matrix[has_label]
        phrase = f"{where}: {len(columns)} labels of 0 and 1"
        return Targets(labels, len(columns), "multilabel", labelled, rows, names, phrase)
    labels = np.full(shape, np.nan)
    labels[rows.nodes] = rows.matrix
    ranges = []
    for name, values in zip(columns.values(), labels.T, strict=True):
        known = values[~np.isnan(values)]
        if not len(known) or known.min() == known.max():
            bad.report()  # bad rows may be why
            raise UserError(
                f"{rows.path}: column {name} has less than two different numbers.",
                f"There is nothing to tell apart; choose others as {key}.",
            )
        ranges.append(f"from {_number(known.min())} to {_number(known.max())}")
    kind = "a quantity" if len(columns) == 1 else f"{len(columns)} quantities"
    phrase = f"{where}: {kind}, {'; '.join(ranges)}"
    return Targets(labels, len(columns), "continuous", labelled, rows, names, phrase)


def _where(rows: Rows, places: Sequence[int]) -> str:
    names = [rows.source.table.shown(place) for place in places]
    kind = "column" if len(names) == 1 else "columns"
    return f"{kind} {first_names(names)} of {rows.path.name}{rows.source.table.note}"


def _refuse_doubtful(labels: pa.Array, where: str, key: str) -> None:
    """Ask whether labels are classes.

    Fractions are none. Texts are, unless most of very many stand once: "10,111", a date, a name.
    Whole numbers are if there are at most 50 different ones, or if they fill their range as class
    numbers do and a typical one has several nodes.
    """
    counts, is_text = labels.value_counts().field("counts").to_numpy(), labels.type == TEXT
    typical = np.median(counts) if len(counts) else 0
    values = (labels[:1] if is_text else labels).to_numpy(zero_copy_only=False)
    is_sparse = typical < (_FEW_TEXTS if is_text else _FEW_NODES)
    if not is_text and len(values):
        fractions = values[values != np.floor(values)]
        if len(fractions):
            raise UserError(
                f"{where} has fractions for labels: {len(fractions):,} of {len(values):,}, such as "
                f"{_number(fractions[0])}.",
                f"{_TWO_KEYS} Then fractions are bad rows.",
            )
        is_sparse |= len(counts) < (values.max() - values.min() + 1) / 2
    if is_sparse and len(counts) > _MOST_CLASSES:
        kind = "texts" if is_text else "whole numbers"
        raise UserError(
            f"{where} has {len(counts):,} different {kind} for labels, such as {values[0]}: are "
            "they classes or a quantity?",
            f"{_TWO_KEYS} Other columns of labels are named by {key}.",
        )


def _number(value: float) -> str:
    whole = float(value).is_integer() and abs(value) < 1e15
    return f"{int(value):,}" if whole else f"{value:,.6g}"


def warn_of_label_leaks(nodes: NodeRows, classes: AnyArray, train: Int64Array) -> None:
    """Warn of each column whose values and the classes of the training nodes are one to one; of
    very many nodes, the first are looked at."""
    rows, table = nodes.rows, nodes.rows.source.table
    train = train[: max(1, _MOST_VALUES // max(1, rows.matrix.shape[1]))]
    known = classes[train]
    num_classes = len(np.unique(known))
    if num_classes < 2 or len(train) < _NODES_A_CLASS * num_classes:
        return
    # Columns of single numbers, and of categories.
    matrix, widths = rows.matrix[train], rows.widths
    values = {
        place: matrix[:, end - 1]
        for (place, width), end in zip(widths.items(), accumulate(widths.values()), strict=True)
        if width == 1
    }
    for place in nodes.categorical:
        codes = to_categories(rows.columns[place]).indices.fill_null(-1)
        values[place] = codes.to_numpy()[train]
    for place, of_column in values.items():
        different, codes = np.unique(of_column, return_inverse=True)
        if len(different) != num_classes:
            continue
        if len(np.unique(np.stack([codes, known]), axis=1).T) == num_classes:
            _logger.warning(
                "%s: column %s tells the class of every training node. If it is the label under "
                "another name, leave it out with %s=[%s].",
                rows.path,
                table.shown(place),
                nodes.spec.key("ignore"),
                table.shown(place),
            )
