"""The keys of a model are read from its source; nothing of it is run."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from gnntrain.config import Config, ConfigError, ModelConfig, PluginConfig, from_dict
from gnntrain.config.models import model_names, model_section
from tests import packages
from tests.processes import python


def test_no_model_is_imported_to_judge_a_configuration() -> None:
    code = (
        "import sys; from gnntrain.config import from_dict, model_names\n"
        "for name in model_names(): from_dict({'model': {'name': name}})\n"
        "assert 'torch' not in sys.modules and 'gnntrain.models' not in sys.modules"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of an installed package."""
    entry_points = "[gnntrain.models]\ntheirs = their_model:Theirs\n"
    packages.install(tmp_path, monkeypatch, "their_model", "", entry_points)


@pytest.mark.usefixtures("theirs")
def test_the_name_decides_which_keys_a_model_has() -> None:
    gat = ModelConfig(name="gat", heads=4)
    assert type(gat) is model_section("gat")
    assert gat == from_dict({"model": {"name": "gat", "heads": 4}}).model
    assert type(ModelConfig()) is model_section("sage")
    assert ModelConfig(name="theirs", options={"depth": 3}) == PluginConfig(
        name="theirs", options={"depth": 3}
    )
    for wrong in (
        {"name": "gcn", "heads": 4},
        {"name": "gat", "heads": 0},
        {"heads": 4},
        {"name": "gta"},
    ):
        with pytest.raises(ConfigError):
            ModelConfig(**wrong)


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("name", [*model_names(), "theirs"])
def test_a_models_section_is_copied_and_pickled(name: str) -> None:
    section = ModelConfig(name=name, num_layers=3)
    for again in (
        pickle.loads(pickle.dumps(section)),
        copy.deepcopy(section),
        section.model_copy(),
    ):
        assert again == section
        assert type(again) is type(section)


def test_a_run_from_before_a_key_was_there_keeps_what_it_did() -> None:
    """R-GCN had embeddings only; a file of a user's own, read alike, has today's defaults."""
    own: dict[str, Any] = {"name": "rgcn", "num_bases": 2}
    saved = ModelConfig(**own).model_dump()
    del saved["featureless"]
    for keys, expected in ((saved, "embedding"), (own, "one_hot")):
        model: Any = from_dict({"model": keys}, saved=True).model
        assert model.featureless == expected
    model = from_dict({"model": saved}).model
    assert model.featureless == "one_hot"


def test_a_saved_name_may_be_that_of_a_plug_in_that_has_gone() -> None:
    raw: dict[str, Any] = {"sampler": {"backend": "theirs"}}
    assert from_dict(raw, saved=True).sampler.backend == "theirs"
    with pytest.raises(ConfigError, match="auto, numba, triton, pyg"):
        from_dict(raw)
    assert Config().sampler.backend == "auto"
