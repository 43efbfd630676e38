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

SHARED = Path(__file__).parents[3] / "shared" / "data"


def build(root: Path, split: int = 60) -> GraphData:
    return builder_for(BuiltinConfig(name="heco_dblp", root=str(root), split=split)).build()


def test_a_download_is_put_in_place_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = raw_layouts.write_heco_dblp(tmp_path / "there")

    def urlopen(url: str) -> io.BytesIO:
        return io.BytesIO((tmp_path / "there" / url.rpartition("/")[2]).read_bytes())

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    build(tmp_path / "data")
    monkeypatch.setattr("urllib.request.urlopen", None)
    data = build(tmp_path / "data")
    sizes = {name: nodes.num_nodes for name, nodes in data.nodes.items()}
    assert sizes == {"author": 6, "paper": 5, "term": 4, "conference": 3}
    for name, file in (("author", "a_feat"), ("paper", "p_feat"), ("term", "t_feat")):
        rows = data.nodes[name].features
        assert rows is not None
        whole = rows if isinstance(rows, np.ndarray) else rows.rows(0, sizes[name])
        np.testing.assert_array_equal(whole, written[file])
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
def test_it_has_its_published_size(split: int) -> None:
    data = build(SHARED, split)
    sizes = {name: (nodes.num_nodes, nodes.num_features) for name, nodes in data.nodes.items()}
    papers, terms = (14_328, 4231), (7723, 50)
    assert sizes == {"author": (4057, 334), "paper": papers, "term": terms, "conference": (20, 0)}
    assert [len(src) for src, _ in data.edges.values()] == [19_645, 85_810, 14_328]
    assert np.bincount(data.labels[data.splits["train"]]).tolist() == [split] * 4
    assert [len(data.splits[name]) for name in ("val", "test")] == [1000, 1000]


def test_a_broken_matrix_is_a_users_error(tmp_path: Path) -> None:
    raw_layouts.write_heco_dblp(tmp_path / "dblp")
    np.savez(tmp_path / "dblp" / "p_feat.npz", data=np.ones(3))
    with pytest.raises(UserError, match=r"p_feat\.npz"):
        build(tmp_path)
