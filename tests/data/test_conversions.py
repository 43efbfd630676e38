"""The lines that messages give to convert other tools' graphs are run as they stand."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import networkx as nx  # type: ignore[import-untyped]  # its stubs are a package of their own
import pytest
import torch

from gnntrain.config import FilesConfig
from gnntrain.data.conversions import conversion_hint, dgl_hint, networkx_hint
from gnntrain.data.store import StoredGraph
from gnntrain.run_store import prepare_store


def run(hint: str | None, **given: Any) -> None:
    """Runs the indented lines of a hint."""
    assert hint is not None
    lines = [line.strip() for line in hint.splitlines() if line.startswith("  ")]
    exec("\n".join(lines), given)


def stored(tmp_path: Path, name: str) -> StoredGraph:
    config = FilesConfig(data=str(tmp_path / name), store_dir=str(tmp_path / "stores"))
    return prepare_store(config).store


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def triangle() -> Any:
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a")])
    for node in graph:
        graph.nodes[node].update(size=ord(node) / 4, label=int(node == "a"), split="train")
    return graph


def check_triangle(store: StoredGraph) -> None:
    assert (store.num_nodes, store.num_features, store.num_classes) == (3, 1, 2)
    assert store.indices.tolist() == [2, 0, 1]
    assert store.features[:, 0].tolist() == [97 / 4, 98 / 4, 99 / 4]
    assert store.labels.tolist() == [1, 0, 0]


def test_a_networkx_graph(tmp_path: Path) -> None:
    run(networkx_hint(), graph=triangle())
    check_triangle(stored(tmp_path, "graph.graphml"))


@pytest.mark.parametrize("suffix", [".pkl", ".gpickle", ".gml", ".gexf"])
def test_a_file_of_networkx(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"graph{suffix}"
    if suffix in (".gml", ".gexf"):
        getattr(nx, f"write_{suffix[1:]}")(triangle(), path)
    else:
        path.write_bytes(pickle.dumps(triangle()))
    run(conversion_hint(path))
    assert (tmp_path / "graph.graphml").is_file()
    if suffix not in (".gml", ".gexf"):  # which have another meaning for `label`
        check_triangle(stored(tmp_path, "graph.graphml"))


class DGLGraph:
    """As much of DGL's class as the lines use; DGL itself is not installed with the tests."""

    def __init__(self) -> None:
        self.ndata = {
            "feat": torch.tensor([[97 / 4], [98 / 4], [99 / 4]]),
            "label": torch.tensor([1, 0, 0]),
            "train_mask": torch.tensor([True, True, False]),
        }

    def edges(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])


@pytest.mark.parametrize("suffix", [None, ".bin", ".dgl"])
def test_a_graph_of_dgl_and_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str | None
) -> None:
    if suffix is None:
        run(dgl_hint(), graph=DGLGraph())
    else:
        library = ModuleType("dgl")
        library.load_graphs = lambda _: ([DGLGraph()], {})  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "dgl", library)
        run(conversion_hint(tmp_path / f"graph{suffix}"))
    store = stored(tmp_path, "graph.npz")
    check_triangle(store)
    assert store.split("train").tolist() == [0, 1]
