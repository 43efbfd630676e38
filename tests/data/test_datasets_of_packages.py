"""Data sets that other packages offer by entry points."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest

from gnntrain import plugins
from gnntrain.app import compose_config
from gnntrain.cli import main
from gnntrain.config import BuiltinConfig, ConfigError, from_dict
from gnntrain.data.datasets import builder_for
from gnntrain.errors import UserError
from gnntrain.inventory import dataset_rows
from gnntrain.plugins import DATASETS
from gnntrain.run_store import prepare_store

PACKAGE = """
import torch
from torch_geometric.data import Data, InMemoryDataset
from tests.graphs import random_graph

def ring(root, num_nodes=12):
    nodes = torch.arange(num_nodes)
    edge_index = torch.stack([nodes, (nodes + 1) % num_nodes])
    return Data(x=torch.eye(num_nodes), y=nodes % 3, edge_index=edge_index)

class Rings(InMemoryDataset):
    raw_file_names = ["size.txt"]
    processed_file_names = ["data.pt"]

    def __init__(self, root):
        super().__init__(root)
        self.load(self.processed_paths[0])

    def download(self):
        with open(self.raw_paths[0], "w") as file:
            file.write("20")

    def process(self):
        self.save([ring(self.root, int(open(self.raw_paths[0]).read()))], self.processed_paths[0])

def as_graph_data(root):
    return random_graph()

def bare(root):
    return Data(y=torch.arange(12) % 3, edge_index=ring(root).edge_index)

def broken(root):
    raise KeyError("no such thing")
"""


def offer(monkeypatch: pytest.MonkeyPatch, points: list[EntryPoint]) -> None:
    """Have these entry points installed, and no others."""
    found = EntryPoints(points)
    monkeypatch.setattr(plugins, "entry_points", lambda **wanted: found.select(**wanted))


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_rings.py").write_text(PACKAGE)
    plugins.source_digest.cache_clear()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_rings", raising=False)  # that of another test
    offered = {"ring": "ring", "rings": "Rings", "edges": "as_graph_data", "broken": "broken"}
    offered |= {"bare": "bare"}
    points = [EntryPoint(n, f"their_rings:{what}", DATASETS) for n, what in offered.items()]
    offer(monkeypatch, points)


@pytest.mark.parametrize(("name", "num_nodes"), [("ring", 12), ("rings", 20), ("edges", 60)])
def test_it_is_chosen_by_its_name_without_any_yaml(
    tmp_path: Path, name: str, num_nodes: int
) -> None:
    folders = [f"dataset.root={tmp_path}/raw", f"dataset.store_dir={tmp_path}/stores"]
    config = compose_config([f"dataset={name}", "dataset.add_self_loops=true", *folders])
    assert config.dataset.name == name
    opened = prepare_store(config.dataset)
    assert (opened.store.dataset, opened.store.num_nodes) == (name, num_nodes)
    assert not prepare_store(config.dataset).built
    if name == "rings":
        assert (tmp_path / "raw" / "raw" / "size.txt").is_file()
        with_loop = np.sort([np.arange(20), np.arange(-1, 19) % 20], axis=0)
        np.testing.assert_array_equal(opened.store.only_edges.indices, with_loop.T.reshape(-1))


def test_an_edited_function_makes_another_graph(tmp_path: Path) -> None:
    before = builder_for(BuiltinConfig(name="ring")).identity()
    assert builder_for(BuiltinConfig(name="ring")).identity() == before
    assert builder_for(BuiltinConfig(name="ring", split=1)).identity() != before
    (tmp_path / "their_rings.py").write_text(PACKAGE.replace("eye", "ones"))
    plugins.source_digest.cache_clear()  # as in another process
    assert builder_for(BuiltinConfig(name="ring")).identity() != before


@pytest.mark.parametrize("model", ["sage", "mlp"])
def test_a_graph_without_features_is_refused_by_a_model_that_reads_them(
    model: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dataset=bare", f"model={model}", "trainer.gpus=0", "run.dir=run"]) == 2
    assert "bare has no features x" in capsys.readouterr().err
    assert not (here / "run").exists()


def test_a_yaml_of_its_package_sets_its_own_keys(tmp_path: Path) -> None:
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    text = "defaults: [_published, _self_]\nname: ring\nto_undirected: true\n"
    (tmp_path / "conf" / "dataset" / "both_ways.yaml").write_text(text)
    config = compose_config(["dataset=both_ways"], [tmp_path / "conf"])
    assert config.dataset == BuiltinConfig(name="ring", to_undirected=True)


def test_it_is_listed_and_offered_where_a_name_is_wrong() -> None:
    assert {row[0] for row in dataset_rows([])} >= {"cora", "ring", "rings"}
    with pytest.raises(ConfigError, match="rings"):
        from_dict({"dataset": {"name": "wrings"}})


def test_a_package_that_fails_or_has_gone_is_a_users_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BuiltinConfig(name="broken", store_dir=str(tmp_path))
    with pytest.raises(UserError, match="no such thing"):
        prepare_store(config)
    offer(monkeypatch, [])
    saved = from_dict({"dataset": {"name": "ring"}}, saved=True)
    assert saved.dataset.name == "ring"
    with pytest.raises(UserError, match="no installed package offers"):
        prepare_store(saved.dataset)
