"""Sections made in Python: what is wrong is told as on the command line; copies with changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest

from gnntrain.config import (
    BuiltinConfig,
    Config,
    ConfigError,
    FilesConfig,
    ModelConfig,
    SamplerConfig,
    TaskConfig,
    TrainerConfig,
    from_dict,
)
from gnntrain.errors import UserError


@pytest.mark.parametrize(
    ("make", "keys"),
    [
        (lambda: TrainerConfig(lr=-1), ["TrainerConfig.lr"]),
        (
            lambda: TrainerConfig(lr="x", epochs=2.0, gpus=-1),  # type: ignore[arg-type]
            ["TrainerConfig.epochs", "TrainerConfig.gpus", "TrainerConfig.lr"],
        ),
        (lambda: ModelConfig(name="gat", heads=0), ["ModelConfig.heads"]),
        (lambda: ModelConfig(name="gat", heds=1), ["ModelConfig.heds"]),
        (lambda: BuiltinConfig(name="coro"), ["BuiltinConfig.name"]),
        (lambda: FilesConfig(split_ratio=(1, 1, 1)), ["FilesConfig.split_ratio"]),
        (lambda: Config(trainer={"lr": -1}), ["trainer.lr"]),  # type: ignore[arg-type]
        (lambda: Config(trainer=7), ["trainer"]),  # type: ignore[arg-type]
        (lambda: Config(dataset=3), ["dataset"]),  # type: ignore[arg-type]
    ],
)
def test_every_wrong_argument_is_named_in_one_error(
    make: Callable[[], object], keys: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert isinstance(caught.value, UserError)
    assert sorted(problem.key for problem in caught.value.problems) == keys
    assert all(problem.expected for problem in caught.value.problems)


def test_a_changed_copy_keeps_the_other_keys() -> None:
    config = Config(trainer=TrainerConfig(epochs=7), model=ModelConfig(name="gat", heads=4))
    other = config.changed(trainer={"lr": 0.5}, model={"hidden_channels": 64})
    assert (config.trainer.lr, other.trainer.lr, other.trainer.epochs) == (0.01, 0.5, 7)
    assert (other.model.name, dict(other.model)["heads"]) == ("gat", 4)
    assert config.changed(model=ModelConfig(name="gcn")).model.name == "gcn"
    assert TrainerConfig().changed(lr=0.5) == TrainerConfig(lr=0.5)
    tracked = config.changed(logger={"wandb": {"project": "a"}})
    assert tracked.logger.chosen() == {"jsonl": {}, "wandb": {"project": "a"}}


def test_a_changed_copy_is_judged() -> None:
    with pytest.raises(ConfigError) as caught:
        Config().changed(trainer={"lr": -1, "epoch": 3})
    assert {problem.key for problem in caught.value.problems} == {"trainer.lr", "trainer.epoch"}
    files = Config(dataset=FilesConfig()).changed(task=TaskConfig(type="node_regression"))
    assert isinstance(files.dataset, FilesConfig)
    assert files.dataset.task == "regression"


def test_paths_may_be_objects_of_any_class(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    keys: Any = {"root": tmp_path, "features": "nodes.csv", "edges": PurePath(path)}
    config = FilesConfig(**keys, labels="~/labels.csv")
    assert config.features == str(path)
    assert config.labels == str(Path.home() / "labels.csv")
    assert config.model_dump(mode="json")["edges"] == str(path)


def test_numbers_of_numpy_are_numbers() -> None:
    three: Any = np.int64(3)
    yes: Any = np.bool_(True)
    fan_outs: Any = np.array([3, 2])
    given = TrainerConfig(epochs=three, lr=np.float64(0.5), drop_last=yes)
    assert given == TrainerConfig(epochs=3, lr=0.5, drop_last=True)
    assert SamplerConfig(fan_outs=fan_outs).fan_outs == (3, 2)
    assert given.changed(epochs=np.int32(4)).epochs == 4
    assert from_dict({"trainer": {"epochs": np.int64(3)}}).trainer.epochs == 3
    with pytest.raises(ConfigError, match="an integer"):
        given.changed(epochs=np.float64(1.5))
