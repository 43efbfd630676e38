"""A user's files: right ones damaged, and wrong ones made on purpose."""

from __future__ import annotations

import bz2
import gzip
import io
import struct
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gnntrain.config import FilesConfig
from gnntrain.data.build import prepared_features
from gnntrain.data.checks import check_graph
from gnntrain.data.graph import GraphData, NodeData
from gnntrain.data.read.files import FilesBuilder
from tests.data.files import save
from tests.fuzz.mutations import archive, damaged, repacked
from tests.fuzz.surface import Surface

Array = npt.NDArray[Any]
File = tuple[str, str, bytes]
"""Role, suffix, content."""

_ROLES = ("edges", "features", "labels", "split")
_TABLES: Mapping[str, Mapping[str, list[Any]]] = {
    "features": {"id": [7, 3, 10, 4, 5], "a": [0.5, -1, 2, 3e3, 0], "b": [1, 2, 3, 4, 5]},
    "labels": {"id": [7, 3, 10, 4, 5], "label": ["x", "y", "x", "y", "x"]},
    "edges": {"source": [7, 3, 3, 5], "target": [3, 7, 10, 5], "w": [1, 0.5, 2, 1]},
    "split": {"id": [7, 3, 10, 4, 5], "split": ["train", "train", "val", "test", "train"]},
}
_ARRAYS: Mapping[str, Mapping[str, Array]] = {
    "features": {"x": np.arange(10, dtype=np.float32).reshape(5, 2)},
    "labels": {"y": np.array([0, 1, 2, 0, -1])},
    "edges": {"edge_index": np.array([[0, 1, 1, 4], [1, 0, 2, 4]])},
    "split": {"train": np.array([0, 1]), "val": np.array([2]), "test": np.array([3])},
}
_OPTIONS: tuple[Mapping[str, Any], ...] = (
    {},
    {"bad_rows": "skip"},
    {"header": True},
    {"header": False, "bad_rows": "skip"},
    {"id_column": "none"},
    {"id_column": "0", "label_column": "1", "split_column": "1", "weight_column": "2"},
    {"source_column": "target", "target_column": "source", "weight_column": "w"},
    {"task": "multilabel"},
    {"task": "binary", "metric": "average_precision"},
    {"task": "multiclass", "metric": "f1_macro", "bad_rows": "skip"},
)


@cache
def _right(role: str) -> tuple[File, ...]:
    """One role's right content in every format."""
    table, arrays = pd.DataFrame(_TABLES[role]), dict(_ARRAYS[role])
    contents: dict[str, Any] = {".csv": table, ".parquet": table, ".npz": arrays, ".pt": arrays}
    if len(arrays) == 1:
        contents[".npy"] = next(iter(arrays.values()))
    with tempfile.TemporaryDirectory() as folder:
        files = {
            suffix: Path(save(Path(folder, f"right{suffix}"), content)).read_bytes()
            for suffix, content in contents.items()
        }
    bare = table.to_csv(index=False, header=False, sep="\t").encode()
    packed, text = io.BytesIO(), files[".csv"]
    np.savez_compressed(packed, allow_pickle=False, **arrays)
    more = [
        (".csv", text),
        (".csv", text.replace(b"\n", b"\r\n")),
        (".tsv", bare),
        (".csv.gz", gzip.compress(text, mtime=0)),
        (".csv.bz2", bz2.compress(text)),
        (".npz", packed.getvalue()),
    ]
    return tuple((role, suffix, content) for suffix, content in [*files.items(), *more])


# Wrong on purpose

_FIELDS = (
    *("7", "3", "007", "-1", "1.5", "x", "train", "val", "", " ", '"', '"a"', "nan", "inf"),
    *("1e400", "9" * 25, "---", "true", "2020-01-01", "é", "\x00", "id", "label", "\ufeff"),
)
_fields = st.sampled_from(_FIELDS) | st.text(max_size=4)
_lines = st.lists(st.lists(_fields, max_size=5), max_size=8)
_tables = st.tuples(_lines, st.sampled_from((",", "\t", ";", " "))).map(
    lambda drawn: "\n".join(drawn[1].join(line) for line in drawn[0]).encode("utf-8", "replace")
)

