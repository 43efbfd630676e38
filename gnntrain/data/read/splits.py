"""Splits of nodes: from files, from columns of the labels or the nodes' table, or drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnntrain.config.graph_spec import NodeSpec
from gnntrain.data.array_files import MASK_NAMES, SPLIT_ARRAYS, Arrays, ArrayTable, load_all
from gnntrain.data.bad_rows import BadRows, Record
from gnntrain.data.columns import TEXT
from gnntrain.data.graph import SPLITS, AnyArray, Int64Array
from gnntrain.data.read.columns import (
    id_column,
    ignored_columns,
    is_array_file,
    named_split,
    split_places,
)
from gnntrain.data.read.labels import Targets, rows_of_nodes
from gnntrain.data.read.nodes import NodeIndex
from gnntrain.data.summary import split_sizes
from gnntrain.data.tables import Columns, Role, Rows
from gnntrain.data.targets import draw_split
from gnntrain.errors import UserError
from gnntrain.metrics import LabelKind

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

_SPLIT_WORDS = {
    "train": 0,
    "training": 0,
    "val": 1,
    "valid": 1,
    "validation": 1,
    "dev": 1,
    "test": 2,
    "testing": 2,
}
_FLAG_WORDS = {"0": 0, "1": 1, "false": 0, "true": 1}
_MASKS = tuple(MASK_NAMES)
_ROLES: tuple[Role, ...] = ("split", *_MASKS)
_KEYS_OF_DRAWN = ("split_ratio", "split_seed", "stratify")
_NUM_BINS = 10


SplitSource = Columns | Sequence[Path] | Mapping[str, Sequence[Path]]
"""Split files: their columns, or their paths if they hold arrays; or files of ids of each split."""


@dataclass(frozen=True)
class Splits:
    """The nodes of the splits.

    Attributes:
        nodes: Sorted node ids of "train", "val" and "test".
        phrase: See `DataSummary.split`.
    """

    nodes: Mapping[str, Int64Array]
    phrase: str


def split_nodes(
    given: SplitSource | None,
    targets: Targets,
    features: Rows,
    index: NodeIndex,
    spec: NodeSpec,
    options: FilesConfig,
    bad: BadRows,
) -> Splits:
    """Splits from the split file, else from columns of the labels or the nodes' table, else drawn.

    Args:
        given: The split file or files, if there are some.
        targets: The labels.
        features: The rows of the nodes' table.
        index: The nodes.
        spec: The names of the columns.
        options: How splits are drawn, or chosen.
        bad: Takes the bad rows.

    A column has the split's name (train, val or valid, test); or there are masks, of 0 and 1 or of
    truth values. Arrays of a split file may hold ids instead. `dataset.split=K` chooses a column of
    masks `[num_nodes, num_splits]`, or a drawn split.

    Raises:
        UserError: The file cannot be read, or `dataset.split` asks for another split than the
            only one that is given.
    """
    split_of = np.full(index.num_nodes, -1, np.int8)
    if isinstance(given, Mapping):
        origin = _assign_files(given, targets, index, split_of, bad)
    elif isinstance(given, Sequence):
        origin = assign_arrays(given[0], load_all(given), targets, index, split_of, bad)
    else:
        rows = _rows_of_splits(given, targets, features, index, spec, bad)
        if rows is None:
            labelled = np.flatnonzero(targets.labelled)
            return drawn_splits(targets.labels, targets.task, labelled, options)
        origin = _origin(rows, spec, options)
        if "split" in rows.columns:
            # A split file without ids has a row for every node, also for those of no split.
            must_have_name = given is not None and "id" in rows.columns
            _assign_named(rows, targets, split_of, bad, must_have_name=must_have_name)
        else:
            _assign_masks(rows, targets, split_of, bad)
    nodes = {name: np.flatnonzero(split_of == code) for code, name in enumerate(SPLITS)}
    fields = type(options).model_fields
    unused = [key for key in _KEYS_OF_DRAWN if getattr(options, key) != fields[key].default]
    without_use = f" (not drawn: {', '.join(unused)} without effect)" if unused else ""
    return Splits(nodes, f"{origin}{without_use}: {split_sizes(nodes)}")


def _rows_of_splits(
    given: Columns | None,
    targets: Targets,
    features: Rows,
    index: NodeIndex,
    spec: NodeSpec,
    bad: BadRows,
) -> Rows | None:
    """Rows with columns of splits, from the first file that has some."""
    if given is not None:
        return index.locate(given.read(), bad)
    if targets.rows.columns.keys() & {*_ROLES}:
        _refuse_unclear(targets.rows.source, spec)
        return targets.rows
    table, named = features.source.table, spec.split.columns
    is_there = named is None or named_split(table, spec)
    places = split_places(table, spec, ignored_columns(table, spec)) if is_there else {}
    if places:
        columns = Columns(table, places, ())
        _refuse_unclear(columns, spec)
        return rows_of_nodes(columns, features)
    if named is not None:
        raise UserError(
            f"{spec.split.key('column')}={named[0]}: no file has such a column.",
            "Give the name of a column of the labels or the features file.",
        )
    return None


def _refuse_unclear(columns: Columns, spec: NodeSpec) -> None:
    """Raise a UserError where there are names and masks, or masks without one to train on."""
    path = columns.table.path
    found = {
        role: columns.table.shown(columns.places[role]) for role in _ROLES if role in columns.places
    }
    if "split" in found and len(found) > 1:
        raise UserError(
            f"{path} says the split twice: in its columns {' and '.join(found.values())}.",
            f"Set {spec.split.key('column')}={found['split']}, or name it in {spec.key('ignore')}.",
        )
    if not found.keys() & {"split", "train"}:
        raise UserError(
            f"{path} has {' and '.join(found.values())}, but no train_mask.",
            "Add the mask of the training nodes.",
        )


def _origin(rows: Rows, spec: NodeSpec, options: FilesConfig) -> str:
    """The source of the split.

    Raises:
        UserError: `dataset.split` is a number, but there is one split alone.
    """
    table, places = rows.source.table, rows.source.places
    names = [table.shown(places[role]) for role in _ROLES if role in places]
    kind = "column" if len(names) == 1 else "columns"
    found = f"{kind} {', '.join(names)} of {rows.path.name}{table.note}"
    arrays = table.arrays if isinstance(table, ArrayTable) else {}
    widths = {arrays[name].shape[1] for name in names if name in arrays and arrays[name].ndim == 2}
    number = options.split if isinstance(options.split, int) else None
    if number is not None and not widths:
        raise UserError(
            f"dataset.split={number}: the split is given, by {found}.",
            "Leave dataset.split out to use it. With "
            f"{spec.key('ignore')}=[{','.join(names)}], a split is drawn.",
        )
    return found + (f", number {number or 0} of {min(widths)}" if widths else "")


def _assign_named(
    rows: Rows, targets: Targets, split_of: AnyArray, bad: BadRows, *, must_have_name: bool
) -> None:
    """Put each row's node into the split of its name.

    A row without a name is skipped, unless it must have one.
    """
    if must_have_name:
        rows = rows.drop_missing("split", bad, "the split is missing")
    codes = _codes(rows, "split", _SPLIT_WORDS)
    named = ~rows.is_missing("split")
    wrong = named & (codes < 0)
    rows = rows.drop_by_field(wrong, bad, "split", "split {} is none of train, val, test")
    codes, named = codes[~wrong], named[~wrong]
    unlabelled = named & ~targets.labelled[rows.nodes]
    rows = rows.drop_by_field(unlabelled, bad, "split", "node in split {} has no label")
    split_of[rows.nodes] = np.where(named, codes, -1)[~unlabelled]


def _assign_masks(rows: Rows, targets: Targets, split_of: AnyArray, bad: BadRows) -> None:
    """Put each row's node into the split whose mask is 1 there."""
    masks: list[Role] = [mask for mask in _MASKS if mask in rows.columns]
    for mask in masks:
        name = rows.source.table.names[rows.source.places[mask]]
        wrong = _codes(rows, mask, _FLAG_WORDS) < 0
        rows = rows.drop_by_field(wrong, bad, mask, name + " is {} instead of 0 or 1")
    flags = np.array([_codes(rows, mask, _FLAG_WORDS) for mask in masks])
    num_splits = flags.sum(axis=0)
    codes = np.where(
        num_splits > 0, np.array([_MASKS.index(m) for m in masks])[flags.argmax(0)], -1
    )
    shared = np.asarray(num_splits > 1)
    rows = rows.drop(shared, bad, lambda _: "the node is in two splits")
    codes = codes[~shared]
    bare = (codes >= 0) & ~targets.labelled[rows.nodes]
    rows = rows.drop(bare, bad, lambda _: "the node is in a split and has no label")
    split_of[rows.nodes] = codes[~bare]


