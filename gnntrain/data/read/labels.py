"""Labels of nodes: classes, several labels a node, or quantities; and splits of nodes: from files,
from columns of the labels or the nodes' table, or drawn."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa

from gnntrain.config import FilesConfig
from gnntrain.data.array_files import ArrayTable, is_array_file, load_arrays
from gnntrain.data.graph import SPLITS, AnyArray, BoolArray, Int64Array
from gnntrain.data.names import MASK_NAMES, SPLIT_ARRAYS, Role
from gnntrain.data.read.columns import (
    id_column,
    ignored_columns,
    label_columns,
    named_split,
    split_places,
)
from gnntrain.data.read.features import NodeRows
from gnntrain.data.read.nodes import NodeIndex, utf8
from gnntrain.data.summary import first_names, split_sizes
from gnntrain.data.tables import BadRows, Columns, Record, Rows
from gnntrain.data.targets import check_split_number
from gnntrain.data.values import TEXT, listed_marks, number_of
from gnntrain.errors import UserError
from gnntrain.metrics import LabelKind

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
_SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev"), 1),
    **dict.fromkeys(("test", "testing"), 2),
}
_FLAG_WORDS = {"0": 0, "1": 1, "false": 0, "true": 1}
_MASKS = tuple(MASK_NAMES)
_ROLES: tuple[Role, ...] = ("split", *_MASKS)
_KEYS_OF_DRAWN = ("split_ratio", "split_seed", "stratify")
_NUM_BINS = 10


SplitSource = Columns | ArrayTable | Mapping[str, Sequence[Path]]
"""The columns of a split file, or its arrays by the names of `SPLIT_ARRAYS`: masks `[num_nodes]` or
`[num_nodes, num_splits]`, or lists of nodes; or the files of the node ids of each split."""

Splits = dict[str, Int64Array]
"""Sorted node numbers of "train", "val" and "test"."""


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
    """The columns and their file."""
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
    for place, column in nodes.categories.items():
        values[place] = column.indices.fill_null(-1).to_numpy()[train]
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


# Splits.


def split_nodes(
    given: SplitSource | None,
    targets: Targets,
    nodes: NodeRows,
    options: FilesConfig,
    bad: BadRows,
    *,
    is_published: bool = False,
) -> tuple[Splits, str]:
    """Splits from the split file, else from columns of the labels or the nodes' table, else drawn;
    and the phrase for `DataSummary.split`.

    A column has the split's name (train, val or valid, test); or there are masks, of 0 and 1 or of
    truth values. Arrays of a split file may hold ids instead. `dataset.split=K` chooses a column of
    masks `[num_nodes, num_splits]`, or a drawn split.
    """
    index = nodes.index
    split_of = np.full(index.num_nodes, -1, np.int8)
    number = options.split if isinstance(options.split, int) else None
    lists: dict[str, Rows] = {}
    if isinstance(given, ArrayTable):
        arrays, origin = _arrays_by_split(given, number or 0)
        for split, (name, array) in arrays.items():
            lists[split] = _rows_of_array(given.path, name, array, index, bad)
    elif isinstance(given, Mapping):
        for split, paths in given.items():
            found = load_arrays(paths) if is_array_file(paths[0]) else {}
            mask = next((array for array in found.values() if array.dtype == np.bool_), None)
            if mask is None:
                lists[split] = index.locate(id_column(paths, bad).read(), bad)
            else:
                lists[split] = _rows_of_array(paths[0], split, mask, index, bad)
        origin = f"files {', '.join(path.name for paths in given.values() for path in paths)}"
    else:
        of_columns = _rows_of_columns(given, targets, nodes, number, bad)
        if of_columns is None:
            return _drawn(targets, number or 0, options, is_published=is_published)
        rows, origin = of_columns
        # A split file without ids has a row for every node, also for those of no split.
        must_have_name = given is not None and "id" in rows.columns
        rows, codes = _codes_of_columns(rows, bad, must_have_name=must_have_name)
        unlabelled = (codes >= 0) & ~targets.labelled[rows.nodes]
        rows = rows.drop(unlabelled, bad, "the node is in a split and has no label")
        split_of[rows.nodes] = codes[~unlabelled]
    for split, rows in lists.items():  # the first field is the node
        node = f"node {{}} in split {split}"
        hint = "A node without a label belongs to no split."
        why = f"{node} has no label"
        rows = rows.drop(~targets.labelled[rows.nodes], bad, why, hint, 0)
        why = f"{node} is in another split, too"
        rows = rows.drop(split_of[rows.nodes] >= 0, bad, why, role=0)
        split_of[rows.nodes] = SPLITS.index(split)
    splits = {name: np.flatnonzero(split_of == code) for code, name in enumerate(SPLITS)}
    fields = type(options).model_fields
    unused = [key for key in _KEYS_OF_DRAWN if getattr(options, key) != fields[key].default]
    without_use = f" (not drawn: {', '.join(unused)} without effect)" if unused else ""
    return splits, f"{origin}{without_use}: {split_sizes(splits)}"


def _rows_of_columns(
    given: Columns | None, targets: Targets, nodes: NodeRows, number: int | None, bad: BadRows
) -> tuple[Rows, str] | None:
    """Rows with columns of splits, from the first table that has some, and what they are called."""
    spec, source = nodes.spec, nodes.rows.source.table
    if given is not None:
        rows = nodes.index.locate(given.read(), bad)
    elif targets.rows.columns.keys() & {*_ROLES}:
        rows = targets.rows
    else:
        named = spec.split.column
        is_there = named is None or named_split(source, spec)
        places = split_places(source, spec, ignored_columns(source, spec)) if is_there else {}
        if not places and named is not None:
            raise UserError(
                f"{spec.split.key('column')}={named[0]}: no file has such a column.",
                "Give the name of a column of the labels or the features file.",
            )
        if not places:
            return None
        rows = Columns(source, places).read_of(nodes.rows)
    table, of_role = rows.source.table, rows.source.places
    found = {role: table.shown(of_role[role]) for role in _ROLES if role in of_role}
    names = [*found.values()]
    if "split" in found and len(found) > 1:
        raise UserError(
            f"{rows.path} says the split twice: in its columns {' and '.join(names)}.",
            f"Set {spec.split.key('column')}={found['split']}, or name it in {spec.key('ignore')}.",
        )
    if not found.keys() & {"split", "train"}:
        raise UserError(
            f"{rows.path} has {' and '.join(names)}, but no train_mask.",
            "Add the mask of the training nodes.",
        )
    origin = _where(rows, [of_role[role] for role in found])
    arrays = table.arrays if isinstance(table, ArrayTable) else {}
    widths = {arrays[name].shape[1] for name in names if name in arrays and arrays[name].ndim == 2}
    if number is not None and not widths:
        raise UserError(
            f"dataset.split={number}: the split is given, by {origin}.",
            "Leave dataset.split out to use it. With "
            f"{spec.key('ignore')}=[{','.join(names)}], a split is drawn.",
        )
    return rows, origin + (f", number {number or 0} of {min(widths)}" if widths else "")


def _codes_of_columns(rows: Rows, bad: BadRows, *, must_have_name: bool) -> tuple[Rows, AnyArray]:
    """The rows and the split of each, by its name or the mask that is 1; −1 for none."""
    if "split" in rows.columns:
        if must_have_name:
            rows = rows.drop(rows.is_missing("split"), bad, "the split is missing")
        codes = _codes(rows, "split", _SPLIT_WORDS)
        wrong = ~rows.is_missing("split") & (codes < 0)
        rows = rows.drop(wrong, bad, "split {} is none of train, val, test", role="split")
        return rows, codes[~wrong]
    masks: list[Role] = [mask for mask in _MASKS if mask in rows.columns]
    for mask in masks:
        name = rows.source.table.names[rows.source.places[mask]]
        wrong = _codes(rows, mask, _FLAG_WORDS) < 0
        rows = rows.drop(wrong, bad, name + " is {} instead of 0 or 1", role=mask)
    flags = np.array([_codes(rows, mask, _FLAG_WORDS) for mask in masks])
    shared = np.asarray(flags.sum(axis=0) > 1)
    rows = rows.drop(shared, bad, "the node is in two splits")
    flags = flags[:, ~shared]
    split_codes = np.array([_MASKS.index(mask) for mask in masks])
    return rows, np.where(flags.any(axis=0), split_codes[flags.argmax(axis=0)], -1)


def _codes(rows: Rows, role: Role, words: Mapping[str, int]) -> AnyArray:
    """The code of each value of a column; −1 for unknown and missing values."""
    found = rows.columns[role].cast(TEXT).dictionary_encode()
    known = [words.get(word.lower(), -1) for word in found.dictionary.to_pylist()]
    codes: AnyArray = np.array([*known, -1])[found.indices.fill_null(len(known)).to_numpy()]
    return codes


def _arrays_by_split(given: ArrayTable, number: int) -> tuple[dict[str, tuple[str, AnyArray]], str]:
    """Name and array of each split, a mask of truth values or a list of nodes; and their origin."""
    path, arrays = given.path, given.arrays
    names = {
        split: next(name for name in usual if name in arrays)
        for split, usual in SPLIT_ARRAYS.items()
        if not arrays.keys().isdisjoint(usual)
    }
    if "train" not in names:
        raise UserError(
            f"{path} has no array called train (it has {', '.join(arrays)}).",
            "Call the arrays of ids or masks train, val and test.",
        )
    # A mask of one column stands beside masks of several for all of them.
    widths = {arrays[name].shape[1] for name in names.values() if arrays[name].ndim == 2} - {0, 1}
    check_split_number(str(path), number, range(min(widths, default=1)))
    found = {}
    for split, name in names.items():
        array = arrays[name]
        if array.ndim == 2 and array.shape[1]:
            array = array[:, number if array.shape[1] > 1 else 0]
        if name.endswith("_mask") and array.dtype != np.bool_:
            if not np.isin(array, (0, 1)).all():
                raise UserError(
                    f"{path}: {name} has other values than 0 and 1.",
                    "Give true or false for each node.",
                )
            array = np.asarray(array != 0)
        found[split] = name, array
    which = f", number {number} of {min(widths)}" if widths else ""
    return found, f"arrays {', '.join(names.values())} of {path.name}{which}"


def _rows_of_array(path: Path, name: str, array: AnyArray, index: NodeIndex, bad: BadRows) -> Rows:
    """The nodes of a mask of truth values, or of a list of ids."""
    if array.ndim != 1:
        raise UserError(f"{path}: {name} has shape {list(array.shape)} instead of one dimension.")
    path = path.with_name(f"{path.name}: {name}")
    if array.dtype != np.bool_:
        return index.locate(Columns(ArrayTable(path, {"id": array}), {"id": 0}).read(), bad)
    table = ArrayTable(path, {"node": np.arange(len(array))})
    return index.locate(Columns(table, {}).read(), bad).keep(array)


def _drawn(
    targets: Targets, number: int, options: FilesConfig, *, is_published: bool
) -> tuple[Splits, str]:
    """Splits that are drawn from the nodes that have a label."""
    nodes = np.flatnonzero(targets.labelled)
    if is_published:  # 60 % train, 20 % val, 20 % test
        order = np.random.default_rng(number).permutation(nodes)
        first = round(0.6 * len(nodes))
        parts = np.split(order, [first, min(first + round(0.2 * len(nodes)), len(nodes))])
        splits = {name: np.sort(part) for name, part in zip(SPLITS, parts, strict=True)}
        how = f"drawn at random (dataset.split={number})"
        return splits, f"{split_sizes(splits)}, {how}"
    strata, within = None, ""
    if options.stratify:
        strata, within = targets.labels[nodes], " within each class"
    if strata is not None and strata.ndim == 2:
        if targets.task != "continuous" or strata.shape[1] > 1:
            raise UserError(
                f"dataset.stratify=true: a node has {strata.shape[1]} labels, and the split can be "
                "alike in one only.",
                "Leave dataset.stratify=false.",
            )
        bounds = np.quantile(strata[:, 0], np.arange(1, _NUM_BINS) / _NUM_BINS)
        strata = np.searchsorted(bounds, strata[:, 0], side="right")
        within = " within each tenth of the quantity"
    splits = draw_split(nodes, options.split_ratio, options.split_seed, number, strata)
    ratio = "/".join(f"{100 * share:g}" for share in options.split_ratio)
    how = f"drawn at random{within}: {ratio}, seed {options.split_seed}, number {number}"
    return splits, f"{how}; {split_sizes(splits)}"


def draw_split(
    nodes: Int64Array,
    ratio: Sequence[float],
    seed: int,
    number: int,
    strata: AnyArray | None = None,
) -> Splits:
    """Share out `nodes` at random, sorted: the split with a given number, of all with one seed.

    The shares of train, val and test, `ratio`, are exact but for rounding: to one node in all, to
    two in each of the strata. With `strata`, `[len(nodes)]`, they are the same within each group of
    nodes with one value.
    """
    order = np.random.default_rng([seed, number]).permutation(len(nodes))
    ends = np.array([len(nodes)])
    if strata is not None:
        order = order[np.argsort(strata[order], kind="stable")]
        ends = np.append(np.flatnonzero(np.diff(strata[order])) + 1, len(nodes))
    # Rounded over all groups before, so that the errors of many small groups do not add up.
    train = np.floor(ratio[0] / sum(ratio) * ends + 0.5)
    rest = max(ratio[1] + ratio[2], 1e-300)
    val = np.floor(ratio[1] / rest * (ends - train) + 0.5)
    begins = np.append(0, ends[:-1])
    first = begins + np.diff(train, prepend=0)
    second = first + np.diff(val, prepend=0)
    place = np.arange(len(nodes))
    group = np.searchsorted(ends, place, side="right")
    part = (place >= first[group]).astype(int) + (place >= second[group])
    return {name: np.sort(nodes[order[part == code]]) for code, name in enumerate(SPLITS)}
