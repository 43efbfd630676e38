from __future__ import annotations

import builtins
import gzip
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnntrain.config import BuiltinConfig
from gnntrain.data import ogb
from gnntrain.data.build import write_store
from gnntrain.data.datasets import builder_for
from gnntrain.data.graph import EDGE, NODE, GraphData, PrepareOptions
from gnntrain.data.npz_members import StreamedRows, open_member
from gnntrain.errors import UserError
from tests.data import raw_layouts

OGB_SPLITS = {"train": "train", "val": "valid", "test": "test"}
WRITERS: dict[str, Callable[[Path], object]] = {
    "ogbn-arxiv": lambda folder: raw_layouts.write_ogb_tables(folder, "time"),
    "ogbn-products": lambda folder: raw_layouts.write_ogb_tables(folder, "sales_ranking"),
    "ogbn-proteins": raw_layouts.write_ogb_proteins,
    "ogbn-papers100M": lambda folder: raw_layouts.write_ogb_binary(folder, compressed=True),
    "ogbn-mag": raw_layouts.write_ogb_mag,
}
ONE_TYPE = [NODE]
MAG = ["author", "field_of_study", "institution", "paper"]


def build(name: str, root: Path) -> GraphData:
    return builder_for(BuiltinConfig(name=name, root=str(root))).build()


def written(name: str, root: Path) -> Path:
    folder = root / name.replace("-", "_")
    WRITERS[name](folder)
    return folder


