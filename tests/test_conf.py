"""Every YAML file in `conf/`: it composes, agrees with the schema, and explains each key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

from gnntrain.app import compose_config
from gnntrain.config import (
    DATASET_NAMES,
    Config,
    ConfigError,
    FileLoggerConfig,
    FilesConfig,
    MLflowConfig,
    PluginConfig,
    WandBConfig,
    from_dict,
    model_names,
)
from gnntrain.config.published import PUBLISHED
from gnntrain.config.types import Section
from gnntrain.groups import GROUPS, conf_dir, config_groups
from tests import packages

# The files of conf/hydra/ are Hydra's and Python's to explain.
FILES = sorted(
    file for file in conf_dir().rglob("*.yaml") if "hydra" not in file.relative_to(conf_dir()).parts
)
CHOICES = [
    (group, option)
    for group, options in config_groups().items()
    for option in options
    if (group, option) not in (("dataset", "files"), ("model", "plugin"))
]
LOGGERS: dict[str, Section] = {
    **dict.fromkeys(("jsonl", "csv", "tensorboard"), FileLoggerConfig()),
    "wandb": WandBConfig(),
    "mlflow": MLflowConfig(),
}
KEY = re.compile(r"^ *(?:- )?(?P<key>[\w-]+):")


@pytest.fixture(autouse=True)
def _trackers_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnntrain.config.checks.find_spec", lambda name: name)


def keys_with_comments(file: Path) -> Iterator[tuple[str, bool]]:
    """Every key of a YAML file, and whether a comment stands beside or above it."""
    above = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if match := KEY.match(line):
            yield match["key"], above.lstrip().startswith("#") or " # " in line
        above = line


def files_of(group: str, option: str) -> list[Path]:
    """A group's option and what it inherits from, the bases first."""
    file = conf_dir() / group / f"{option}.yaml"
    bases = yaml.safe_load(file.read_text()).get("defaults", ["_self_"])
    assert bases.pop() == "_self_", file
    return [*(base for name in bases for base in files_of(group, name)), file]


def keys_of(group: str, option: str) -> dict[str, object]:
    """The keys of an option, inherited ones included, with their values."""
    found: dict[str, object] = {}
    for file in files_of(group, option):
        found |= yaml.safe_load(file.read_text())
    found.pop("defaults", None)
    return found


@pytest.mark.parametrize(
    ("group", "option"),
    [
        pytest.param(file.parent.name, file.stem, id=f"{file.parent.name}/{file.stem}")
        for file in FILES
        if file.parent.name in GROUPS and file.parent.name != "experiment"
    ],
)
def test_every_key_has_a_comment_where_it_stands_or_where_it_is_inherited_from(
    group: str, option: str
) -> None:
    said: set[str] = {"defaults", "name", option} if group != "run" else {"defaults"}
    for file in files_of(group, option):
        keys = list(keys_with_comments(file))
        said |= {key for key, has_comment in keys if has_comment}
        assert {key for key, _ in keys} <= said


def test_every_key_of_the_composition_has_a_comment() -> None:
    keys = list(keys_with_comments(conf_dir() / "config.yaml"))
    hydra = [key for key, _ in keys].index("hydra")  # below it are Hydra's own
    assert [key for key, has_comment in keys[: hydra + 1] if not has_comment] == []


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


def test_a_base_file_is_no_option() -> None:
    bases = [file for file in FILES if file.stem.startswith("_")]
    assert "_layered" in {file.stem for file in bases}
    for file in bases:
        assert file.stem not in config_groups()[file.parent.name]
        with pytest.raises(ConfigError) as caught:
            compose_config([f"{file.parent.name}={file.stem}"])
        assert [problem.key for problem in caught.value.problems] == [file.parent.name]


def test_a_users_file_may_inherit_from_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "wide.yaml").write_text("defaults: [gat, _self_]\nhidden_channels: 512\n")
    model = compose_config(["model=wide"], [tmp_path]).config.to_dict()["model"]
    assert model == compose_config(["model=gat"]).config.to_dict()["model"] | {
        "hidden_channels": 512
    }


def test_a_users_base_may_not_hide_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "_layered.yaml").write_text("dropout: 0.1\n")
    with pytest.raises(ConfigError, match="_layered"):
        compose_config([], [tmp_path])


