"""A small graph in files, as a user writes them, and what is read of it, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from pyarrow import parquet
from scipy import sparse

from gnntrain.config import FilesConfig
from gnntrain.data.datasets import builder_for
from gnntrain.data.graph import NODE, SPLITS, GraphData, NodeData
from gnntrain.errors import UserError

FEATURES = "id,f0,f1\n10,0.5,1\n20,1.5,2\n30,2.5,3\n40,3.5,4\n"
LABELS = "id,label\n10,a\n20,b\n30,a\n40,b\n"
EDGES = "source,target\n10,20\n20,30\n40,10\n"
SPLIT = "id,split\n10,train\n20,valid\n30,test\n40,train\n"
USUAL: Mapping[str, str] = {"features": FEATURES, "labels": LABELS, "edges": EDGES, "split": SPLIT}
Files = Mapping[str, Any]
"""Contents by role and, if it is not csv, suffix: `edges`, `labels.npz`; None: no such file."""
Keys = dict[str, Any]


def save(path: Path, content: Any) -> str:
    """Write text, bytes, a table, an array, arrays by name or a sparse matrix, by the suffix."""
    suffix = path.suffix
    if isinstance(content, str | bytes):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    elif isinstance(content, pd.DataFrame):
        if suffix == ".parquet":
            content.to_parquet(path)
        elif suffix == ".feather":
            content.to_feather(path)
        elif suffix == ".jsonl":
            content.to_json(path, orient="records", lines=True)
        else:
            content.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    elif isinstance(content, pa.Table):
        parquet.write_table(content, path)
    elif sparse.issparse(content):
        sparse.save_npz(path, content)
    elif suffix == ".pt":
        arrays = content if isinstance(content, dict) else {"x": content}
        torch.save({name: torch.as_tensor(array) for name, array in arrays.items()}, path)
    elif isinstance(content, dict):
        np.savez(path, allow_pickle=False, **content)
    else:
        np.save(path, content)
    return str(path)


def write(folder: Path, files: Files = {}) -> Keys:  # noqa: B006
    """Write the usual small graph, with other contents where some are given; the paths by role."""
    contents = {role: (f"{role}.csv", text) for role, text in USUAL.items()}
    for name, content in files.items():
        role, _, suffix = name.partition(".")
        contents[role] = (f"{role}.{suffix or 'csv'}", content)
    return {
        role: save(folder / name, content)
        for role, (name, content) in contents.items()
        if content is not None
    }


def build(
    keys: Keys, target: str | None = None, *, labelled: bool = True, preprocessing: Any = None
) -> GraphData:
    """The graph that `dataset=files` reads by these keys."""
    config = FilesConfig.model_validate(keys).for_target(target)
    return builder_for(config, labelled=labelled, preprocessing=preprocessing).build()


def refusal(keys: Keys, **more: Any) -> str:
    """The sentence and the hint by which files are refused."""
    with pytest.raises(UserError) as caught:
        build(keys, **more)
    return f"{caught.value.message}\n{caught.value.hint}"


def ids_of(nodes: NodeData) -> list[Any]:
    if nodes.ids is None:
        return list(range(nodes.num_nodes))
    return [one.decode() if isinstance(one, bytes) else one for one in nodes.ids.tolist()]


def features_of(nodes: NodeData) -> Any:
    """Features as an array `[num_nodes, num_features]`, streamed or not."""
    if nodes.features is None:
        return np.empty((nodes.num_nodes, 0))
    if isinstance(nodes.features, np.ndarray):
        return nodes.features
    return nodes.features.rows(0, nodes.num_nodes)


def told(data: GraphData) -> dict[str, Any]:
    """What was read, by type: ids, names, features, edges by the ids of their ends; of a graph of
    one type without types, edges by the numbers of their ends, and weights."""
    assert data.summary is not None
    classes = None if data.class_names is None else data.class_names.tolist()
    found: dict[str, Any] = {
        "ids": {name: ids_of(nodes) for name, nodes in data.nodes.items()},
        "names": {name: list(nodes.feature_names or ()) for name, nodes in data.nodes.items()},
        "features": {name: features_of(nodes).tolist() for name, nodes in data.nodes.items()},
        "edges": typed_edges(data),
        "labels": data.labels.tolist(),
        "classes": classes and [one.decode() if isinstance(one, bytes) else one for one in classes],
        "splits": [data.splits[name].tolist() for name in SPLITS],
        "task": (data.task, data.metric, data.num_classes),
        "target": data.target,
        "left_out": list(data.summary.left_out),
        "summary": "; ".join(text for _, text in data.summary.lines()),
    }
    if data.is_homogeneous:
        (edges,) = data.edges.values()
        found |= {name: found[name][NODE] for name in ("ids", "names", "features")}
        found["edges"] = list(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))
        found["weights"] = None if edges.weight is None else edges.weight.tolist()
        found["left_out"] = [name.partition(" of ")[0] for name in found["left_out"]]
    return found


def check(data: GraphData, expected: Mapping[str, Any]) -> None:
    """Compare what was read with what is expected of it: of types those that are given, of the
    summary some words."""
    found = told(data)
    for name, value in expected.items():
        if name == "summary":
            assert value in found[name]
            continue
        of_types = {key: found[name][key] for key in value} if isinstance(value, dict) else None
        np.testing.assert_equal(of_types or found[name], value, err_msg=name)


def typed_edges(data: GraphData) -> dict[str, list[tuple[Any, Any]]]:
    """The edges of each type by the ids of their ends, in their order."""
    ids = {name: ids_of(nodes) for name, nodes in data.nodes.items()}
    return {
        "/".join(name): [
            (ids[name[0]][u], ids[name[2]][v])
            for u, v in zip(edges.src.tolist(), edges.dst.tolist(), strict=True)
        ]
        for name, edges in data.edges.items()
    }


_KEYS_OF_NODES = {"id_column": "id", "feature_columns": "features"} | {
    key: key for key in ("ignore", "categorical", "missing", "standardize")
}


def as_schema(folder: Path, keys: Keys) -> dict[str, Any] | None:
    """Keys that read the same files by a schema of one type; None: a schema cannot say it."""
    left = dict(keys)
    node: dict[str, Any] = {"files": left.pop("features")}
    edges = {"files": left.pop("edges")}
    node |= {new: left.pop(key) for key, new in _KEYS_OF_NODES.items() if key in left}
    for role in ("label", "split"):
        column, file = left.pop(f"{role}_column", None), left.get(role + "s" * (role == "label"))
        if isinstance(file, str):
            del left[role + "s" * (role == "label")]
            node[role] = {"file": file} | ({"column": column} if column else {})
        elif column is not None:
            node[role] = column
    for end in ("source", "target"):
        if (column := left.pop(f"{end}_column", None)) is not None:
            edges[end] = column
    if left.keys() & {"weight_column", "header"} or "labels" in str(left.get("split_column")):
        return None
    schema = {"nodes": {"node": node}, "edges": {"node/to/node": edges}}
    return {**left, "schema": save(folder / "graph.yaml", yaml.safe_dump(schema))}


def check_both(folder: Path, keys: Keys, expected: Mapping[str, Any]) -> None:
    """Read by keys and, where a schema can say the same, by a schema: the same is expected."""
    check(build(keys), expected)
    if (by_schema := as_schema(folder, keys)) is not None:
        keys_alone = ("weights", "left_out", "summary")
        check(build(by_schema), {k: v for k, v in expected.items() if k not in keys_alone})


def small_blocks(patch: pytest.MonkeyPatch, num_bytes: int) -> None:
    """Have files read in blocks so small that a small file has several."""
    patch.setattr("gnntrain.data.table_files._BLOCK_BYTES", num_bytes)
    patch.setattr("gnntrain.data.table_files._BATCH_ROWS", 7)
    patch.setattr("gnntrain.data.array_files._BATCH_ROWS", 7)
