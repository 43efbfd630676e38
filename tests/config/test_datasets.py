"""Data sets by name: their own defaults, and the names that a user's own may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnntrain.config import BuiltinConfig, ConfigError, FilesConfig, SyntheticConfig, from_dict
from tests.config.problems import problems_of


def test_the_presets_have_the_exact_shapes() -> None:
    keys = ("nodes", "edges", "features", "classes", "train", "val", "test")
    for name, shape in {
        "reddit": (232965, 114615892, 602, 41, 153431, 23831, 55703),
        "products": (2449029, 123718280, 100, 47, 196615, 39323, 2213091),
    }.items():
        preset = SyntheticConfig(name=f"synthetic_{name}")  # type: ignore[arg-type]
        assert tuple(getattr(preset, f"num_{key}") for key in keys) == shape


def test_a_data_set_has_its_own_defaults_which_may_be_changed() -> None:
    assert BuiltinConfig(name="ogbn-arxiv").to_undirected
    assert not BuiltinConfig(name="ogbn-products").to_undirected
    assert not BuiltinConfig(name="ogbn-arxiv", to_undirected=False).to_undirected


@pytest.mark.parametrize("name", ["county", "a/b c", "größe", 2020])
def test_a_users_own_files_have_any_name(name: object) -> None:
    dataset = from_dict({"dataset": {"name": name, "edges": "gone"}}, saved=True).dataset
    assert isinstance(dataset, FilesConfig)
    assert (dataset.name, dataset.option) == (str(name), "files")
    assert not dataset.to_undirected


@pytest.mark.parametrize("name", ["ogbn-arxiv", "synthetic", "two\nlines", ""])
def test_a_users_own_files_take_no_name_of_another_data_set(name: str) -> None:
    with pytest.raises(ConfigError):
        FilesConfig(name=name)
    assert problems_of({"dataset": {"name": name, "edges": "a", "features": "b"}})


def test_paths_are_absolute(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    config = from_dict({"dataset": {"root": "raw", "store_dir": "~/stores"}})
    assert config.dataset.root == str(here / "raw")
    assert config.dataset.store_dir == "/home/user/stores"