def _codes(rows: Rows, role: Role, words: Mapping[str, int]) -> AnyArray:
    """The code of each value of a column; −1 for unknown and missing values."""
    found = rows.columns[role].cast(TEXT).dictionary_encode()
    known = [words.get(word.lower(), -1) for word in found.dictionary.to_pylist()]
    codes: AnyArray = np.array([*known, -1])[found.indices.fill_null(len(known)).to_numpy()]
    return codes


def assign_arrays(
    path: Path,
    arrays: Arrays,
    targets: Targets,
    index: NodeIndex,
    split_of: AnyArray,
    bad: BadRows,
    number: int = 0,
) -> str:
    """Put the nodes of masks, or of lists of nodes, into their splits; of several masks, those of a
    number.

    Raises:
        UserError: There are none of the training nodes, or a mask is of another length or has other
            values than 0 and 1.
    """
    found = {
        split: next((name for name in names if name in arrays), None)
        for split, names in SPLIT_ARRAYS.items()
    }
    if found["train"] is None:
        raise UserError(
            f"{path} has no array called train (it has {', '.join(arrays)}).",
            "Call the arrays of ids or masks train, val and test.",
        )
    for split, name in found.items():
        if name is not None:
            rows = _rows_of_array(
                path, name, _as_mask(path, name, arrays[name], number), index, bad
            )
            _assign_rows(rows, split, targets, split_of, bad)
    names = [name for name in found.values() if name is not None]
    widths = [arrays[name].shape[1] for name in names if arrays[name].ndim == 2]
    which = f", number {number} of {min(widths)}" if widths else ""
    return f"arrays {', '.join(names)} of {path.name}{which}"


