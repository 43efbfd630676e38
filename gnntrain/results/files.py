"""Files of results, a row a node, written a chunk at a time and put in their place when whole."""

from __future__ import annotations

import csv
import dataclasses
import io
import logging
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from gnntrain.atomic_io import atomic_write
from gnntrain.compute.features import as_tensor
from gnntrain.data.graph import AnyArray, Int64Array
from gnntrain.errors import RunError, UserError
from gnntrain.tasks.base import Column

_log = logging.getLogger("gnntrain")

_CHUNK_NUMBERS = 1 << 20
_FORMULA = r"\A([=+@-])"  # how a cell begins that a spreadsheet computes


@dataclass(frozen=True)
class Result:
    """What is to be written.

    Attributes:
        nodes: int64, the nodes in order; an integer n: the nodes 0 … n − 1.
        columns: First the nodes' ids, then what is said of each, `values` by nodes (int64 `[n]`).
            An npy file holds the second one.
        notes: Small arrays that an npz file holds as well.
        spreadsheet_safe: Whether texts of a CSV file that begin as a formula get an apostrophe.
    """

    nodes: Int64Array | int
    columns: Sequence[Column]
    notes: Mapping[str, AnyArray] = dataclasses.field(default_factory=dict)
    spreadsheet_safe: bool = False

    @property
    def num_rows(self) -> int:
        return self.nodes if isinstance(self.nodes, int) else len(self.nodes)

    def chunks(self) -> Iterator[Tensor]:
        """The nodes in order, so many at a time that their rows take a few MiB."""
        step = max(1, _CHUNK_NUMBERS // sum(max(1, len(c.titles)) for c in self.columns))
        for start in range(0, self.num_rows, step):
            places = np.arange(start, min(start + step, self.num_rows))
            yield as_tensor(places if isinstance(self.nodes, int) else self.nodes[places])


def check_target(path: Path) -> None:
    """Whether a result can go to `path`, before it is computed.

    Raises:
        UserError: The ending says no format, there is something already, or no folder.
    """
    if path.suffix.lower() not in _WRITERS:
        raise UserError(
            f"{path}: the ending {path.suffix!r} does not say what file it is to be.",
            f"End it with one of {', '.join(_WRITERS)}.",
        )
    if path.exists():
        raise UserError(
            f"{path} is there already; nothing was overwritten.",
            "Give another name, or remove it first.",
        )
    if not path.parent.is_dir():
        raise UserError(f"There is no folder {path.parent}.", "Make it, or give another one.")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{path.parent} cannot be written to.", "Give another folder.")


def write_result(path: Path, result: Result) -> None:
    """Write the file, in the format that its ending says, see `check_target`.

    Memory stays at a chunk. A reader sees the whole file or none.

    Raises:
        RunError: It cannot be written.
    """
    try:
        with atomic_write(path) as file:
            _WRITERS[path.suffix.lower()](file, result)
    except OSError as error:
        raise RunError(
            f"{path} could not be written: {error.strerror or error}.",
            "Give another place, or free some space there.",
        ) from error


def _write_array(file: IO[bytes], result: Result, number: int = 1) -> None:
    """A column as npy."""
    column = result.columns[number]
    header = {
        "descr": np.lib.format.dtype_to_descr(column.dtype),
        "fortran_order": False,
        "shape": (result.num_rows, *([len(column.titles)] if column.titles else [])),
    }
    np.lib.format.write_array_header_1_0(file, header)
    for nodes in result.chunks():
        rows = np.ascontiguousarray(column.values(nodes), column.dtype)
        file.write(rows.tobytes())


def _write_npz(file: IO[bytes], result: Result) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for number, column in enumerate(result.columns):
            with archive.open(f"{column.name}.npy", "w", force_zip64=True) as member:
                _write_array(member, result, number)
        for name, array in result.notes.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _write_parquet(file: IO[bytes], result: Result) -> None:
    from pyarrow import parquet

    with parquet.ParquetWriter(file, _batch(result, torch.arange(0)).schema) as writer:
        for nodes in result.chunks():
            writer.write_batch(_batch(result, nodes))


def _write_csv(file: IO[bytes], result: Result) -> None:
    import pyarrow as pa
    from pyarrow import compute
    from pyarrow import csv as arrow_csv

    has_formulas = False

    def checked(column: Any) -> Any:
        """Texts, where asked with an apostrophe before each that begins as a formula."""
        nonlocal has_formulas
        if not pa.types.is_string(column.type):
            return column
        safe = compute.replace_substring_regex(column, _FORMULA, r"'\1")
        has_formulas = has_formulas or not safe.equals(column)
        return safe if result.spreadsheet_safe else column

    header, names = io.StringIO(newline=""), _batch(result, torch.arange(0)).schema.names
    csv.writer(header, lineterminator="\n").writerow(checked(pa.array(names)).to_pylist())
    file.write(header.getvalue().encode())
    for nodes in result.chunks():
        columns = [checked(column) for column in _batch(result, nodes).columns]
        batch = pa.RecordBatch.from_arrays(columns, names=names)
        for style in ("none", "needed"):  # Arrow quotes all texts or none: none where none needs it
            buffer = io.BytesIO()
            options = arrow_csv.WriteOptions(include_header=False, quoting_style=style)
            with suppress(pa.ArrowInvalid):
                arrow_csv.write_csv(batch, buffer, options)
                break
        file.write(buffer.getvalue())
    if has_formulas and not result.spreadsheet_safe:
        _log.warning(
            "Ids or names begin with =, +, - or @, which a spreadsheet takes for formulas: "
            "--spreadsheet-safe puts an apostrophe before them."
        )


def _batch(result: Result, nodes: Tensor) -> Any:
    """The rows of some nodes as an Arrow table."""
    import pyarrow as pa

    arrays = {}
    for column in result.columns:
        rows = column.values(nodes).astype(column.dtype, copy=False)
        is_text = column.dtype.kind == "U"
        kind = pa.string() if is_text else pa.from_numpy_dtype(column.dtype)
        parts = zip(column.titles, rows.T, strict=True) if column.titles else [(column.name, rows)]
        for name, part in parts:
            arrays[name] = pa.array(np.ascontiguousarray(part), kind)
    return pa.RecordBatch.from_pydict(arrays)


_WRITERS: Mapping[str, Callable[[IO[bytes], Result], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".pq": _write_parquet,
    ".npz": _write_npz,
    ".npy": _write_array,
}
