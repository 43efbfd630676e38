"""What a run's best model predicts, node by node, in a file: the command `predict`.

A file has a row a node. It is written a chunk at a time, and put in its place when whole.
"""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from gnntrain.atomic_io import atomic_write
from gnntrain.compute.features import LazyFeatures
from gnntrain.config import Config
from gnntrain.config.problems import did_you_mean
from gnntrain.data.graph import SPLITS, AnyArray, Int64Array
from gnntrain.data.read.nodes import listed_nodes
from gnntrain.devices import alone_in_process
from gnntrain.errors import RunError, UserError
from gnntrain.inference import load_best
from gnntrain.paths import expanded
from gnntrain.tasks.base import Column, Columns

EMBEDDINGS = "embeddings"
_CHUNK_NUMBERS = 1 << 20


@dataclass(frozen=True)
class Prediction:
    """What was written: the file, what it says of each node, of how many nodes; the run as a person
    would type it, its best epoch, and the name of the graph's data set."""

    path: Path
    what: str
    num_rows: int
    run: str
    epoch: int
    dataset: str


@alone_in_process()
def predict(
    run_dir: str | Path,
    out: str | Path,
    *,
    what: str | None = None,
    nodes: str | Path = "all",
    config: Config | None = None,
    data: object = None,
    reread: bool = False,
    strict: bool = False,
) -> Prediction:
    """Write what a run's best model predicts.

    Computed exactly, over all in-neighbours, and written a chunk at a time: neither a graph nor a
    result need fit in memory.

    Args:
        run_dir: The run: a directory, a name under `runs/`, or `latest`.
        out: The file: npz, npy, Parquet (`.parquet`, `.pq`) or CSV, by its ending. It must not be
            there yet.
        what: Of a classification "class" (the most probable one and its probability; where a node
            has several labels, 0 or 1 for each), "probabilities" or "logits"; of a regression
            "value", in the targets' units; of both "embeddings": the rows that enter the model's
            last layer. None: "class" or "value".
        nodes: "all", "train", "val", "test", or a file of ids, in whose order they are written.
        config: The run's configuration with other keys: another data set predicts for that graph,
            which may be without labels. None: as the run was.
        data: Another graph as an object, see `gnntrain.run.train`; it is prepared as the run's was.
        reread: Predict for the files of the data set as they are today, also where they are those
            of the run and have changed since.
        strict: Refuse another graph that is unlike the run's, which is else a warning.

    Raises:
        UserError: A word, a file or a graph that is not as it must be.
        RunError: The disk is full.
    """
    path = expanded(out)
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
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        hint = "Make it, or give another one."
        raise UserError(f"There is no folder {path.parent} that you may write to.", hint)
    best = load_best(
        run_dir, config=config, scratch_dir=path.parent, data=data, reread=reread, strict=strict
    )
    graph, words = best.graph, (*best.task.predictions(), EMBEDDINGS)
    what = words[0] if what is None else what
    if what not in words:
        kind = "regression" if best.signature.task == "continuous" else "classification"
        raise UserError(
            f"--what {what} is not known of a {kind}.",
            did_you_mean(what, words, f"It is one of {', '.join(words)}."),
        )

    chosen: Int64Array | int = len(graph.target_nodes)
    if nodes in SPLITS:
        chosen = graph.split(str(nodes))
        if not len(chosen):
            raise UserError(
                f"--nodes {nodes}: the graph {graph.dataset} has no {nodes} nodes.",
                "Leave it out, or give a file of node ids.",
            )
    elif nodes != "all":
        if not expanded(nodes).is_file():
            raise UserError(
                f"--nodes {nodes}: there is no such file.",
                "It is all, train, val, test, or a file of node ids.",
            )
        chosen = listed_nodes(expanded(nodes), graph)

    # The ids as the user gave them: of bytes, a character takes one or more.
    dtype = np.dtype(np.int64) if graph.node_ids is None else graph.node_ids.dtype
    dtype = np.dtype(f"U{dtype.itemsize}") if dtype.kind == "S" else dtype
    columns = [Column("node", dtype, lambda nodes: graph.ids_of(nodes.numpy()))]
    outputs = best.infer(embed=what == EMBEDDINGS)
    if what == EMBEDDINGS:
        rows = outputs.embeddings
        assert rows is not None  # they were asked for
        width = rows.num_features if isinstance(rows, LazyFeatures) else rows.shape[1]
        names = [f"embedding_{i}" for i in range(width)]
        made = Columns([Column(EMBEDDINGS, np.dtype(np.float32), Tensor.numpy, names)])
    else:
        rows, made = outputs.outputs, outputs.columns(what)
    for column in made.columns:
        columns.append(replace(column, values=partial(_values, column, rows)))
    result = Result(chosen, columns, made.notes)
    try:
        with atomic_write(path) as file:
            _WRITERS[path.suffix.lower()](file, result)
    except OSError as error:
        raise RunError(
            f"{path} could not be written: {error.strerror or error}.",
            "Give another place, or free some space there.",
        ) from error
    return Prediction(path, what, result.num_rows, best.run.shown, best.epoch, graph.dataset)


def _values(column: Column, rows: Tensor | LazyFeatures, nodes: Tensor) -> AnyArray:
    taken = rows.select(nodes).whole() if isinstance(rows, LazyFeatures) else rows[nodes]
    return column.values(taken)


@dataclass(frozen=True)
class Result:
    """What is to be written.

    Attributes:
        nodes: int64, the nodes in order; an integer n: the nodes 0 … n − 1.
        columns: First the nodes' ids, then what is said of each, `values` by nodes (int64 `[n]`).
            An npy file holds the second one.
        notes: Small arrays that an npz file holds as well.
    """

    nodes: Int64Array | int
    columns: Sequence[Column]
    notes: Mapping[str, AnyArray]

    @property
    def num_rows(self) -> int:
        return self.nodes if isinstance(self.nodes, int) else len(self.nodes)

    def chunks(self) -> Iterator[Tensor]:
        """The nodes in order, so many at a time that their rows take a few MiB."""
        step = max(1, _CHUNK_NUMBERS // sum(max(1, len(c.titles)) for c in self.columns))
        for start in range(0, self.num_rows, step):
            places = np.arange(start, min(start + step, self.num_rows))
            yield torch.from_numpy(places if isinstance(self.nodes, int) else self.nodes[places])


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
    from pyarrow import csv as arrow_csv

    header, names = io.StringIO(newline=""), _batch(result, torch.arange(0)).schema.names
    csv.writer(header, lineterminator="\n").writerow(names)
    file.write(header.getvalue().encode())
    for nodes in result.chunks():
        batch = _batch(result, nodes)
        for style in ("none", "needed"):  # Arrow quotes all texts or none: none where none needs it
            buffer = io.BytesIO()
            options = arrow_csv.WriteOptions(include_header=False, quoting_style=style)
            with suppress(pa.ArrowInvalid):
                arrow_csv.write_csv(batch, buffer, options)
                break
        file.write(buffer.getvalue())


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
