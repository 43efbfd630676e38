"""Published typed graphs that are read here: RDF entities, and HeCo's DBLP."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from gnntrain.config import BuiltinConfig
from gnntrain.data.datasets import builder_for
from gnntrain.data.graph import GraphData
from gnntrain.errors import UserError
from tests.data import raw_layouts
from tests.data.files import features_of

SHARED = Path(__file__).parents[3] / "shared" / "data"
COLUMNS = {"aifb": ("person", "label_affiliation"), "mutag": ("bond", "label_mutagenic")}


def build(name: str, root: Path, split: int = 0) -> GraphData:
    return builder_for(BuiltinConfig(name=name, root=str(root), split=split)).build()


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
        "<http://x/p1> <http://o#r> .",
        '<http://x/p1> "r" <http://x/g1> .',
        '"p" <http://o#r> <http://x/g1> .',
        '<http://x/p1> <http://o#r> "open .',
        "<http://x/p1> <http://o#r> <http://x/g1> . <http://x/p1>",
        "<http://x p1> <http://o#r> <http://x/g1> .",
    ],
)
def test_a_line_that_is_no_triple_is_told_by_its_number(tmp_path: Path, line: str) -> None:
    with pytest.raises(UserError, match="line 2"):
        build_from(tmp_path, f"<http://x/p1> <http://o#r> <http://x/g1> .\n{line}\n")


def test_a_labelled_node_that_is_not_in_the_graph_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="p3"):
        build_from(tmp_path, raw_layouts.AIFB_TRIPLES.replace("p3", "p4"))


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


@pytest.mark.skipif(not (SHARED / "heco").is_dir(), reason="HeCo's raw files are not here")
@pytest.mark.parametrize("split", [20, 40, 60])
def test_hecos_dblp_has_its_published_size(split: int) -> None:
    data = build("heco_dblp", SHARED, split)
    sizes = {name: (nodes.num_nodes, nodes.num_features) for name, nodes in data.nodes.items()}
    papers, terms = (14_328, 4231), (7723, 50)
    assert sizes == {"author": (4057, 334), "paper": papers, "term": terms, "conference": (20, 0)}
    assert [len(src) for src, _ in data.edges.values()] == [19_645, 85_810, 14_328]
    assert np.bincount(data.labels[data.splits["train"]]).tolist() == [split] * 4
    assert [len(data.splits[name]) for name in ("val", "test")] == [1000, 1000]


def test_a_broken_matrix_of_heco_is_a_users_error(tmp_path: Path) -> None:
    raw_layouts.write_heco_dblp(tmp_path / "dblp")
    np.savez(tmp_path / "dblp" / "p_feat.npz", data=np.ones(3))
    with pytest.raises(UserError, match=r"p_feat\.npz"):
        build("heco_dblp", tmp_path, 60)
