"""The Optuna search, without training anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import optuna
import pytest

from gnntrain.app import Composed
from gnntrain.config import Config, OptunaSweepConfig
from gnntrain.reporting.trials import Trial
from gnntrain.search_space import Choices, Dimension, Interval
from gnntrain.sweep.folder import SweepFolder
from gnntrain.sweep.search import Search

SPACE: Sequence[Dimension] = (
    Interval("trainer.lr", 1e-4, 1e-1, log=True),
    Choices("model.hidden_channels", ("16", "32")),
)
BEST_LR = 3e-3


@pytest.fixture
def _composed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "gnntrain.sweep.search.compose_config",
        lambda overrides, _dirs: Composed(Config(), overrides, ""),
    )


def search(
    folder: Path, begun: Sequence[Trial] = (), space: Sequence[Dimension] = SPACE, **keys: object
) -> Search:
    config = OptunaSweepConfig.model_validate({"name": "optuna", **keys})
    return Search(config, space, ["trainer.epochs=20"], [], SweepFolder(folder), begun)


def value_of(trial: Trial) -> float:
    """The better, the nearer its learning rate is to the best one."""
    return 1 - abs(math.log10(float(trial.values["trainer.lr"]) / BEST_LR)) / 4


def train_one(source: Search, epochs: int = 20) -> Trial | None:
    """The next trial, whose metric grows towards its value; None: there is none."""
    task = source.next()
    if task is None:
        return None
    trial, _ = task
    trial.status, trial.metric = "running", "accuracy"
    for epoch in range(1, epochs + 1):
        value = value_of(trial) * (1 - 0.5**epoch)
        if source.is_hopeless(trial, epoch, 20, value):
            trial.status = "pruned"
            break
    trial.status = "completed" if trial.status == "running" else trial.status
    trial.val = value_of(trial)
    source.note_end(trial)
    return trial


def train_all(source: Search) -> list[Trial]:
    while train_one(source) is not None:
        pass
    return source.trials


@pytest.mark.usefixtures("_composed_at_once")
def test_a_search_has_as_many_trials_as_asked_with_values_of_its_space(tmp_path: Path) -> None:
    trials = train_all(search(tmp_path, seed=1))
    assert len(trials) == 20
    for trial in trials:
        assert trial.overrides == ["trainer.epochs=20", *trial.varied]
        assert 1e-4 <= float(trial.values["trainer.lr"]) <= 1e-1
        assert trial.values["model.hidden_channels"] in ("16", "32")


@pytest.mark.usefixtures("_composed_at_once")
def test_tpe_comes_nearer_to_the_best_than_it_began(tmp_path: Path) -> None:
    trials = train_all(search(tmp_path, pruner="none"))
    assert max(map(value_of, trials[10:])) > 0.95
    mean = [sum(map(value_of, part)) / 10 for part in (trials[:10], trials[10:])]
    assert mean[1] > mean[0]


@pytest.mark.usefixtures("_composed_at_once")
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_search_that_is_gone_on_with_draws_what_it_would_have_drawn(
    sampler: str, tmp_path: Path
) -> None:
    for name in ("whole", "half"):
        (tmp_path / name).mkdir()
    whole = train_all(search(tmp_path / "whole", sampler=sampler))
    source = search(tmp_path / "half", sampler=sampler)
    for _ in range(11):
        train_one(source)
    task = source.next()  # and here the sweep is interrupted
    assert task is not None
    task[0].status = "interrupted"
    source.note_end(task[0])
    again = search(tmp_path / "half", source.trials, sampler=sampler)
    assert [t.varied for t in train_all(again)] == [t.varied for t in whole]
    assert [t.status for t in again.trials] == [t.status for t in whole]


@pytest.mark.usefixtures("_composed_at_once")
def test_a_search_can_be_made_longer(tmp_path: Path) -> None:
    trials = train_all(search(tmp_path, space=SPACE[:1], trials=2))
    assert len(train_all(search(tmp_path, trials, SPACE[:1], trials=5))) == 5


@pytest.mark.usefixtures("_composed_at_once")
def test_a_trial_below_the_median_is_pruned_neither_at_once_nor_at_the_end(tmp_path: Path) -> None:
    source = search(tmp_path, space=[Interval("trainer.lr", 1e-3, 1e-2)])
    for _ in range(6):
        train_one(source)
    task = source.next()
    assert task is not None
    task[0].metric = "accuracy"
    told = [source.is_hopeless(task[0], epoch, 20, 0.0) for epoch in range(1, 21)]
    assert told == [False, False, *[True] * 17, False]


@pytest.mark.usefixtures("_composed_at_once")
def test_epochs_without_a_value_decide_nothing(tmp_path: Path) -> None:
    source = search(tmp_path)
    for _ in range(6):
        train_one(source)
    task = source.next()
    assert task is not None
    task[0].metric = "accuracy"
    assert not source.is_hopeless(task[0], 10, 20, None)
    assert not source.is_hopeless(task[0], 10, 20, math.nan)


@pytest.mark.usefixtures("_composed_at_once")
def test_optunas_own_tools_find_what_has_ended(tmp_path: Path) -> None:
    source = search(tmp_path, trials=3)
    train_one(source)
    task = source.next()
    assert task is not None
    task[0].status, task[0].error = "failed", "out of memory"
    source.note_end(task[0])
    source.next()  # is being trained
    study = optuna.load_study(study_name="gnntrain", storage=f"sqlite:///{tmp_path / 'optuna.db'}")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL"]
    assert study.best_trial.params["trainer.lr"] == float(source.trials[0].values["trainer.lr"])
    assert study.best_trial.user_attrs["run_dir"] == source.trials[0].run_dir
    assert len(study.best_trial.intermediate_values) == 20


def test_values_that_do_not_go_together_fail_and_the_search_goes_on(tmp_path: Path) -> None:
    # Five heads do not divide 16 channels.
    space = [Choices("model.heads", ("4", "5"))]
    config = OptunaSweepConfig(trials=6)
    fixed = ["model=gat", "model.hidden_channels=16"]
    source = Search(config, space, fixed, [], SweepFolder(tmp_path))
    asked = []
    while (task := source.next()) is not None:
        asked.append(task[0].values["model.heads"])
        task[0].status, task[0].val = "completed", 0.5
        source.note_end(task[0])
    failed = [trial for trial in source.trials if trial.status == "failed"]
    assert set(asked) == {"4"}
    assert len(failed) + len(asked) == 6
    assert failed
    assert all("a divisor of model.hidden_channels=16" in str(trial.error) for trial in failed)


def test_folder_names_are_short(tmp_path: Path) -> None:
    source = search(tmp_path, space=SPACE[:1])
    task = source.next()
    assert task is not None
    name = Path(task[0].run_dir).name
    assert name.startswith("00_trainer.lr=0.")
    assert len(name) <= len("00_trainer.lr=0.0001234")
