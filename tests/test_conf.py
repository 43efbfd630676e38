"""Every YAML file in `conf/`: it composes, and repeats nothing that the schema says."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from omegaconf import OmegaConf

from gnntrain.app import Sources, compose_config
from gnntrain.config import (
    DATASET_NAMES,
    Config,
    ConfigError,
    FilesConfig,
    LoggerConfig,
    PluginConfig,
    from_dict,
    model_names,
)
from gnntrain.config.published import PUBLISHED
from gnntrain.groups import conf_dir, config_groups

# The files of conf/hydra/ are Hydra's and Python's to explain.
FILES = sorted(
    file for file in conf_dir().rglob("*.yaml") if "hydra" not in file.relative_to(conf_dir()).parts
)


@pytest.fixture(autouse=True)
def _trackers_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnntrain.config.checks.find_spec", lambda name: name)


@pytest.mark.parametrize("option", config_groups()["experiment"])
def test_a_recipe_says_what_it_is(option: str) -> None:
    first, second, *_ = (conf_dir() / "experiment" / f"{option}.yaml").read_text().splitlines()
    assert first == "# @package _global_"
    assert second.startswith("# ")


def test_a_published_data_sets_file_says_what_it_is_and_holds_what_is_its_own() -> None:
    for name, published in PUBLISHED.items():
        file = conf_dir() / "dataset" / f"{name}.yaml"
        assert file.read_text().startswith("# ")
        raw = yaml.safe_load(file.read_text())
        assert raw == {"defaults": ["_published", "_self_"], "name": name, **published.defaults}


def test_a_users_file_may_inherit_from_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "wide.yaml").write_text("defaults: [gat, _self_]\nhidden_channels: 512\n")
    model = compose_config(["model=wide"], [tmp_path]).to_dict()["model"]
    assert model == compose_config(["model=gat"]).to_dict()["model"] | {"hidden_channels": 512}


def test_every_data_set_and_model_has_a_file() -> None:
    groups = config_groups()
    assert groups["dataset"] == sorted(DATASET_NAMES)
    assert groups["model"] == sorted([*model_names(), PluginConfig().name])
    assert groups["logger"] == sorted(LoggerConfig.model_fields)


def test_the_five_tutorials_and_the_two_benchmarks_have_recipes() -> None:
    assert set(config_groups()["experiment"]) >= {
        *("reddit_mean_full", "reddit_mean", "reddit_sage_concat", "arxiv_sage", "reddit_sage"),
        *("papers100m_gcn", "arxiv_sage3", "products_sage3", "cora_gcn", "cora_gat", "cora_sage"),
        *("tolokers_sage", "tolokers_gat", "tolokers_gcn", "county_income", "county_unemployment"),
    }


@pytest.mark.parametrize("option", config_groups()["experiment"])
def test_every_recipe_composes(option: str, county: list[str]) -> None:
    compose_config([f"experiment={option}", *county * option.startswith("county_")])


def test_options_have_the_schemas_keys_and_defaults() -> None:
    options = {
        group: [f"{group}={name}" for name in names if name not in ("files", "plugin")]
        for group, names in config_groups().items()
        if group not in ("experiment", "logger")
    }
    for chosen in zip_longest(*options.values()):  # one option of each group at a time
        keys = [key for key in chosen if key is not None]
        composed: Any = OmegaConf.to_container(Sources().compose_files(keys))
        for group, option in (key.split("=") for key in keys):
            given = {} if option == "default" else {"name": option}
            section = from_dict({group: given}).to_dict()[group]
            if (group, option) == ("sampler", "full"):
                section = {"name": "full"}  # the others say how to draw, and nothing is drawn
            assert composed[group] == section, option


@pytest.fixture
def county(tmp_path: Path) -> list[str]:
    """Where the files of the recipes on tables lie."""
    for name in ("nodes.csv", "edges.csv"):
        (tmp_path / name).touch()
    return [f"dataset.root={tmp_path}"]


def test_a_recipe_on_tables_reads_them_below_the_root(tmp_path: Path, county: list[str]) -> None:
    dataset = compose_config(["experiment=county_income", *county]).dataset
    assert isinstance(dataset, FilesConfig)
    assert dataset.features == str(tmp_path / "nodes.csv")
    assert dataset.edges == str(tmp_path / "edges.csv")
    elsewhere = tmp_path / "elsewhere.csv"
    elsewhere.touch()
    more = [f"dataset.edges={elsewhere}"]
    config = compose_config(["experiment=county_income", *county, *more])
    assert isinstance(config.dataset, FilesConfig)
    assert config.dataset.edges == str(elsewhere)
    assert from_dict(config.to_dict(), saved=True) == config


def test_a_recipe_on_tables_without_a_root_says_what_to_set() -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config(["experiment=county_income"])
    problems = {problem.key: problem.hint or "" for problem in caught.value.problems}
    assert set(problems) == {"dataset.features", "dataset.edges"}
    assert all("dataset.root" in hint for hint in problems.values())


def test_recipes_loggers_and_published_data_sets_alone_set_keys() -> None:
    for file in FILES:
        if file.parent.name not in ("experiment", "logger", "conf") and file.stem not in PUBLISHED:
            assert yaml.safe_load(file.read_text()).keys() <= {"defaults", "name"}, file


def test_the_default_files_are_the_default_configuration() -> None:
    assert compose_config([]) == Config()
