"""One graph in every container that is read: the stores' content is the same, byte for byte.

The lines that messages give to convert other tools' graphs are run as they stand.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import networkx as nx  # type: ignore[import-untyped]  # its stubs are a package of their own
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
import torch
from pyarrow import ipc
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.loader import ClusterData

from gnntrain.config import FilesConfig
from gnntrain.data.graph import SPLITS
from gnntrain.data.read.objects import load_saved
from gnntrain.data.table_files import conversion_hint
from gnntrain.errors import UserError
from gnntrain.run_store import prepare_store, record_of
from tests.graphs import random_graph, stored

pytestmark = pytest.mark.usefixtures("here")
NUM_NODES, NUM_EDGES = 30, 80


class Graph:
    """A small directed graph without duplicate edges: all containers can hold it."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        places = rng.choice(NUM_NODES**2, NUM_EDGES, replace=False)
        self.x = rng.integers(-8, 8, (NUM_NODES, 3)).astype(np.float32) / 4
        self.y = np.arange(NUM_NODES) % 3
        self.splits = np.array(SPLITS)[rng.permutation(NUM_NODES) % 3]
        self.edge_index = np.stack([places // NUM_NODES, places % NUM_NODES])
        masks = {f"{name}_mask": self.splits == name for name in SPLITS}
        self.of_nodes: dict[str, Any] = {"x": self.x, "y": self.y, **masks}
        self.arrays = {**self.of_nodes, "edge_index": self.edge_index}
        self.data = Data(**{name: torch.from_numpy(array) for name, array in self.arrays.items()})
        features = {f"x{i}": column for i, column in enumerate(self.x.T)}
        ids = {"id": np.arange(NUM_NODES)}
        self.nodes = pd.DataFrame({**ids, **features, "label": self.y, "split": self.splits})
        self.edges = pd.DataFrame({"source": self.edge_index[0], "target": self.edge_index[1]})
        ones = np.ones(NUM_EDGES, np.float32)
        self.adjacency = sp.coo_array((ones, tuple(self.edge_index)), shape=(NUM_NODES, NUM_NODES))
        self.networkx = nx.DiGraph()
        for record in self.nodes.to_dict("records"):
            self.networkx.add_node(record.pop("id"), **record)
        self.networkx.add_edges_from(self.edge_index.T.tolist())


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the graph as a builder gives it."""
    made = Graph()
    data = random_graph(
        NUM_NODES,
        src=made.edge_index[0],
        dst=made.edge_index[1],
        labels=made.y,
        splits={name: np.flatnonzero(made.splits == name) for name in SPLITS},
        features=made.x,
    )
    return record_of(stored(tmp_path_factory.mktemp("expected") / "store", data)).digest


class DGLGraph:
    """As much of DGL's class as the lines use; DGL itself is not installed with the tests."""

    def __init__(self, made: Graph) -> None:
        names = {"x": "feat", "y": "label"}
        self.ndata = {
            names.get(name, name): torch.from_numpy(array) for name, array in made.of_nodes.items()
        }
        self._edge_index = torch.from_numpy(made.edge_index)

    def edges(self) -> tuple[torch.Tensor, ...]:
        return tuple(self._edge_index)


def run(hint: str | None, **given: Any) -> None:
    """Runs the indented lines of a hint."""
    assert hint is not None
    lines = [line.strip() for line in hint.splitlines() if line.startswith("  ")]
    exec("\n".join(lines), given)


def save_named_matrices(made: Graph) -> None:
    parts: dict[str, Any] = {"labels": made.y, **made.of_nodes}
    del parts["x"], parts["y"]
    for name, matrix in (("adj", made.adjacency.tocsr()), ("attr", sp.csr_array(made.x))):
        parts |= {f"{name}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr")}
        parts[f"{name}_shape"] = matrix.shape
    np.savez("graph.npz", **parts)


def save_matrices(made: Graph, kind: str) -> None:
    sp.save_npz("edges.npz", made.adjacency.asformat(kind))
    sp.save_npz("x.npz", sp.coo_array(made.x).asformat(kind))
    made.nodes[["id", "label", "split"]].to_csv("labels.csv", index=False)


def convert_pickle(made: Graph) -> None:
    Path("graph.gpickle").write_bytes(pickle.dumps(made.networkx))
    run(conversion_hint(Path("graph.gpickle")))


def convert_dgl(made: Graph) -> None:
    library = ModuleType("dgl")
    library.load_graphs = lambda _: ([DGLGraph(made)], {})  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "dgl", library)
        run(conversion_hint(Path("graph.dgl")))


