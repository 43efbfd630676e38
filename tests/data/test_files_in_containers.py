"""One graph in every container that is read: the stores' content is the same, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx  # type: ignore[import-untyped]  # its stubs are a package of their own
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
import torch
from pyarrow import feather, ipc
from torch_geometric.data import Data, InMemoryDataset

from gnntrain.config import FilesConfig
from gnntrain.data.build import write_store
from gnntrain.data.graph import GraphData, PrepareOptions
from gnntrain.errors import UserError
from gnntrain.run_store import prepare_store, record_of

NUM_NODES, NUM_EDGES = 30, 80


@dataclass(frozen=True)
class Graph:
    """A small directed graph without duplicate edges: all containers can hold it."""

    x: Any
    y: Any
    edge_index: Any
    splits: Any

    @property
    def masks(self) -> dict[str, Any]:
        return {f"{name}_mask": self.splits == name for name in ("train", "val", "test")}

    @property
    def arrays(self) -> dict[str, Any]:
        return {"x": self.x, "y": self.y, "edge_index": self.edge_index, **self.masks}

    @property
    def data(self) -> Data:
        return Data(**{name: torch.from_numpy(array) for name, array in self.arrays.items()})

    @property
    def nodes(self) -> pd.DataFrame:
        features = {f"x{i}": column for i, column in enumerate(self.x.T)}
        ids = {"id": np.arange(NUM_NODES)}
        return pd.DataFrame({**ids, **features, "label": self.y, "split": self.splits})

    @property
    def edges(self) -> pd.DataFrame:
        return pd.DataFrame({"source": self.edge_index[0], "target": self.edge_index[1]})

    @property
    def adjacency(self) -> Any:
        ones = np.ones(NUM_EDGES, np.float32)
        return sp.coo_array((ones, tuple(self.edge_index)), shape=(NUM_NODES, NUM_NODES))


def graph() -> Graph:
    rng = np.random.default_rng(0)
    places = rng.choice(NUM_NODES**2, NUM_EDGES, replace=False)
    x = rng.integers(-8, 8, (NUM_NODES, 3)).astype(np.float32) / 4
    y = np.arange(NUM_NODES) % 3
    splits = np.array(["train", "val", "test"])[rng.permutation(NUM_NODES) % 3]
    return Graph(x, y, np.stack([places // NUM_NODES, places % NUM_NODES]), splits)


def digest(config: FilesConfig, data: object = None) -> str:
    return record_of(prepare_store(config, data=data).store).digest


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the graph as a builder gives it."""
    made = graph()
    data = GraphData.of_arrays(
        dataset="expected",
        num_nodes=NUM_NODES,
        src=made.edge_index[0],
        dst=made.edge_index[1],
        labels=made.y,
        num_classes=3,
        task="multiclass",
        splits={name: np.flatnonzero(made.splits == name) for name in ("train", "val", "test")},
        features=made.x,
    )
    path = tmp_path_factory.mktemp("expected") / "store"
    return record_of(write_store(path, data, PrepareOptions(), {})).digest


def write_graphml(made: Graph, path: Path) -> None:
    found = nx.DiGraph()
    for record in made.nodes.to_dict("records"):
        found.add_node(record.pop("id"), **record)
    found.add_edges_from(made.edge_index.T.tolist())
    nx.write_graphml(found, path)


class Kept(InMemoryDataset):  # type: ignore[misc]  # PyG is not typed
    """Any data set of one's own."""


