"""Files of a whole graph that are refused: a sentence, and none of their code runs."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import ClusterData

from gnntrain.config import FilesConfig
from gnntrain.data.read.objects import load_saved
from gnntrain.errors import UserError
from gnntrain.run_store import prepare_store

BOMB = """<?xml version="1.0"?>
<!DOCTYPE graphml [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed">
<node id="&b;"/></graph></graphml>"""


def small(**changes: Any) -> Data:
    given = {"x": torch.ones(4, 2), "y": torch.tensor([0, 1, 0, 1])}
    return Data(**{**given, "edge_index": torch.tensor([[0, 1], [1, 2]]), **changes})


class Evil:
    """Unpickled, it would leave a folder behind."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


class Clustered:
    """A class that PyG lets torch unpickle; made, it would write files."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ClusterData, (small(), 2, False, "ran")


def _cut(path: Path) -> None:
    torch.save(small(), path)
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
    "evil_data.pt": lambda path: torch.save(small(name=Evil()), path),
    "allowed_by_pyg.pt": lambda path: torch.save({"x": Clustered()}, path),
    "plain_pickle.pt": lambda path: path.write_bytes(pickle.dumps(Evil())),
    "object_array.npz": lambda path: np.savez(path, x=np.array([Evil()], object)),
    "evil_hetero.pt": _evil_hetero,
    "none.pt": lambda path: torch.save([], path),
    "a_tensor.pt": lambda path: torch.save(torch.ones(3, 2), path),
    "a_number.pt": lambda path: torch.save(7, path),
    "broken_sparse.pt": lambda path: torch.save({"x": _broken_sparse()}, path),
    "expanded.pt": lambda path: torch.save(small(x=torch.ones(1).expand(4, 2**40)), path),
    "cut.pt": _cut,
    "empty.pt": lambda path: path.write_bytes(b""),
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


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


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


def test_a_class_that_pyg_allows_would_run_without_the_shorter_list(tmp_path: Path) -> None:
    """The test above is one: PyG's import lets `ClusterData` be made from a file."""
    torch.save({"x": Clustered()}, tmp_path / "saved.pt")
    before = torch.serialization.get_safe_globals()
    assert ClusterData in before
    with pytest.raises(UserError):
        load_saved(tmp_path / "saved.pt")
    assert set(torch.serialization.get_safe_globals()) == set(before)


@pytest.mark.parametrize("key", ["edges", "features", "labels", "split"])
def test_another_file_beside_a_whole_graph_is_refused(key: str) -> None:
    torch.save(small(), "graph.pt")
    Path("more.csv").write_text("0,1\n")
    assert f"dataset.{key}" in refused(data="graph.pt", **{key: "more.csv"})
