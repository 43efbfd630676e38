"""Data sets that are published: their raw files, as PyG's classes read them; downloads; splits."""

from __future__ import annotations

import io
import pickle
import socket
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
import torch

from gnntrain.config import (
    DATASET_NAMES,
    BuiltinConfig,
    DatasetConfig,
    FilesConfig,
    SyntheticConfig,
    from_dict,
)
from gnntrain.config.published import PUBLISHED
from gnntrain.data.build import write_store
from gnntrain.data.datasets import builder_for
from gnntrain.data.graph import EDGE, GraphData, PrepareOptions
from gnntrain.data.raw_files import STALL_SECONDS, PublishedBuilder, RawLayout
from gnntrain.data.read.objects import from_pyg
from gnntrain.errors import UserError
from tests.data import raw_layouts
from tests.data.files import features_of

SHARED = Path(__file__).parents[3] / "shared" / "data"
CORA = SHARED / "planetoid" / "Cora" / "raw"
TOLOKERS = SHARED / "heterophilous" / "tolokers" / "raw"

needs_cora = pytest.mark.skipif(not CORA.is_dir(), reason="Cora's raw files are not here")
needs_tolokers = pytest.mark.skipif(
    not TOLOKERS.is_dir(), reason="Tolokers' raw files are not here"
)


def build(name: str, root: Path | None, split: int = 0) -> GraphData:
    config = BuiltinConfig(name=name, root=None if root is None else str(root), split=split)
    data = builder_for(config).build()
    assert isinstance(data, GraphData)
    return data


def download_reddit(monkeypatch: pytest.MonkeyPatch, download: Callable[[Path], None]) -> None:
    """Let PyG's class download Reddit by a function of the raw folder."""
    import torch_geometric.datasets

    monkeypatch.setattr(
        torch_geometric.datasets.Reddit, "download", lambda self: download(Path(self.raw_dir))
    )