def save_streams(made: Graph) -> None:
    for name, frame in (("nodes.arrow", made.nodes), ("edges.arrow", made.edges)):
        table = pa.Table.from_pandas(frame)
        with ipc.new_stream(name, table.schema) as writer:
            writer.write_table(table)


def of_sparse_features(made: Graph) -> Data:
    data = made.data
    data.x, data.y = data.x.to_sparse(), data.y.unsqueeze(1)
    return data


def write_graphml(made: Graph) -> None:
    nx.write_graphml(made.networkx, "graph.graphml")


# Each: how the graph is saved, and the keys that read it; without keys it is given as an object.
CONTAINERS: dict[str, tuple[Callable[[Graph], object], dict[str, Any]]] = {
    "Data": (lambda made: torch.save(made.data, "data.pt"), {"data": "data.pt"}),
    "dict": (lambda made: torch.save(made.data.to_dict(), "data.pt"), {"data": "data.pt"}),
    "list": (lambda made: torch.save([made.data], "data.pt"), {"data": "data.pt"}),
    "PyG's data set": (
        lambda made: InMemoryDataset.save([made.data], "data.pt"), {"data": "data.pt"},
    ),
    "npz": (lambda made: np.savez_compressed("a.npz", **made.arrays), {"data": "a.npz"}),
    "npz of sparse matrices": (save_named_matrices, {"data": "graph.npz"}),
    "GraphML's tables apart": (
        write_graphml, {"features": "graph.graphml", "edges": "graph.graphml"},
    ),
    ".gpickle": (convert_pickle, {"data": "graph.graphml"}),
    ".dgl": (convert_dgl, {"data": "graph.npz"}),
    "Arrow's stream": (save_streams, {"features": "nodes.arrow", "edges": "edges.arrow"}),
    **{
        f"scipy's {kind}": (
            partial(save_matrices, kind=kind),
            {"features": "x.npz", "edges": "edges.npz", "labels": "labels.csv"},
        )
        for kind in ("csc", "coo")
    },
    "an object with sparse x, y of one column": (of_sparse_features, {}),
    "an object of scipy": (
        lambda made: {**made.of_nodes, "adj": made.adjacency, "x": sp.csr_array(made.x)}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTAINERS)
def test_every_container_gives_the_same_graph(expected: str, name: str) -> None:
    save, keys = CONTAINERS[name]
    saved = save(Graph())
    config = FilesConfig(**keys, store_dir="stores")
    assert record_of(prepare_store(config, data=None if keys else saved).store).digest == expected


@pytest.mark.parametrize("suffix", ["gml", "gexf"])
def test_networkx_files_in_which_label_has_another_meaning_are_converted(suffix: str) -> None:
    getattr(nx, f"write_{suffix}")(Graph().networkx, f"graph.{suffix}")
    run(conversion_hint(Path(f"graph.{suffix}")))
    assert Path("graph.graphml").is_file()


def test_edges_without_direction_are_in_graphml_in_both() -> None:
    found = nx.Graph()
    for node, label in enumerate("abab"):
        found.add_node(f"n{node}", size=node / 4, label=label, split="train")
    found.add_edges_from([("n0", "n1"), ("n2", "n2"), ("n3", "n1")], length=2.5)
    nx.write_graphml(found, "graph.graphml")
    config = FilesConfig(data="graph.graphml", weight_column="length", store_dir="stores")
    store = prepare_store(config).store
    assert store.only_edges.indptr.tolist() == [0, 1, 3, 4, 5]
    assert store.only_edges.indices.tolist() == [1, 0, 3, 2, 1]
    assert store.only_edges.weight is not None
    assert set(store.only_edges.weight.tolist()) == {2.5}
    assert store.node_ids is not None
    assert store.node_ids.tolist() == [b"n0", b"n1", b"n2", b"n3"]
    assert store.class_names == ["a", "b"]


# Files that are refused: a sentence, and none of their code runs

BOMB = """<?xml version="1.0"?>
<!DOCTYPE graphml [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed">
<node id="&b;"/></graph></graphml>"""


def data_with(**changes: Any) -> Data:
    data = Graph().data
    for name, value in changes.items():
        data[name] = value
    return data


class Evil:
    """Unpickled, it would leave a folder behind."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


class Clustered:
    """A class that PyG lets torch unpickle; made, it would write files."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ClusterData, (data_with(), 2, False, "ran")


def _cut(path: Path) -> None:
    torch.save(data_with(), path)
    path.write_bytes(path.read_bytes()[:99])


def _evil_hetero(path: Path) -> None:
    data = HeteroData()
    data["paper"].x, data["paper"].name = torch.ones(2, 2), Evil()
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0], [1]])
    torch.save(data, path)


