"""Labels of nodes: classes, several labels a node, or quantities."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gnntrain.config.graph_spec import NodeSpec
from gnntrain.data.array_files import ArrayTable
from gnntrain.data.bad_rows import BadRows, Record
from gnntrain.data.columns import TEXT, BoolArray, number_of, to_categories
from gnntrain.data.graph import AnyArray, Float64Array, Int64Array
from gnntrain.data.preprocessing import in_float64
from gnntrain.data.read.columns import label_columns_within
from gnntrain.data.read.nodes import NodeIndex, utf8
from gnntrain.data.summary import first_names
from gnntrain.data.tables import Columns, Rows
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
) -> Targets:
    """Labels from the labels file, or without one from columns of the nodes' table.

    One column of texts or of whole numbers gives classes, numbered in sorted order; −1 means
    "no label", and so does a missing value. Several columns of 0 and 1 are multi-label. With
    `dataset.task=regression`, the columns are quantities.

    Raises:
        UserError: The labels do not fit the task, or tell nothing apart; or whole numbers may be
            classes or a quantity.
    """
    if given is None:
        within = label_columns_within(features.source.table, spec, options)
        rows = rows_of_nodes(within, features)
    else:
        rows = index.locate(given.read(), bad)
    found = targets_of_rows(rows, index, spec, options, bad)
    return replace(found, phrase=found.phrase + _missing(found))


def targets_of_rows(
    rows: Rows,
    index: NodeIndex,
    spec: NodeSpec,
    options: FilesConfig,
    bad: BadRows,
    *,
    ask: bool = True,
) -> Targets:
    """As `read_targets`, of rows of labels; `ask`: whether numbers that may be no classes are
    asked about."""
    if options.task == "regression":
        return _quantities(rows, index, spec, bad)
    if "label" in rows.columns:
        return _classes(rows, index, spec, options, bad, ask=ask)
    return _flags(rows, index, spec, options, bad)


def rows_of_nodes(columns: Columns, features: Rows) -> Rows:
    """Other columns of the features file, of the rows that are nodes."""
    if isinstance(columns.table, ArrayTable):  # nothing to parse
        rows = columns.read()
        rows = rows.keep(np.isin(rows.rows, features.rows, assume_unique=True))
    else:
        rows = columns.select(features)
    return replace(rows, nodes=np.arange(len(rows)))


def _missing(targets: Targets) -> str:
    num_missing = int((~targets.labelled).sum())
    if not num_missing:
        return ""
    marks = targets.rows.missing_marks
    listed = ", ".join(f"{mark}: {count:,}" for mark, count in marks.items())
    if marks and targets.class_names is not None and targets.class_names.dtype.kind == "S":
        path = targets.rows.path
        _logger.warning("%s: these labels are read as missing, not as classes: %s", path, listed)
    found = f"; {num_missing:,} of {len(targets.labelled):,} nodes have none"
    return found + (f" ({listed})" if marks else "")


def _classes(
    rows: Rows,
    index: NodeIndex,
    spec: NodeSpec,
    options: FilesConfig,
    bad: BadRows,
    *,
    ask: bool,
) -> Targets:
    where = _where(rows, [rows.source.places["label"]])
    if ask and options.task == "auto":
        _ask_about_labels(rows.columns["label"], where, spec.label.key("column"))
    rows = rows.drop_by_field(
        _is_no_class(rows.columns["label"]),
        bad,
        "label",
        "label {} is not a whole number from 0 on, or −1 for none",
    )
    has_label = _has_label(rows.columns["label"])
    found = rows.columns["label"].filter(has_label).dictionary_encode()
    classes, codes = np.unique(found.dictionary.to_numpy(zero_copy_only=False), return_inverse=True)
    labels = np.full(index.num_nodes, -1, np.int32)
    labels[rows.nodes[has_label]] = codes[found.indices.to_numpy()]
    if len(classes) < 2:
        bad.report()  # bad rows may be why
    task = _class_task(options, len(classes), rows)
    phrase = f"{where}: {len(classes):,} classes ({first_names(classes.tolist())})"
    return Targets(labels, len(classes), task, labels >= 0, rows, _stored_names(classes), phrase)


def _where(rows: Rows, places: Sequence[int]) -> str:
    names = [rows.source.table.shown(place) for place in places]
    kind = "column" if len(names) == 1 else "columns"
    return f"{kind} {first_names(names)} of {rows.path.name}{rows.source.table.note}"


def _ask_about_labels(column: pa.Array, where: str, key: str) -> None:
    """Raise a UserError for labels that may be no classes.

    Args:
        column: The labels; −1 and null are none.
        where: Where they are from, for the message.
        key: The key that names their column.
    """
    if column.type == TEXT:
        _ask_about_texts(column, where, key)
    else:
        _ask_about_numbers(column, where)


def _ask_about_texts(column: pa.Array, where: str, key: str) -> None:
    """Raise a UserError where most of very many texts stand once: "10,111", a date, a name."""
    counts = column.filter(_has_label(column)).value_counts().field("counts").to_numpy()
    if len(counts) > _MOST_CLASSES and np.median(counts) < _FEW_TEXTS:
        example = column.drop_null()[0].as_py()
        raise UserError(
            f"{where} has {len(counts):,} different texts for labels, such as {example!r}, "
            "and most of them stand only once: are they classes?",
            "Set dataset.task=multiclass if each text is a class; else give other labels: of a "
            f"table, {key} names their column. A quantity is written in digits with a decimal mark "
            "alone.",
        )


def _ask_about_numbers(column: pa.Array, where: str) -> None:
    """Raise a UserError where numbers may be classes or a quantity.

    Fractions are no classes. Whole numbers are plain classes if there are at most 50 different
    ones, or if they fill their range as class numbers do and a typical one has several nodes.
    """
    values = column.filter(_has_label(column)).to_numpy()
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


def _stored_names(classes: AnyArray) -> AnyArray | None:
    """Classes as a store keeps them; None if they are 0, 1, …."""
    if classes.dtype == object:
        return utf8(classes)
    return None if (classes == np.arange(len(classes))).all() else classes.astype(np.int64)


def _has_label(column: pa.Array) -> BoolArray:
    if column.type == TEXT:
        return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool)
    return np.asarray(column.fill_null(-1).to_numpy() != -1)


def _is_no_class(column: pa.Array) -> BoolArray:
    if column.type == TEXT:
        return np.zeros(len(column), bool)
    values = column.fill_null(-1).to_numpy()
    return np.asarray((values < -1) | (values != np.floor(values)) | np.isinf(values))


def _class_task(options: FilesConfig, num_classes: int, rows: Rows) -> LabelKind:
    few = {0: "no label", 1: "only one label"}
    number = few.get(num_classes, f"{num_classes} different labels")
    found = f"{rows.path} has {number}"
    if options.task == "multilabel":
        raise UserError(
            f"dataset.task=multilabel: {rows.path} has one column of labels.",
            "Give a column of 0 and 1 for each label, or leave dataset.task=auto.",
        )
    if num_classes < 2:
        raise UserError(f"{found}; there is nothing to tell apart.", "Give two labels or more.")
    if options.task == "binary" and num_classes != 2:
        raise UserError(f"dataset.task=binary: {found}.", "Set dataset.task=multiclass.")
    if options.task == "multiclass":
        return "multiclass"
    return "binary" if num_classes == 2 else "multiclass"


def _flags(
    rows: Rows, index: NodeIndex, spec: NodeSpec, options: FilesConfig, bad: BadRows
) -> Targets:
    path, num_classes = rows.path, len(rows.source.numbers)
    if options.task not in ("auto", "multilabel"):
        raise UserError(
            f"dataset.task={options.task}: {path} has {num_classes} columns of labels.",
            f"Say which one is meant with {spec.label.key('column')}.",
        )
    rows = _with_numbers(rows)
    wrong = np.asarray(~np.isin(rows.matrix, (0, 1)).all(axis=1))
    hint = (
        f"If only one column holds the labels, set {spec.label.key('column')}; if they are "
        "quantities, task.type=node_regression."
    )
    if len(rows) and wrong.all():
        where = _where(rows, rows.source.numbers)
        raise UserError(f"{where}: no row has 0 or 1 in each of them.", hint)
    is_flag = frozenset((0.0, 1.0)).__contains__
    rows = rows.drop(wrong, bad, lambda record: _wrong(record, rows, is_flag, "0 or 1"), hint)
    labels = np.zeros((index.num_nodes, num_classes), np.uint8)
    labels[rows.nodes] = rows.matrix
    labelled = np.zeros(index.num_nodes, bool)
    labelled[rows.nodes] = True
    phrase = f"{_where(rows, rows.source.numbers)}: {num_classes} labels of 0 and 1"
    names = _names_of_numbers(rows)
    return Targets(labels, num_classes, "multilabel", labelled, rows, names, phrase)


def _with_numbers(rows: Rows) -> Rows:
    """The rows with at least one label."""
    missing = np.asarray(rows.matrix != rows.matrix)  # NaN, of any type
    return rows.keep(np.asarray(~missing.all(axis=1))) if missing.any() else rows


def _names_of_numbers(rows: Rows) -> AnyArray | None:
    """Names of the columns; None where a name stands twice or all are places, which say nothing."""
    names = list(rows.source.names_of_numbers.values())
    is_named = len(set(names)) == len(names) and not all(name.isdecimal() for name in names)
    return utf8(np.array(names, object)) if is_named else None


def _wrong(record: Record, rows: Rows, is_right: Callable[[float], bool], expected: str) -> str:
    decimal = rows.source.table.decimal
    for place, name in rows.source.names_of_numbers.items():
        number = number_of(record[place], decimal)
        if number is None or not is_right(number):
            return f"label {name} is {record[place]!r} instead of {expected}"
    return f"a label is not {expected}"


def _quantities(rows: Rows, index: NodeIndex, spec: NodeSpec, bad: BadRows) -> Targets:
    where = _where(rows, rows.source.numbers)
    rows = _with_numbers(rows)
    wrong = np.asarray(np.isinf(rows.matrix.astype(np.float32, copy=False)).any(axis=1))
    if len(rows) and wrong.all():
        raise UserError(
            f"{where}: no row has numbers for labels.",
            f"Give the column of the quantity as {spec.label.key('column')}.",
        )
    is_number = _is_number_or_missing
    rows = rows.drop(wrong, bad, lambda record: _wrong(record, rows, is_number, "a number"))
    shape = (index.num_nodes, len(rows.source.numbers))
    labels = np.full(shape, np.nan)
    labels[rows.nodes] = in_float64(rows.matrix, rows.exact)
    ranges = [_range(labels[:, at]) for at in range(shape[1])]
    if None in ranges:
        bad.report()
        name = rows.source.table.shown(rows.source.numbers[ranges.index(None)])
        raise UserError(
            f"{rows.path}: column {name} has less than two different numbers.",
            f"There is nothing to tell apart; choose others as {spec.label.key('column')}.",
        )
    kind = "a quantity" if shape[1] == 1 else f"{shape[1]} quantities"
    phrase = f"{where}: {kind}, {'; '.join(map(str, ranges))}"
    labelled = np.asarray(~np.isnan(labels).all(axis=1))
    names = _names_of_numbers(rows)
    return Targets(labels, shape[1], "continuous", labelled, rows, names, phrase)


def _is_number_or_missing(number: float) -> bool:
    return not abs(number) > _LARGEST


def _range(values: Float64Array) -> str | None:
    """A target's range as text; None if it has fewer than two different values."""
    known = values[~np.isnan(values)]
    if not len(known) or known.min() == known.max():
        return None
    return f"from {_number(known.min())} to {_number(known.max())}"


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
    for name, values in _columns(features, categorical, nodes):
        if _is_one_to_one(values, known, num_classes):
            _logger.warning(
                "%s: column %s tells the class of every training node. If it is the label under "
                "another name, leave it out with %s=[%s].",
                features.path,
                name,
                spec.key("ignore"),
                name,
            )


def _columns(
    features: Rows, categorical: Collection[int], nodes: Int64Array
) -> Iterator[tuple[str, AnyArray]]:
    """Names and values of the columns of single numbers, and of categories."""
    table = features.source.table
    matrix, place = features.matrix[nodes], 0
    widths = features.widths or [1] * len(features.source.numbers)
    for column, width in zip(features.source.numbers, widths, strict=True):
        if width == 1:
            yield table.shown(column), matrix[:, place]
        place += width
    for column in categorical:
        codes = to_categories(features.others[column]).indices.fill_null(-1)
        yield table.shown(column), codes.to_numpy()[nodes]


def _is_one_to_one(values: AnyArray, classes: AnyArray, num_classes: int) -> bool:
    different, codes = np.unique(values, return_inverse=True)
    if len(different) != num_classes:
        return False
    return len(np.unique(np.stack([codes, classes]), axis=1).T) == num_classes