def test_every_data_set_and_model_has_a_file() -> None:
    groups = config_groups()
    assert groups["dataset"] == sorted(DATASET_NAMES)
    assert groups["model"] == sorted([*model_names(), PluginConfig().name])
    assert groups["logger"] == sorted(LOGGERS)


def test_the_five_tutorials_and_the_two_benchmarks_have_recipes() -> None:
    assert set(config_groups()["experiment"]) >= {
        "reddit_mean_full",
        "reddit_mean",
        "reddit_sage_concat",
        "arxiv_sage",
        "reddit_sage",
        "papers100m_gcn",
        "arxiv_sage3",
        "products_sage3",
        "cora_gcn",
        "cora_gat",
        "cora_sage",
        "tolokers_sage",
        "tolokers_gat",
        "tolokers_gcn",
        "county_income",
        "county_unemployment",
    }


@pytest.mark.parametrize(("group", "option"), CHOICES)
def test_every_option_composes(group: str, option: str, county: list[str]) -> None:
    compose_config([f"{group}={option}", *county * option.startswith("county_")])


@pytest.fixture
def county(tmp_path: Path) -> list[str]:
    """Where the files of the recipes on tables lie."""
    for name in ("nodes.csv", "edges.csv"):
        (tmp_path / name).touch()
    return [f"dataset.root={tmp_path}"]


def test_a_recipe_on_tables_reads_them_below_the_root(tmp_path: Path, county: list[str]) -> None:
    dataset = compose_config(["experiment=county_income", *county]).config.dataset
    assert isinstance(dataset, FilesConfig)
    assert dataset.features == str(tmp_path / "nodes.csv")
    assert dataset.edges == str(tmp_path / "edges.csv")
    elsewhere = tmp_path / "elsewhere.csv"
    elsewhere.touch()
    more = [f"dataset.edges={elsewhere}"]
    config = compose_config(["experiment=county_income", *county, *more]).config
    assert isinstance(config.dataset, FilesConfig)
    assert config.dataset.edges == str(elsewhere)
    assert from_dict(config.to_dict(), saved=True) == config


def test_a_recipe_on_tables_without_a_root_says_what_to_set() -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config(["experiment=county_income"])
    problems = {problem.key: problem.hint or "" for problem in caught.value.problems}
    assert set(problems) == {"dataset.features", "dataset.edges"}
    assert all("dataset.root" in hint for hint in problems.values())


def test_the_default_files_are_the_default_configuration() -> None:
    assert compose_config([]).config == Config()


@pytest.mark.parametrize(
    ("group", "option"),
    [choice for choice in CHOICES if choice[0] not in ("experiment", "logger")],
)
def test_the_files_and_the_schema_have_the_same_defaults(group: str, option: str) -> None:
    given = {} if option == "default" else {"name": option}
    raw = keys_of(group, option)
    section = from_dict({group: given}).to_dict()[group]
    if (group, option) == ("sampler", "full"):
        section = {"name": "full"}  # the other keys say how to draw, and nothing is drawn
    assert raw == section


def test_a_plug_in_and_files_compose_once_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry_points = "[gnntrain.models]\nmine = conf_model:Mine\n"
    packages.install(tmp_path / "site", monkeypatch, "conf_model", "", entry_points)
    for name in ("edges.csv", "features.csv"):
        (tmp_path / name).touch()
    config = compose_config(
        [
            "model=plugin",
            "model.name=mine",
            "model.options.depth=3",
            "dataset=files",
            f"dataset.edges={tmp_path}/edges.csv",
            f"dataset.features={tmp_path}/features.csv",
        ]
    ).config
    assert config.model == PluginConfig(name="mine", options={"depth": 3})


def test_the_files_of_a_plug_in_and_of_own_files_have_the_schemas_defaults() -> None:
    assert keys_of("dataset", "files") == FilesConfig().model_dump(mode="json")
    assert keys_of("model", "plugin") == PluginConfig().model_dump(mode="json")


@pytest.mark.parametrize("option", sorted(LOGGERS))
def test_a_logger_file_holds_its_options(option: str) -> None:
    raw = yaml.safe_load((conf_dir() / "logger" / f"{option}.yaml").read_text())
    assert raw == {option: LOGGERS[option].model_dump(mode="json")}