WHOLE: dict[str, Callable[[Graph, Path], None]] = {
    "data.pt": lambda made, path: torch.save(made.data, path),
    "dict.pt": lambda made, path: torch.save(made.data.to_dict(), path),
    "list.pt": lambda made, path: torch.save([made.data], path),
    "processed.pt": lambda made, path: Kept.save([made.data], str(path)),
    "graph.npz": lambda made, path: np.savez_compressed(path, **made.arrays),
    "graph.graphml": write_graphml,
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_of_a_whole_graph_gives_the_same_graph(
    expected: str, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    WHOLE[name](graph(), path)
    config = FilesConfig(data=str(path), store_dir=str(tmp_path / "stores"))
    assert digest(config) == expected


def _sparse_tensor(made: Graph) -> Data:
    kept = {name: array for name, array in made.arrays.items() if name != "edge_index"}
    data = Data(**{name: torch.from_numpy(array) for name, array in kept.items()})
    values = torch.ones(NUM_EDGES)
    rows = torch.from_numpy(made.edge_index[[1, 0]])  # of adj_t, rows are targets
    coo = torch.sparse_coo_tensor(rows, values, (NUM_NODES, NUM_NODES))
    data.adj_t = coo.to_sparse_csr()
    return data


def _columns(data: Data) -> Data:
    data.y = data.y.unsqueeze(1)
    data.x = data.x.to_sparse()
    return data


OBJECTS: dict[str, Callable[[Graph], object]] = {
    "Data": lambda made: made.data,
    "list": lambda made: [made.data],
    "dict of arrays": lambda made: made.arrays,
    "dict of tensors": lambda made: made.data.to_dict(),
    "adj_t": _sparse_tensor,
    "sparse x, y of one column": lambda made: _columns(made.data),
    "scipy": lambda made: {
        **{name: array for name, array in made.arrays.items() if name != "edge_index"},
        "adj": made.adjacency,
        "x": sp.csr_array(made.x),
    },
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_gives_the_same_graph(expected: str, tmp_path: Path, kind: str) -> None:
    config = FilesConfig(store_dir=str(tmp_path))
    assert digest(config, OBJECTS[kind](graph())) == expected


def _write_stream(frame: pd.DataFrame, path: Path) -> None:
    table = pa.Table.from_pandas(frame)
    with ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


TABLES: dict[str, Callable[[pd.DataFrame, Path], None]] = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "parquet": lambda frame, path: frame.to_parquet(path),
    "feather": lambda frame, path: frame.to_feather(path),
    "arrow": _write_stream,
    "jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
}


@pytest.mark.parametrize("suffix", TABLES)
def test_tables_give_the_same_graph(expected: str, tmp_path: Path, suffix: str) -> None:
    made, paths = graph(), {name: tmp_path / f"{name}.{suffix}" for name in ("nodes", "edges")}
    TABLES[suffix](made.nodes, paths["nodes"])
    TABLES[suffix](made.edges, paths["edges"])
    config = FilesConfig(
        features=str(paths["nodes"]),
        edges=str(paths["edges"]),
        store_dir=str(tmp_path / "stores"),
    )
    assert digest(config) == expected


def test_a_categorical_column_of_feather_is_read_as_its_texts(
    expected: str, tmp_path: Path
) -> None:
    made = graph()
    nodes = made.nodes.astype({"split": "category"})
    feather.write_feather(nodes, tmp_path / "nodes.feather", compression="zstd")
    made.edges.to_csv(tmp_path / "edges.csv", index=False)
    config = FilesConfig(
        features=str(tmp_path / "nodes.feather"),
        edges=str(tmp_path / "edges.csv"),
        store_dir=str(tmp_path / "stores"),
    )
    assert digest(config) == expected


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_scipys_matrices_are_edges_and_features(expected: str, tmp_path: Path, kind: str) -> None:
    made = graph()
    sp.save_npz(tmp_path / "edges.npz", made.adjacency.asformat(kind))
    sp.save_npz(tmp_path / "features.npz", sp.coo_array(made.x).asformat(kind))
    made.nodes[["id", "label", "split"]].to_csv(tmp_path / "labels.csv", index=False)
    config = FilesConfig(
        features=str(tmp_path / "features.npz"),
        edges=str(tmp_path / "edges.npz"),
        labels=str(tmp_path / "labels.csv"),
        store_dir=str(tmp_path / "stores"),
    )
    assert digest(config) == expected


def test_an_npz_may_hold_sparse_matrices_by_their_names(expected: str, tmp_path: Path) -> None:
    made = graph()
    parts: dict[str, Any] = {"labels": made.y, **made.masks}
    for name, matrix in (("adj", made.adjacency.tocsr()), ("attr", sp.csr_array(made.x))):
        parts |= {f"{name}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr")}
        parts[f"{name}_shape"] = matrix.shape
    np.savez(tmp_path / "graph.npz", **parts)
    config = FilesConfig(data=str(tmp_path / "graph.npz"), store_dir=str(tmp_path / "stores"))
    assert digest(config) == expected


def test_the_tables_of_a_graphml_file_may_be_given_apart(expected: str, tmp_path: Path) -> None:
    path = tmp_path / "graph.graphml"
    write_graphml(graph(), path)
    config = FilesConfig(features=str(path), edges=str(path), store_dir=str(tmp_path / "stores"))
    assert digest(config) == expected


def test_edges_without_direction_are_in_graphml_in_both(tmp_path: Path) -> None:
    path = tmp_path / "graph.graphml"
    found = nx.Graph()
    for node, label in enumerate("abab"):
        found.add_node(f"n{node}", size=node / 4, label=label, split="train")
    found.add_edges_from([("n0", "n1"), ("n2", "n2"), ("n3", "n1")], length=2.5)
    nx.write_graphml(found, path)
    config = FilesConfig(data=str(path), weight_column="length", store_dir=str(tmp_path))
    store = prepare_store(config).store
    assert store.indptr.tolist() == [0, 1, 3, 4, 5]
    assert store.indices.tolist() == [1, 0, 3, 2, 1]
    assert store.only_edges.weight is not None
    assert set(store.only_edges.weight.tolist()) == {2.5}
    assert store.node_ids is not None
    assert store.node_ids.tolist() == [b"n0", b"n1", b"n2", b"n3"]
    assert store.class_names == ["a", "b"]


def test_json_lines_of_several_types_are_refused_in_a_sentence(tmp_path: Path) -> None:
    lines = [{"id": 0, "x": {"a": 1}, "label": 0}, {"id": 1, "x": {"a": 2}, "label": 1}]
    (tmp_path / "nodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n")
    config = FilesConfig(
        features=str(tmp_path / "nodes.jsonl"),
        edges=str(tmp_path / "edges.csv"),
        store_dir=str(tmp_path / "stores"),
    )
    with pytest.raises(UserError, match=r"nodes\.jsonl"):
        prepare_store(config)
