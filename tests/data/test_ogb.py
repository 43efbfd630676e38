from __future__ import annotations

import builtins
import gzip
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gnntrain.config import BuiltinConfig
from gnntrain.data import ogb
from gnntrain.data.build import write_store
from gnntrain.data.datasets import builder_for
from gnntrain.data.graph import JSON, FeatureRows, GraphData, HeteroGraphData, PrepareOptions
from gnntrain.data.npz_members import StreamedRows, open_member
from gnntrain.errors import UserError
from tests.data import raw_layouts

OGB_SPLITS = {"train": "train", "val": "valid", "test": "test"}


def build_typed(name: str, root: Path) -> HeteroGraphData:
    return builder_for(BuiltinConfig(name=name, root=str(root))).build()


def build(name: str, root: Path) -> GraphData:
    data = build_typed(name, root)
    assert isinstance(data, GraphData)
    return data


def features_of(data: GraphData) -> npt.NDArray[Any]:
    features = data.features
    assert features is not None
    return features if isinstance(features, np.ndarray) else features.rows(0, data.num_nodes)


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
    assert build("ogbn-arxiv", tmp_path / "x").num_nodes == 30


def test_stores_from_before_self_loops_were_doubled_are_not_taken() -> None:
    before: dict[str, JSON] = {"split": 0, "root": None}
    for name in ("ogbn-products", "ogbn-proteins"):
        assert builder_for(BuiltinConfig(name=name)).identity() != {"dataset": name, **before}
    for name in ("ogbn-arxiv", "ogbn-papers100M"):
        assert builder_for(BuiltinConfig(name=name)).identity() == {"dataset": name, **before}


def _stock(name: str, folder: Path) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """What OGB's own class makes of a copy of the same files."""
    copy = folder.parent / "copy" / name.replace("-", "_")
    shutil.copytree(folder, copy)
    stock = ogb.ogb_nodeproppred().NodePropPredDataset(name, root=str(copy.parent))
    graph, labels = stock[0]
    return graph, labels, stock.get_idx_split()


@pytest.mark.parametrize(
    ("name", "write", "kind"),
    [
        (
            "ogbn-arxiv",
            lambda folder: raw_layouts.write_ogb_tables(folder, "time"),
            ("multiclass", "accuracy", 40),
        ),
        (
            "ogbn-products",
            lambda folder: raw_layouts.write_ogb_tables(folder, "sales_ranking"),
            ("multiclass", "accuracy", 47),
        ),
        ("ogbn-proteins", raw_layouts.write_ogb_proteins, ("multilabel", "roc_auc", 112)),
        (
            "ogbn-papers100M",
            lambda folder: raw_layouts.write_ogb_binary(folder, compressed=True),
            ("multiclass", "accuracy", 172),
        ),
    ],
)
def test_the_graph_is_the_one_that_ogbs_own_class_reads(
    tmp_path: Path, name: str, write: Callable[[Path], object], kind: tuple[str, str, int]
) -> None:
    folder = tmp_path / name.replace("-", "_")
    write(folder)
    data = build(name, tmp_path)
    assert (data.task, data.metric, data.num_classes) == kind
    assert (data.ogb_name, data.src.dtype) == (name, np.int32)
    graph, labels, splits = _stock(name, folder)
    store = write_store(tmp_path / "store", data, PrepareOptions(), {"dataset": name})
    dst = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    stored_edges = zip(store.indices.tolist(), dst.tolist(), strict=True)
    assert sorted(stored_edges) == sorted(map(tuple, graph["edge_index"].T.tolist()))
    if graph["node_feat"] is not None:
        np.testing.assert_array_equal(features_of(data), graph["node_feat"])
    expected = np.where(np.isnan(labels), -1, labels) if labels.dtype.kind == "f" else labels
    np.testing.assert_array_equal(data.labels.reshape(labels.shape), expected)
    assert data.labels.dtype == (np.uint8 if data.task == "multilabel" else np.int32)
    for ours, theirs in OGB_SPLITS.items():
        np.testing.assert_array_equal(data.splits[ours], splits[theirs])
    assert "outdated" not in sys.modules, "OGB would ask PyPI for a newer version of itself"
    assert sys.modules["ogb.version"].check_outdated is None