@pytest.fixture(autouse=True)
def no_questions_no_pickles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a question on the terminal nor a `torch.load` may come from a build."""
    import torch

    def refuse(*_args: Any, **_options: Any) -> Any:
        raise AssertionError("called")

    monkeypatch.setattr(builtins, "input", refuse)
    monkeypatch.setattr(torch, "load", refuse)


@pytest.mark.parametrize("below", ["ogb/ogbn_arxiv", "ogbn-arxiv", "arxiv", "."])
def test_files_are_found_wherever_they_lie(tmp_path: Path, below: str) -> None:
    raw_layouts.write_ogb_tables(tmp_path / "x" / below, "time")
    assert build("ogbn-arxiv", tmp_path / "x").target_nodes.num_nodes == 30


@pytest.mark.parametrize(
    ("name", "kind", "node_types"),
    [
        ("ogbn-arxiv", ("multiclass", "accuracy", 40), ONE_TYPE),
        ("ogbn-products", ("multiclass", "accuracy", 47), ONE_TYPE),
        ("ogbn-proteins", ("multilabel", "roc_auc", 112), ONE_TYPE),
        ("ogbn-papers100M", ("multiclass", "accuracy", 172), ONE_TYPE),
        ("ogbn-mag", ("multiclass", "accuracy", 349), MAG),
    ],
)
def test_the_graph_is_the_one_that_ogbs_own_class_reads(
    tmp_path: Path, name: str, kind: tuple[str, str, int], node_types: list[str]
) -> None:
    folder = written(name, tmp_path)
    data = build(name, tmp_path)
    assert (data.task, data.metric, data.num_classes) == kind
    assert (data.ogb_name, [*data.nodes]) == (name, node_types)
    copy = tmp_path / "copy" / folder.name
    shutil.copytree(folder, copy)
    stock = ogb.ogb_nodeproppred().NodePropPredDataset(name, root=str(copy.parent))
    graph, labels = stock[0]
    splits = stock.get_idx_split()
    if name == "ogbn-mag":
        sizes, features = graph["num_nodes_dict"], graph["node_feat_dict"]
        edges, labels = graph["edge_index_dict"], labels["paper"]
        splits = {split: ids["paper"] for split, ids in splits.items()}
    else:
        sizes, features = {NODE: graph["num_nodes"]}, {NODE: graph["node_feat"]}
        edges = {EDGE: graph["edge_index"]}
    assert {kind: nodes.num_nodes for kind, nodes in data.nodes.items()} == sizes
    store = write_store(tmp_path / "store", data, PrepareOptions(), {"dataset": name})
    assert set(store.edges) == set(edges)
    for edge_type, stored in store.edges.items():
        dst = np.repeat(np.arange(len(stored.indptr) - 1), np.diff(stored.indptr))
        pairs = zip(stored.indices.tolist(), dst.tolist(), strict=True)
        assert sorted(pairs) == sorted(map(tuple, edges[edge_type].T.tolist()))
    for node_type, nodes in store.nodes.items():
        if features.get(node_type) is not None:
            np.testing.assert_array_equal(nodes.features, features[node_type])
        else:
            assert nodes.num_features == (8 if name == "ogbn-proteins" else 0)
    expected = np.where(np.isnan(labels), -1, labels) if labels.dtype.kind == "f" else labels
    np.testing.assert_array_equal(data.labels.reshape(labels.shape), expected)
    assert data.labels.dtype == (np.uint8 if data.task == "multilabel" else np.int32)
    for ours, theirs in OGB_SPLITS.items():
        np.testing.assert_array_equal(data.splits[ours], splits[theirs])
    assert "outdated" not in sys.modules, "OGB would ask PyPI for a newer version of itself"
    assert sys.modules["ogb.version"].check_outdated is None


def test_proteins_features_are_the_mean_of_each_nodes_in_edges(tmp_path: Path) -> None:
    graph, edge_features = raw_layouts.write_ogb_proteins(tmp_path / "ogbn_proteins")
    expected = np.zeros((graph.num_nodes, 8))
    for node in range(graph.num_nodes):
        ends_here = (graph.edges == node).sum(axis=1)  # 2 for a self loop, which OGB doubles
        if ends_here.any():
            expected[node] = np.average(edge_features, axis=0, weights=ends_here)
    features: Any = build("ogbn-proteins", tmp_path).target_nodes.features
    np.testing.assert_allclose(features, expected, rtol=1e-5)


@pytest.mark.parametrize("compressed", [False, True])
def test_papers100m_is_mapped_or_streamed_but_never_loaded_whole(
    tmp_path: Path, compressed: bool
) -> None:
    graph = raw_layouts.write_ogb_binary(tmp_path / "ogbn_papers100M", compressed=compressed)
    data = build("ogbn-papers100M", tmp_path)
    features = data.target_nodes.features
    assert isinstance(features, StreamedRows if compressed else np.memmap)
    rows = features.rows(0, 30) if isinstance(features, StreamedRows) else features
    np.testing.assert_array_equal(rows, graph.features)
    np.testing.assert_array_equal(np.stack([*data.edges[EDGE]], axis=1), graph.edges)


def test_a_release_file_is_not_needed_but_another_release_is_refused(tmp_path: Path) -> None:
    folder = written("ogbn-arxiv", tmp_path)
    (folder / "RELEASE_v1.txt").unlink()
    build("ogbn-arxiv", tmp_path)
    (folder / "RELEASE_v0.txt").touch()
    with pytest.raises(UserError, match=r"RELEASE_v0\.txt"):
        build("ogbn-arxiv", tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "change"),
    [
        ("ogbn-arxiv", "edge", lambda lines: [*lines, "0,1\n"]),
        ("ogbn-arxiv", "edge", lambda lines: [*lines[:-1], ",1\n"]),
        ("ogbn-arxiv", "edge", lambda lines: [*lines[:-1], "0,99999999999\n"]),
        ("ogbn-arxiv", "node-label", lambda lines: ["x\n", *lines[1:]]),
        ("ogbn-proteins", "edge-feat", lambda lines: lines[:-1]),
        ("ogbn-mag", "relations/author___writes___paper/edge", lambda lines: lines[:-1]),
    ],
)
def test_a_damaged_table_is_a_users_error(
    tmp_path: Path, name: str, file: str, change: Callable[[list[str]], list[str]]
) -> None:
    path = written(name, tmp_path) / "raw" / f"{file}.csv.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)
    path.write_bytes(gzip.compress("".join(change(lines)).encode()))
    with pytest.raises(UserError, match="cannot be read"):
        build(name, tmp_path)


def replied(size: str = "1000") -> Any:
    """What opening an address gives of a file of so many bytes."""
    return lambda _: nullcontext(SimpleNamespace(headers={"Content-Length": size}))


def test_a_download_is_unpacked_and_found_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download_url(_url: str, scratch: str) -> str:
        inner = tmp_path / "packed" / "arxiv"
        raw_layouts.write_ogb_tables(inner, "time")
        return shutil.make_archive(str(Path(scratch) / "arxiv"), "zip", inner.parent, "arxiv")

    ogb.ogb_nodeproppred()
    monkeypatch.setattr("urllib.request.urlopen", replied())
    monkeypatch.setattr("ogb.utils.url.download_url", download_url)
    root = tmp_path / "data"
    build("ogbn-arxiv", root)
    assert [path.name for path in root.iterdir()] == ["ogbn_arxiv"]
    monkeypatch.setattr("ogb.utils.url.download_url", None)
    build("ogbn-arxiv", root)


def test_without_disk_space_one_error_says_what_goes_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib.request.urlopen", replied(str(10**18)))
    with pytest.raises(UserError) as caught:
        build("ogbn-arxiv", tmp_path / "data")
    assert "GiB disk free" in caught.value.message
    assert "raw/edge.csv.gz" in str(caught.value.hint)
    assert str(tmp_path / "data" / "ogbn_arxiv") in str(caught.value.hint)
    assert not any((tmp_path / "data").iterdir())


def test_node_ids_that_would_fit_when_cut_to_32_bits_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ogb, "_CHUNK", 3)
    edges = np.array([[0, 1, 2, 3], [3, 2, 1, 2**32]])
    np.savez_compressed(tmp_path / "data.npz", edge_index=edges)
    with pytest.raises(ValueError, match="outside"):
        ogb.edge_rows(open_member(tmp_path / "data.npz", "edge_index"), 4)