def edge_set(data: GraphData) -> set[tuple[int, int]]:
    return set(zip(data.edges[EDGE].src.tolist(), data.edges[EDGE].dst.tolist(), strict=True))


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_options: Any) -> Any:
        raise AssertionError("something reached for the network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@needs_cora
@pytest.mark.parametrize("below", ["", "planetoid/Cora/raw"])
def test_cora_is_found_from_any_folder_above_it_and_has_its_public_split(below: str) -> None:
    data = build("cora", SHARED / below)
    nodes, edges = data.target_nodes, data.edges[EDGE]
    assert (nodes.num_nodes, len(edges.src), nodes.num_features) == (2708, 10556, 1433)
    assert [len(ids) for ids in data.splits.values()] == [140, 500, 1000]
    assert (data.task, data.metric, data.num_classes) == ("multiclass", "accuracy", 7)
    assert np.bincount(data.labels[:140]).tolist() == [20] * 7
    assert edges.src.dtype == np.int32


@needs_tolokers
def test_tolokers_has_its_published_size_and_ten_splits() -> None:
    masks = np.load(TOLOKERS / "tolokers.npz")
    for number in (0, 9):
        data = build("tolokers", SHARED, number)
        nodes, edges = data.target_nodes, data.edges[EDGE]
        assert (nodes.num_nodes, len(edges.src), nodes.num_features) == (11758, 1_038_000, 10)
        for name in ("train", "val", "test"):
            expected = np.flatnonzero(masks[f"{name}_masks"][number])
            assert data.splits[name].tolist() == expected.tolist()
    assert (data.task, data.metric, data.num_classes) == ("binary", "roc_auc", 2)


@pytest.mark.parametrize(("name", "last"), [("tolokers", 9), ("cora", 0), ("heco_dblp", 60)])
def test_a_split_that_a_data_set_does_not_have_is_refused_with_the_range(
    name: str, last: int
) -> None:
    builder_for(BuiltinConfig(name=name, split=last))
    with pytest.raises(UserError) as caught:
        builder_for(BuiltinConfig(name=name, split=last + 1))
    assert f"dataset.split={last + 1}" in caught.value.message
    assert str(caught.value.hint).endswith(f"{last}.")


@pytest.mark.parametrize("name", ["reddit", "flickr", "yelp"])
def test_the_larger_graphs_are_those_that_pygs_own_classes_make(tmp_path: Path, name: str) -> None:
    import torch_geometric.datasets

    published = PUBLISHED[name]
    root = tmp_path / str(published.class_name)
    if name == "reddit":
        raw_layouts.write_reddit(root / "raw")
    else:
        raw_layouts.write_graph_saint(root / "raw", multilabel=name == "yelp")
    ours = build(name, tmp_path)
    stock = getattr(torch_geometric.datasets, str(published.class_name))(str(root))[0]
    theirs = from_pyg(stock, name)
    assert edge_set(ours) == edge_set(theirs)
    assert len(ours.edges[EDGE].src) == len(theirs.edges[EDGE].src)
    ours_and_theirs = (features_of(graph.target_nodes) for graph in (ours, theirs))
    np.testing.assert_array_equal(*(rows.astype(np.float32) for rows in ours_and_theirs))
    np.testing.assert_array_equal(ours.labels, theirs.labels)
    for split, nodes in theirs.splits.items():
        np.testing.assert_array_equal(ours.splits[split], nodes)
    for name in ("task", "metric", "num_classes"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_a_folder_of_another_data_set_with_the_same_file_names_is_not_taken(tmp_path: Path) -> None:
    raw_layouts.write_graph_saint(tmp_path / "Flickr" / "raw", multilabel=False)
    layout = RawLayout(("raw", ""), ("feats.npy",), frozenset({"Flickr"}))
    assert layout.find(tmp_path / "Flickr") is None
    assert build("flickr", tmp_path / "Flickr").target_nodes.num_nodes == 30


def test_data_without_official_splits_gets_a_random_one_fixed_by_its_number(tmp_path: Path) -> None:
    raw_layouts.write_gnn_benchmark(tmp_path / "CS/raw", "ms_academic_cs.npz")
    first, again, other = (build("coauthor_cs", tmp_path, split) for split in (0, 0, 7))
    for split in first.splits:
        np.testing.assert_array_equal(first.splits[split], again.splits[split])
    assert first.splits["train"].tolist() != other.splits["train"].tolist()
    assert [len(nodes) for nodes in first.splits.values()] == [18, 6, 6]
    together = np.concatenate(list(first.splits.values()))
    assert sorted(together.tolist()) == list(range(30))


def test_what_pyg_writes_and_prints_on_the_way_is_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "raw data"
    raw_layouts.write_gnn_benchmark(root / "raw", "amazon_electronics_photo.npz")
    for folder in (root, root / "raw"):
        folder.chmod(0o555)
    before, scratch = tree(root), tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.delitem(sys.modules, "pytest")  # where it is loaded PyG prints nothing
    assert build("amazon_photo", root).target_nodes.num_nodes == 30
    assert capfd.readouterr() == ("", "")
    assert tree(root) == before
    assert list(scratch.iterdir()) == []


def test_a_download_moves_into_place_whole_and_is_then_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads = []

    def download(raw: Path) -> None:
        downloads.append(raw)
        raw_layouts.write_reddit(raw)

    download_reddit(monkeypatch, download)
    root = tmp_path / "data" / "here"
    assert build("reddit", root).target_nodes.num_nodes == 30
    assert build("reddit", root).target_nodes.num_nodes == 30
    assert len(downloads) == 1
    raw = root / "Reddit" / "raw"
    assert [path.name for path in root.iterdir()] == ["Reddit"]

    # Files that are there survive a download of the others.
    (raw / "reddit_graph.npz").unlink()
    before = (raw / "reddit_data.npz").stat()
    assert build("reddit", root).target_nodes.num_nodes == 30
    assert len(downloads) == 2
    assert (raw / "reddit_data.npz").stat().st_ino == before.st_ino


def test_without_a_root_raw_files_belong_in_the_users_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / name)
    raw_layouts.write_reddit(tmp_path / "gnntrain" / "raw" / "Reddit" / "raw")
    assert build("reddit", None).target_nodes.num_nodes == 30


def _no_network(raw: Path) -> None:
    assert socket.getdefaulttimeout() == STALL_SECONDS
    (raw / "reddit_data.npz").write_bytes(b"half")
    raise OSError("[Errno -3] Temporary failure in name resolution")


def _truncated(raw: Path) -> None:
    raw_layouts.write_reddit(raw)
    for path in raw.iterdir():
        path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    ("download", "cause"), [(_no_network, "name resolution"), (_truncated, "did not arrive whole")]
)
def test_a_failed_download_says_which_files_go_where_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, download: Any, cause: str
) -> None:
    download_reddit(monkeypatch, download)
    root = tmp_path / "data"
    with pytest.raises(UserError) as caught:
        build("reddit", root)
    assert cause in caught.value.message
    hint = str(caught.value.hint)
    assert "reddit_data.npz, reddit_graph.npz" in hint
    assert str(root / "Reddit" / "raw") in hint
    assert not any(root.iterdir())
    assert socket.getdefaulttimeout() is None