def test_proteins_features_are_the_mean_of_each_nodes_in_edges(tmp_path: Path) -> None:
    written, edge_features = raw_layouts.write_ogb_proteins(tmp_path / "ogbn_proteins")
    data = build("ogbn-proteins", tmp_path)
    expected = np.zeros((written.num_nodes, 8))
    for node in range(written.num_nodes):
        ends_here = (written.edges == node).sum(axis=1)  # 2 for a self loop, which OGB doubles
        if ends_here.any():
            expected[node] = np.average(edge_features, axis=0, weights=ends_here)
    np.testing.assert_allclose(features_of(data), expected, rtol=1e-5)


@pytest.mark.parametrize("compressed", [False, True])
def test_papers100m_is_mapped_or_streamed_but_never_loaded_whole(
    tmp_path: Path, compressed: bool
) -> None:
    written = raw_layouts.write_ogb_binary(tmp_path / "ogbn_papers100M", compressed=compressed)
    data = build("ogbn-papers100M", tmp_path)
    assert isinstance(data.features, StreamedRows if compressed else np.memmap)
    assert isinstance(data.features, FeatureRows) == compressed
    np.testing.assert_array_equal(features_of(data), written.features)
    np.testing.assert_array_equal(np.stack([data.src, data.dst], axis=1), written.edges)


def test_a_release_file_is_not_needed_but_another_release_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "ogbn_arxiv"
    raw_layouts.write_ogb_tables(folder, "time")
    (folder / "RELEASE_v1.txt").unlink()
    assert build("ogbn-arxiv", tmp_path).num_nodes == 30
    (folder / "RELEASE_v0.txt").touch()
    with pytest.raises(UserError, match=r"RELEASE_v0\.txt"):
        build("ogbn-arxiv", tmp_path)


def _short(lines: list[str]) -> list[str]:
    return lines[:-1]


@pytest.mark.parametrize(
    ("name", "file", "change"),
    [
        ("ogbn-arxiv", "edge", _short),
        ("ogbn-arxiv", "edge", lambda lines: [*lines, "0,1\n"]),
        ("ogbn-arxiv", "edge", lambda lines: [*lines[:-1], ",1\n"]),
        ("ogbn-arxiv", "edge", lambda lines: [*lines[:-1], "0,99999999999\n"]),
        ("ogbn-arxiv", "node-feat", _short),
        ("ogbn-arxiv", "node-label", lambda lines: ["x\n", *lines[1:]]),
        ("ogbn-proteins", "edge-feat", _short),
        ("ogbn-proteins", "edge-feat", lambda lines: [*lines, lines[0]]),
        ("ogbn-mag", "relations/author___writes___paper/edge", _short),
        ("ogbn-mag", "node-feat/paper/node-feat", _short),
        ("ogbn-mag", "node-label/paper/node-label", _short),
    ],
)
def test_a_damaged_table_is_a_users_error(
    tmp_path: Path, name: str, file: str, change: Callable[[list[str]], list[str]]
) -> None:
    folder = tmp_path / name.replace("-", "_")
    if name == "ogbn-arxiv":
        raw_layouts.write_ogb_tables(folder, "time")
    elif name == "ogbn-proteins":
        raw_layouts.write_ogb_proteins(folder)
    else:
        raw_layouts.write_ogb_mag(folder)
    path = folder / "raw" / f"{file}.csv.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)
    path.write_bytes(gzip.compress("".join(change(lines)).encode()))
    with pytest.raises(UserError, match="cannot be read"):
        build_typed(name, tmp_path)