_DTYPES = ("<f4", "<f8", "<f2", ">i4", "<i8", "<u8", "|u1", "|b1", "<c8", "|S3", "<U2", "|O")
_ODD_DTYPES = ("<M8[s]", "<m8[D]", "|V4", "<f16", "x", "", "<f-1", "<i99999999999")
_sizes = st.integers(0, 6) | st.sampled_from((5, -1, 2**31, 2**40, 2**62, 2**63, 2**64, 10**400))
_shapes = st.lists(_sizes, max_size=3).map(tuple)


def _npy(drawn: tuple[str, tuple[int, ...], bool, bytes, int]) -> bytes:
    """An npy file whose header says what was drawn, whatever follows."""
    dtype, shape, fortran, data, version = drawn
    header = f"{{'descr': {dtype!r}, 'fortran_order': {fortran}, 'shape': {shape!r}, }}".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(header) + 1)
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + b"\n" + data


_npys = st.tuples(
    st.sampled_from((*_DTYPES, *_DTYPES, *_ODD_DTYPES)),
    _shapes,
    st.booleans(),
    st.binary(max_size=64) | st.integers(0, 12).map(lambda count: bytes(8 * count)),
    st.sampled_from((1, 1, 1, 2, 3, 9)),
).map(_npy)


_MEMBERS = ("x.npy", "y.npy", "edge_index.npy", "ids.npy", "train.npy", "val.npy", "x", "../x.npy")
_npzs = st.tuples(st.dictionaries(st.sampled_from(_MEMBERS), _npys, max_size=3), st.booleans()).map(
    lambda drawn: archive(drawn[0], packed=drawn[1])
)


_odd_arrays = st.tuples(
    st.sampled_from(("float32", "float64", "float16", "int8", "int64", "uint64", "bool", "S2")),
    st.lists(st.integers(0, 6), min_size=1, max_size=3),
    st.sampled_from((0, 1, -1, 4, 2.5, float("nan"), 2**63, "x")),
).map(lambda drawn: _filled(*drawn))


def _filled(dtype: str, shape: list[int], value: Any) -> bytes:
    file = io.BytesIO()
    with np.errstate(all="ignore"):
        try:
            np.save(file, np.full(shape, value).astype(dtype))
        except (ValueError, OverflowError):
            np.save(file, np.zeros(shape, dtype))
    return file.getvalue()


def _one(role: str) -> SearchStrategy[File]:
    """A file of a role, most often a wrong one."""

    def named(suffix: str, contents: SearchStrategy[bytes]) -> SearchStrategy[File]:
        return contents.map(lambda content: (role, suffix, content))

    right = _right(role)
    archives = [file for file in right if file[2][:2] == b"PK"]
    return st.one_of(
        st.sampled_from(right).flatmap(lambda file: named(file[1], damaged(file[2]))),
        st.sampled_from(archives).flatmap(lambda file: named(file[1], repacked(file[2]))),
        named(".csv", _tables),
        named(".npy", _npys | _odd_arrays),
        named(".npz", _npzs),
        st.sampled_from(right),
    )


_changes = st.sampled_from(_ROLES).flatmap(_one) | st.tuples(*(_one(r) for r in _ROLES[1:3]))
_inputs = st.tuples(
    st.sampled_from(("csv", "npz")),
    st.lists(_changes, min_size=1, max_size=2),
    st.sampled_from(_OPTIONS),
    st.sampled_from(("float32", "float16", "bfloat16")),
)


def reader(folder: Path) -> Callable[[Any], object]:
    """Builds graphs of files that it writes into `folder`."""

    def read(drawn: tuple[str, list[Any], Mapping[str, Any], Any]) -> object:
        kind, changes, options, feature_dtype = drawn
        files = {role: next(f for f in _right(role) if f[1] == f".{kind}") for role in _ROLES}
        for change in changes:
            for file in change if isinstance(change[0], tuple) else [change]:
                files[file[0]] = file
        paths = {}
        for role, suffix, content in files.values():
            path = folder / f"{role}{suffix}"
            path.write_bytes(content)
            paths[role] = str(path)
        data = FilesBuilder(FilesConfig.model_validate({**paths, **options})).build()
        assert isinstance(data, GraphData)
        check_graph(data)
        nodes = NodeData(data.target_nodes.num_nodes, data.target_nodes.features)
        return [len(rows) for rows in prepared_features(nodes, feature_dtype, 0.0, data.dataset)]

    return read


def surfaces() -> list[Surface]:
    """The reader of `dataset=files`."""
    folder = Path(tempfile.mkdtemp(prefix="gnntrain-fuzz-"))
    return [Surface("files", _inputs, reader(folder), 22)]