def _assign_files(
    files: Mapping[str, Sequence[Path]],
    targets: Targets,
    index: NodeIndex,
    split_of: AnyArray,
    bad: BadRows,
) -> str:
    """Put the nodes of each split's files into it: a list of ids, or a mask."""
    for split, paths in files.items():
        arrays = load_all(paths) if is_array_file(paths[0]) else {}
        masks = [array for array in arrays.values() if array.dtype == np.bool_]
        if masks:
            rows = _rows_of_array(paths[0], split, masks[0], index, bad)
        else:
            rows = index.locate(id_column(paths, bad).read(), bad)
        _assign_rows(rows, split, targets, split_of, bad)
    return f"files {', '.join(path.name for paths in files.values() for path in paths)}"


def _assign_rows(
    rows: Rows, split: str, targets: Targets, split_of: AnyArray, bad: BadRows
) -> None:
    reason = _reason(f"in split {split} has no label")
    hint = "A node without a label belongs to no split."
    rows = rows.drop(~targets.labelled[rows.nodes], bad, reason, hint)
    reason = _reason(f"in split {split} is in another split, too")
    rows = rows.drop(split_of[rows.nodes] >= 0, bad, reason)
    split_of[rows.nodes] = SPLITS.index(split)


def _as_mask(path: Path, name: str, array: AnyArray, number: int) -> AnyArray:
    """A mask of 0 and 1 as truth values, of several one; ids as they are."""
    if array.ndim == 2 and array.shape[1]:
        array = array[:, number if array.shape[1] > 1 else 0]
    if not name.endswith("_mask") or array.dtype == np.bool_:
        return array
    if not np.isin(array, (0, 1)).all():
        raise UserError(
            f"{path}: {name} has other values than 0 and 1.", "Give true or false for each node."
        )
    return np.asarray(array != 0)


def _reason(what: str) -> Callable[[Record], str]:
    return lambda record: f"node {record[0]!r} {what}"


def _rows_of_array(path: Path, name: str, array: AnyArray, index: NodeIndex, bad: BadRows) -> Rows:
    if array.ndim != 1:
        raise UserError(f"{path}: {name} has shape {list(array.shape)} instead of one dimension.")
    if array.dtype == np.bool_:
        if len(array) != index.num_nodes:
            raise UserError(
                f"{path}: mask {name} has {len(array)} values; there are {index.num_nodes} nodes.",
                "Give true or false for each node.",
            )
        nodes = np.flatnonzero(array)
        source = Columns(ArrayTable(path, {"node": np.arange(index.num_nodes)}), {}, ())
        return Rows(source, {}, np.empty((len(nodes), 0)), nodes, index.num_nodes, nodes)
    table = ArrayTable(path.with_name(f"{path.name}: {name}"), {"id": array})
    return index.locate(Columns(table, {"id": 0}, ()).read(), bad)


def drawn_splits(
    labels: AnyArray, task: LabelKind, nodes: Int64Array, options: FilesConfig
) -> Splits:
    """Splits that are drawn from the nodes that have a label.

    Args:
        labels: See `GraphData.labels`.
        task: Kind of labels.
        nodes: The nodes that have a label.
        options: Ratio, seed and number of the split, and whether it is stratified.

    Raises:
        UserError: The split is to be stratified, and a node has several labels.
    """
    number = options.split if isinstance(options.split, int) else 0
    strata, within = _strata(labels[nodes], task) if options.stratify else (None, "")
    splits = draw_split(nodes, options.split_ratio, options.split_seed, number, strata)
    ratio = "/".join(f"{100 * share:g}" for share in options.split_ratio)
    how = f"drawn at random{within}: {ratio}, seed {options.split_seed}, number {number}"
    return Splits(splits, f"{how}; {split_sizes(splits)}")


def _strata(labels: AnyArray, task: LabelKind) -> tuple[AnyArray, str]:
    """The strata: classes, or deciles of a quantity.

    Raises:
        UserError: A node has several labels.
    """
    if labels.ndim == 1:
        return labels, " within each class"
    if task != "continuous" or labels.shape[1] > 1:
        raise UserError(
            f"dataset.stratify=true: a node has {labels.shape[1]} labels, and the split can be "
            "alike in one only.",
            "Leave dataset.stratify=false.",
        )
    bounds = np.quantile(labels[:, 0], np.arange(1, _NUM_BINS) / _NUM_BINS)
    return np.searchsorted(bounds, labels[:, 0], side="right"), " within each tenth of the quantity"