class _Reply:
    def __init__(self, size: str = "1000") -> None:
        self.headers = {"Content-Length": size}

    def __enter__(self) -> _Reply:
        return self

    def __exit__(self, *_error: object) -> None:
        return None


def test_a_download_is_unpacked_and_found_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download_url(_url: str, scratch: str) -> str:
        inner = tmp_path / "packed" / "arxiv"
        raw_layouts.write_ogb_tables(inner, "time")
        return shutil.make_archive(str(Path(scratch) / "arxiv"), "zip", inner.parent, "arxiv")

    ogb.ogb_nodeproppred()
    monkeypatch.setattr("urllib.request.urlopen", lambda _url: _Reply())
    monkeypatch.setattr("ogb.utils.url.download_url", download_url)
    root = tmp_path / "data"
    assert build("ogbn-arxiv", root).num_nodes == 30
    assert [path.name for path in root.iterdir()] == ["ogbn_arxiv"]
    monkeypatch.setattr("ogb.utils.url.download_url", None)
    assert build("ogbn-arxiv", root).num_nodes == 30


@pytest.mark.parametrize(("size", "cause"), [(None, "no route"), (str(10**18), "GiB disk free")])
def test_without_network_or_disk_space_one_error_says_what_goes_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str | None, cause: str
) -> None:
    def urlopen(_url: str) -> _Reply:
        if size is None:
            raise OSError("no route to host")
        return _Reply(size)

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    with pytest.raises(UserError) as caught:
        build("ogbn-arxiv", tmp_path / "data")
    assert cause in caught.value.message
    assert "raw/edge.csv.gz" in str(caught.value.hint)
    assert str(tmp_path / "data" / "ogbn_arxiv") in str(caught.value.hint)
    assert not (tmp_path / "data").exists()


def test_pickled_objects_in_an_archive_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, array=np.array([{}], object))
    with pytest.raises(ValueError, match="pickled"):
        open_member(path, "array")


def test_edge_ids_of_a_compressed_archive_are_checked_before_they_are_cut_to_32_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ogb, "_CHUNK", 3)
    path = tmp_path / "data.npz"
    edges = np.array([[0, 1, 2, 3], [3, 2, 1, 0]])
    np.savez_compressed(path, edge_index=edges)
    src, dst = ogb.edge_rows(open_member(path, "edge_index"), 4)
    assert [src.tolist(), dst.tolist()] == edges.tolist()
    np.savez_compressed(path, edge_index=edges + 2**32)
    with pytest.raises(ValueError, match="outside"):
        ogb.edge_rows(open_member(path, "edge_index"), 4)


def test_mag_is_the_graph_that_ogbs_own_class_reads(tmp_path: Path) -> None:
    folder = tmp_path / "ogbn_mag"
    raw_layouts.write_ogb_mag(folder)
    data = build_typed("ogbn-mag", tmp_path)
    graph, labels, splits = _stock("ogbn-mag", folder)
    assert {name: nodes.num_nodes for name, nodes in data.nodes.items()} == graph["num_nodes_dict"]
    np.testing.assert_array_equal(data.nodes["paper"].features, graph["node_feat_dict"]["paper"])
    assert [name for name, nodes in data.nodes.items() if nodes.features is not None] == ["paper"]
    assert set(data.edges) == set(graph["edge_index_dict"])
    for name, ends in data.edges.items():
        np.testing.assert_array_equal(np.stack([*ends]), graph["edge_index_dict"][name])
    np.testing.assert_array_equal(data.labels, labels["paper"][:, 0])
    for ours, theirs in OGB_SPLITS.items():
        np.testing.assert_array_equal(data.splits[ours], splits[theirs]["paper"])
    assert (data.target, data.num_classes, data.reverse) == ("paper", 349, False)
    assert (data.metric, data.ogb_name) == ("accuracy", "ogbn-mag")
