"""Labels of nodes: classes, several labels a node, or quantities."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gnntrain.config.graph_spec import NodeSpec
from gnntrain.data.graph import AnyArray, Int64Array
from gnntrain.data.preprocessing import in_float64
from gnntrain.data.read.columns import label_columns_within
from gnntrain.data.read.nodes import NodeIndex, utf8
from gnntrain.data.summary import first_names
from gnntrain.data.tables import BadRows, Columns, Record, Rows
from gnntrain.data.values import TEXT, BoolArray, number_of, to_categories
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
    "Set task.type=node_regression if it is a quantity, or dataset.task=multiclass if each number "
    "is a class."
)


@dataclass(frozen=True)
class Targets:
    """Labels of the nodes.

    Attributes:
        labels: int32 `[num_nodes]`, −1 without a label; uint8 `[num_nodes, num_classes]` of several
            labels; float64 `[num_nodes, num_classes]` of quantities, NaN if missing.
        num_classes: Number of classes, labels or quantities.
        task: Kind of labels.
        labelled: bool `[num_nodes]`: nodes that have labels.
        rows: Where they were read; may have columns of splits.
        class_names: See `GraphData.class_names`.
        phrase: See `DataSummary.labels`.
    """

    labels: AnyArray
    num_classes: int
    task: LabelKind
    labelled: BoolArray
    rows: Rows
    class_names: AnyArray | None = None
    phrase: str = ""


def no_targets(rows: Rows, index: NodeIndex) -> Targets:
    """Targets of a graph to predict on only: no node has a label."""
    labels = np.full(index.num_nodes, -1, np.int32)
    return Targets(labels, 1, "multiclass", labels >= 0, rows)


def read_targets(
    given: Columns | None,
    features: Rows,
    index: NodeIndex,
    spec: NodeSpec,
    options: FilesConfig,
    bad: BadRows,
    *,
    ask: bool = True,
) -> Targets:
    """Labels from a table of their own, or without one from columns of the nodes' table.

    One column of texts or of whole numbers gives classes, numbered in sorted order; −1 means
    "no label", and so does a missing value. Several columns of 0 and 1 are multi-label. With
    `dataset.task=regression`, the columns are quantities.

    Args:
        given: The columns of the labels' own table.
        features: The rows of the nodes' table.
        index: The nodes.
        spec: The names of the columns.
        options: The task.
        bad: Takes the bad rows.
        ask: Whether labels that may be no classes are an error.

    Raises:
        UserError: The labels do not fit the task, or tell nothing apart; or whole numbers may be
            classes or a quantity.
    """
    if given is not None:
        rows = index.locate(given.read(), bad)
    else:
        within = label_columns_within(features.source.table, spec, options)
        rows = within.read_of(features)
    if options.task == "regression":
        targets = _quantities(rows, index, spec, bad)
    elif "label" in rows.columns:
        targets = _classes(rows, index, spec, options, bad, ask=ask)
    else:
        targets = _flags(rows, index, spec, options, bad)
    num_missing = int((~targets.labelled).sum())
    if not num_missing:
        return targets
    marks = rows.missing_marks
    listed = ", ".join(f"{mark}: {count:,}" for mark, count in marks.items())
    names = targets.class_names
    if marks and names is not None and names.dtype.kind == "S":
        message = "%s: these labels are read as missing, not as classes: %s"
        _logger.warning(message, rows.path, listed)
    phrase = f"; {num_missing:,} of {index.num_nodes:,} nodes have none"
    phrase += f" ({listed})" if marks else ""
    return replace(targets, phrase=targets.phrase + phrase)


def _classes(
    rows: Rows,
    index: NodeIndex,
    spec: NodeSpec,
    options: FilesConfig,
    bad: BadRows,
    *,
    ask: bool,
) -> Targets:
    """Classes from one column, which may also be binary labels."""
    if options.task == "multilabel":
        raise UserError(
            f"dataset.task=multilabel: {rows.path} has one column of labels.",
            "Give a column of 0 and 1 for each label, or leave dataset.task=auto.",
        )
    where = _where(rows, [rows.source.places["label"]])
    column = rows.columns["label"]
    if column.type == TEXT:
        has_label = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool)
        if ask and options.task == "auto":
            _ask_about_texts(column.filter(has_label), where, spec.label.key("column"))
    else:
        values = column.fill_null(-1).to_numpy()
        if ask and options.task == "auto":
            _ask_about_numbers(values[values != -1], where)
        wrong = np.asarray((values < -1) | (values != np.floor(values)) | np.isinf(values))
        reason = "label {} is not a whole number from 0 on, or −1 for none"
        rows = rows.drop(wrong, bad, reason, role="label")
        has_label = values[~wrong] != -1
    found = rows.columns["label"].filter(has_label).dictionary_encode()
    classes, codes = np.unique(found.dictionary.to_numpy(zero_copy_only=False), return_inverse=True)
    labels = np.full(index.num_nodes, -1, np.int32)
    labels[rows.nodes[has_label]] = codes[found.indices.to_numpy()]
    if len(classes) < 2:
        bad.report()  # bad rows may be why
        number = "only one label" if len(classes) else "no label"
        raise UserError(
            f"{rows.path} has {number}; there is nothing to tell apart.", "Give two labels or more."
        )
    if options.task == "binary" and len(classes) != 2:
        raise UserError(
            f"dataset.task=binary: {rows.path} has {len(classes)} different labels.",
            "Set dataset.task=multiclass.",
        )
    is_binary = len(classes) == 2 and options.task != "multiclass"
    names: AnyArray | None = None
    if classes.dtype == object:
        names = utf8(classes)
    elif (classes != np.arange(len(classes))).any():
        names = classes.astype(np.int64)
    phrase = f"{where}: {len(classes):,} classes ({first_names(classes.tolist())})"
    task: LabelKind = "binary" if is_binary else "multiclass"
    return Targets(labels, len(classes), task, labels >= 0, rows, names, phrase)


def _where(rows: Rows, places: Sequence[int]) -> str:
    names = [rows.source.table.shown(place) for place in places]
    kind = "column" if len(names) == 1 else "columns"
    return f"{kind} {first_names(names)} of {rows.path.name}{rows.source.table.note}"


def _ask_about_texts(texts: pa.Array, where: str, key: str) -> None:
    """Raise a UserError where most of very many texts stand once: "10,111", a date, a name."""
    counts = texts.value_counts().field("counts").to_numpy()
    if len(counts) > _MOST_CLASSES and np.median(counts) < _FEW_TEXTS:
        raise UserError(
            f"{where} has {len(counts):,} different texts for labels, such as {texts[0].as_py()!r},"
            " and most of them stand only once: are they classes?",
            "Set dataset.task=multiclass if each text is a class; else give other labels: of a "
            f"table, {key} names their column. A quantity is written in digits with a decimal mark "
            "alone.",
        )


def _ask_about_numbers(values: AnyArray, where: str) -> None:
    """Raise a UserError where numbers may be classes or a quantity.

    Fractions are no classes. Whole numbers are plain classes if there are at most 50 different
    ones, or if they fill their range as class numbers do and a typical one has several nodes.
    """
    different, counts = np.unique(values, return_counts=True)
    if not len(different):
        return
    ends = f"from {_number(different[0])} to {_number(different[-1])}"
    fractions = values[values != np.floor(values)]
    if len(fractions):
        raise UserError(
            f"{where} has fractions for labels: {len(fractions):,} of {len(values):,}, such as "
            f"{_number(fractions[0])}; {ends}.",
            f"{_TWO_KEYS} Then fractions are bad rows.",
        )
    is_sparse = len(different) < (different[-1] - different[0] + 1) / 2
    is_rare = float(np.median(counts)) < _FEW_NODES
    if len(different) > _MOST_CLASSES and (is_sparse or is_rare):
        raise UserError(
            f"{where} has {len(different):,} different whole numbers {ends}: are they classes or a "
            "quantity?",
            _TWO_KEYS,
        )


def _flags(
    rows: Rows, index: NodeIndex, spec: NodeSpec, options: FilesConfig, bad: BadRows
) -> Targets:
    """Several labels of 0 and 1."""
    num_classes, key = len(rows.source.numbers), spec.label.key("column")
    if options.task not in ("auto", "multilabel"):
        raise UserError(
            f"dataset.task={options.task}: {rows.path} has {num_classes} columns of labels.",
            f"Say which one is meant with {key}.",
        )
    rows = _with_some_number(rows)
    where = _where(rows, rows.source.numbers)
    wrong = np.asarray(~np.isin(rows.matrix, (0, 1)).all(axis=1))
    hint = (
        f"If only one column holds the labels, set {key}; if they are quantities, "
        "task.type=node_regression."
    )
    if len(rows) and wrong.all():
        raise UserError(f"{where}: no row has 0 or 1 in each of them.", hint)
    reason = _reason(rows, lambda number: number in (0, 1), "0 or 1")
    rows = rows.drop(wrong, bad, reason, hint)
    labels = np.zeros((index.num_nodes, num_classes), np.uint8)
    labels[rows.nodes] = rows.matrix
    labelled = np.zeros(index.num_nodes, bool)
    labelled[rows.nodes] = True
    phrase = f"{where}: {num_classes} labels of 0 and 1"
    names = _names_of_numbers(rows)
    return Targets(labels, num_classes, "multilabel", labelled, rows, names, phrase)


def _quantities(rows: Rows, index: NodeIndex, spec: NodeSpec, bad: BadRows) -> Targets:
    """Numbers to be predicted."""
    key, columns = spec.label.key("column"), rows.source.numbers
    where = _where(rows, columns)
    rows = _with_some_number(rows)
    wrong = np.asarray(np.isinf(rows.matrix.astype(np.float32, copy=False)).any(axis=1))
    if len(rows) and wrong.all():
        raise UserError(
            f"{where}: no row has numbers for labels.",
            f"Give the column of the quantity as {key}.",
        )
    reason = _reason(rows, lambda number: not abs(number) > _LARGEST, "a number")
    rows = rows.drop(wrong, bad, reason)
    labels = np.full((index.num_nodes, len(columns)), np.nan)
    labels[rows.nodes] = in_float64(rows.matrix, rows.exact)
    ranges = []
    for place, values in zip(columns, labels.T, strict=True):
        known = values[~np.isnan(values)]
        if not len(known) or known.min() == known.max():
            bad.report()  # bad rows may be why
            name = rows.source.table.shown(place)
            raise UserError(
                f"{rows.path}: column {name} has less than two different numbers.",
                f"There is nothing to tell apart; choose others as {key}.",
            )
        ranges.append(f"from {_number(known.min())} to {_number(known.max())}")
    kind = "a quantity" if len(columns) == 1 else f"{len(columns)} quantities"
    phrase = f"{where}: {kind}, {'; '.join(ranges)}"
    labelled = np.asarray(~np.isnan(labels).all(axis=1))
    names = _names_of_numbers(rows)
    return Targets(labels, len(columns), "continuous", labelled, rows, names, phrase)


def _with_some_number(rows: Rows) -> Rows:
    """The rows with at least one label."""
    missing = np.asarray(rows.matrix != rows.matrix)  # NaN, of any type
    return rows.keep(np.asarray(~missing.all(axis=1))) if missing.any() else rows


def _names_of_numbers(rows: Rows) -> AnyArray | None:
    """Names of the columns; None where a name stands twice or all are places, which say nothing."""
    names = list(rows.source.names_of_numbers.values())
    is_named = len(set(names)) == len(names) and not all(name.isdecimal() for name in names)
    return utf8(np.array(names, object)) if is_named else None


def _reason(
    rows: Rows, is_right: Callable[[float], bool], expected: str
) -> Callable[[Record], str]:
    """Why a row is bad: its first field that is not as expected."""
    source = rows.source

    def reason(record: Record) -> str:
        for place, name in source.names_of_numbers.items():
            number = number_of(record[place], source.table.decimal)
            if number is None or not is_right(number):
                return f"label {name} is {record[place]!r} instead of {expected}"
        return f"a label is not {expected}"

    return reason


def _number(value: float) -> str:
    whole = float(value).is_integer() and abs(value) < 1e15
    return f"{int(value):,}" if whole else f"{value:,.6g}"


def warn_of_label_leaks(
    features: Rows,
    categorical: Collection[int],
    classes: AnyArray,
    train: Int64Array,
    spec: NodeSpec,
) -> None:
    """Warn of each column whose values and the classes of the training nodes are one to one.

    Args:
        features: The rows of the features file, in the order of the nodes.
        categorical: Places of its columns of categories.
        classes: int32 `[num_nodes]`.
        train: The training nodes; of very many, the first are looked at.
        spec: The nodes.
    """
    nodes = train[: max(1, _MOST_VALUES // max(1, features.matrix.shape[1]))]
    known = classes[nodes]
    num_classes = len(np.unique(known))
    if num_classes < 2 or len(nodes) < _NODES_A_CLASS * num_classes:
        return
    table, numbers = features.source.table, features.source.numbers
    # Columns of single numbers, and of categories.
    values: dict[str, AnyArray] = {}
    matrix, first = features.matrix[nodes], 0
    for column, width in zip(numbers, features.widths, strict=True):
        if width == 1:
            values[table.shown(column)] = matrix[:, first]
        first += width
    for column in categorical:
        codes = to_categories(features.columns[column]).indices.fill_null(-1)
        values[table.shown(column)] = codes.to_numpy()[nodes]
    for name, of_column in values.items():
        different, codes = np.unique(of_column, return_inverse=True)
        if len(different) != num_classes:
            continue
        if len(np.unique(np.stack([codes, known]), axis=1).T) == num_classes:
            _logger.warning(
                "%s: column %s tells the class of every training node. If it is the label under "
                "another name, leave it out with %s=[%s].",
                features.path,
                name,
                spec.key("ignore"),
                name,
            )