def _broken_sparse() -> Any:
    index = torch.tensor([[0, 10**9], [0, 10**9]])
    return torch.sparse_coo_tensor(index, torch.ones(2), (4, 4), check_invariants=False)


WRONG: dict[str, Callable[[Path], object]] = {
    "evil.pt": lambda path: torch.save({"x": torch.ones(2, 2), "y": Evil()}, path),
    "evil_data.pt": lambda path: torch.save(data_with(name=Evil()), path),
    "allowed_by_pyg.pt": lambda path: torch.save({"x": Clustered()}, path),
    "plain_pickle.pt": lambda path: path.write_bytes(pickle.dumps(Evil())),
    "object_array.npz": lambda path: np.savez(path, x=np.array([Evil()], object)),
    "evil_hetero.pt": _evil_hetero,
    "none.pt": lambda path: torch.save([], path),
    "a_number.pt": lambda path: torch.save(7, path),
    "broken_sparse.pt": lambda path: torch.save({"x": _broken_sparse()}, path),
    "expanded.pt": lambda path: torch.save(data_with(x=torch.ones(1).expand(30, 2**40)), path),
    "cut.pt": _cut,
    "no_graph.npz": lambda path: np.savez(path, a=np.ones(3)),
    "cut.npz": lambda path: path.write_bytes(b"PK\x03\x04 and no more"),
    "one_matrix.npz": lambda path: sp.save_npz(path, sp.eye_array(3).tocsr()),
    "bomb.graphml": lambda path: path.write_text(BOMB),
    "no_xml.graphml": lambda path: path.write_text("no XML"),
    "no_graph.graphml": lambda path: path.write_text("<html/>"),
    "graph.gpickle": lambda path: path.write_bytes(pickle.dumps(Evil())),
    "graph.dgl": lambda path: path.write_bytes(b"dgl"),
    "graph.gml": lambda path: path.write_text("graph []"),
    "graph.tar": lambda path: path.write_bytes(b""),
    "folder.pt": lambda path: path.mkdir(),
}

WORDS = {
    "evil.pt": ["mkdir", "to_dict"],
    "graph.gpickle": ["pickle.load", "write_graphml"],
    "graph.dgl": ["dgl.load_graphs", "numpy.savez"],
    "graph.gml": ["networkx.read_gml", "write_graphml"],
}
"""The way out that is told."""


def refused(**keys: Any) -> str:
    """What is told of the files that these keys of `dataset=files` name."""
    with pytest.raises(UserError) as caught:
        prepare_store(FilesConfig(**keys))
    return f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused_in_a_sentence_and_nothing_runs(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRONG[name](path)
    said = refused(data=name)
    assert name in said
    for word in WORDS.get(name, []):
        assert word in said
    assert not Path("ran").exists()
    assert not list(tmp_path.glob("cache/gnntrain/stores/*/meta.json"))


def test_what_torch_may_unpickle_is_the_same_afterwards(tmp_path: Path) -> None:
    """PyG's import lets `ClusterData` be made from a file."""
    torch.save({"x": Clustered()}, tmp_path / "saved.pt")
    before = torch.serialization.get_safe_globals()
    assert ClusterData in before
    with pytest.raises(UserError):
        load_saved(tmp_path / "saved.pt")
    assert set(torch.serialization.get_safe_globals()) == set(before)