def test_raw_files_that_are_broken_are_a_users_error(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for name in ("reddit_data.npz", "reddit_graph.npz"):
        with zipfile.ZipFile(raw / name, "w") as archive:
            archive.writestr("feature.npy", b"nothing")
    with pytest.raises(UserError, match=r"the raw files in .* cannot be read"):
        build("reddit", tmp_path)


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (Path.touch, (Path("/nowhere/touched"),))  # type: ignore[return-value]


def test_a_raw_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    for part in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index"):
        content: Any = {0: [1], 1: [0]} if part == "graph" else np.eye(2)
        (tmp_path / f"ind.cora.{part}").write_bytes(pickle.dumps(content, protocol=2))
    (tmp_path / "ind.cora.test.index").write_text("2\n3\n")
    (tmp_path / "ind.cora.graph").write_bytes(pickle.dumps([Evil()], protocol=2))
    with pytest.raises(UserError, match="which could run code"):
        build("cora", tmp_path)


def test_the_same_choice_has_the_same_identity_and_another_has_not(tmp_path: Path) -> None:
    choices: list[DatasetConfig] = [
        BuiltinConfig(name="tolokers"),
        BuiltinConfig(name="tolokers", split=1),
        BuiltinConfig(name="tolokers", root=str(tmp_path)),
        SyntheticConfig(),
        SyntheticConfig(num_nodes=11),
    ]
    identities = [builder_for(choice).identity() for choice in choices]
    assert identities == [builder_for(choice).identity() for choice in choices]
    for place, identity in enumerate(identities):
        assert identity not in identities[:place]
    # How a graph is prepared is no part of what it is.
    prepared = SyntheticConfig(to_undirected=True, store_dir="/x")
    assert builder_for(prepared).identity() == builder_for(SyntheticConfig()).identity()


def test_every_name_that_the_configuration_offers_has_a_builder(tmp_path: Path) -> None:
    edges = tmp_path / "edges.csv"
    edges.touch()
    files = FilesConfig(edges=str(edges), features=str(edges))
    for name in DATASET_NAMES:
        is_files = name == "files"
        builder = builder_for(files if is_files else from_dict({"dataset": {"name": name}}).dataset)
        assert builder.identity()["dataset"] == name
        if isinstance(builder, PublishedBuilder):
            assert builder.layout().files


def test_a_drawn_split_has_labelled_nodes_alone_and_wrong_labels_are_refused(
    tmp_path: Path,
) -> None:
    from torch_geometric.data import Data

    edges = {"edge_index": torch.tensor([[0, 1, 2], [1, 2, 0]]), "num_nodes": 4}
    weight, y = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([[0], [-1], [1], [2]])
    data = from_pyg(Data(edge_weight=weight, y=y, **edges), "tiny")
    assert data.target_nodes.features is None
    np.testing.assert_array_equal(np.asarray(data.edges[EDGE].weight), weight)
    assert sorted(np.concatenate(list(data.splits.values())).tolist()) == [0, 2, 3]
    assert data.labels.tolist() == [0, -1, 1, 2]
    y = torch.tensor([[0.5, 1.0], [0.0, 256.0], [1.0, 0.0], [1.0, 0.0]])
    with pytest.raises(UserError, match="instead of 0 or 1"):
        write_store(tmp_path / "store", from_pyg(Data(y=y, **edges), "flags"), PrepareOptions(), {})


# Typed graphs that are read here: RDF entities, and HeCo's DBLP

COLUMNS = {"aifb": ("person", "label_affiliation"), "mutag": ("bond", "label_mutagenic")}


def build_from(folder: Path, triples: str, name: str = "aifb") -> GraphData:
    raw_layouts.write_entities(folder / name / "raw", name, COLUMNS[name], triples)
    return build(name, folder)


@pytest.mark.parametrize("name", ["aifb", "mutag"])
def test_triples_become_entities_and_relations(tmp_path: Path, name: str) -> None:
    # A long literal has a short id: its beginning and a digest.
    longer = "".join(f'<http://x/p1> <http://o#text> "{"é" * 5000}{end}" .\n' for end in "ab")
    data = build_from(tmp_path, raw_layouts.AIFB_TRIPLES + longer, name)
    ids = data.nodes["entity"].ids
    assert ids is not None
    names = [term.decode() for term in ids.tolist()]
    assert names[0] == '"Ada \\"the\\" First"@en'
    assert names[1] == '"http://x/p1"^^<http://t#string>'
    assert names[4:] == ["_:b0", "http://x/g1", "http://x/p1", "http://x/p2", "http://x/p3"]
    assert len(set(names)) == 9
    assert ids.dtype.itemsize < 500
    found = {
        relation: {(names[src], names[dst]) for src, dst in zip(*ends, strict=True)}
        for (_, relation, _), ends in data.edges.items()
    }
    assert found == {
        "name": {("http://x/p1", names[0]), ("http://x/p2", names[1])},
        "text": {("http://x/p1", names[2]), ("http://x/p1", names[3])},
        "worksAt": {("http://x/p1", "http://x/g1"), ("http://x/p2", "http://x/g1")},
        "name_2": {("http://x/p3", "_:b0")},
    }
    assert sum(len(src) for src, _ in data.edges.values()) == 7
    assert (data.target, data.nodes["entity"].num_features, data.reverse) == ("entity", 0, True)
    assert data.labels.tolist() == [-1, -1, -1, -1, -1, -1, 0, 1, 0]
    assert data.class_names is not None
    assert data.class_names.tolist() == [b"a", b"b"]
    splits = {split: nodes.tolist() for split, nodes in data.splits.items()}
    assert splits == {"train": [6, 7], "val": [], "test": [8]}


@pytest.mark.skipif(not (SHARED / "entities").is_dir(), reason="AIFB's raw files are not here")
def test_aifb_has_its_published_size_and_its_folds_share_the_training_nodes_out() -> None:
    data = build("aifb", SHARED)
    assert (data.nodes["entity"].num_nodes, len(data.edges), data.num_classes) == (8285, 45, 4)
    assert sum(len(src) for src, _ in data.edges.values()) == 29_043
    assert [len(data.splits[name]) for name in ("train", "val", "test")] == [140, 0, 36]
    folds = [build("aifb", SHARED, fold).splits for fold in range(1, 6)]
    together = np.concatenate([fold["val"] for fold in folds])
    assert sorted(together.tolist()) == data.splits["train"].tolist()
    for fold in folds:
        both = np.concatenate([fold["train"], fold["val"]])
        assert sorted(both.tolist()) == data.splits["train"].tolist()
        np.testing.assert_array_equal(fold["test"], data.splits["test"])


@pytest.mark.parametrize(
    "line",
    [
        "<http://x/p1> <http://o#r> <http://x/g1>",
        '<http://x/p1> "r" <http://x/g1> .',
        '"p" <http://o#r> <http://x/g1> .',
        '<http://x/p1> <http://o#r> "open .',
        "<http://x/p1> <http://o#r> <http://x/g1> . <http://x/p1>",
    ],
)
def test_a_line_that_is_no_triple_is_told_by_its_number(tmp_path: Path, line: str) -> None:
    with pytest.raises(UserError, match="line 2"):
        build_from(tmp_path, f"<http://x/p1> <http://o#r> <http://x/g1> .\n{line}\n")


def test_a_download_of_heco_is_put_in_place_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = raw_layouts.write_heco_dblp(tmp_path / "there")

    def urlopen(url: str) -> io.BytesIO:
        return io.BytesIO((tmp_path / "there" / url.rpartition("/")[2]).read_bytes())

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    build("heco_dblp", tmp_path / "data", 60)
    monkeypatch.setattr("urllib.request.urlopen", None)
    data = build("heco_dblp", tmp_path / "data", 60)
    sizes = {name: nodes.num_nodes for name, nodes in data.nodes.items()}
    assert sizes == {"author": 6, "paper": 5, "term": 4, "conference": 3}
    for name, file in (("author", "a_feat"), ("paper", "p_feat"), ("term", "t_feat")):
        np.testing.assert_array_equal(features_of(data.nodes[name]), written[file])
    assert data.nodes["conference"].features is None
    relations = {
        ("paper", "has_term", "term"): written["pt"],
        ("paper", "published_in", "conference"): written["pc"],
        ("author", "writes", "paper"): written["pa"][:, ::-1],
    }
    assert set(data.edges) == set(relations)
    for edge_type, pairs in relations.items():
        np.testing.assert_array_equal(np.stack([*data.edges[edge_type]], axis=1), pairs)
    assert (data.target, data.num_classes, data.reverse) == ("author", 4, True)
    np.testing.assert_array_equal(data.labels, written["labels"])
    assert data.splits["train"].tolist() == [0, 1, 2, 3]
