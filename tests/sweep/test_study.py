"""The study that trials come from, without training anything."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from gnntrain.config import Config, SweepConfig
from gnntrain.reporting.trials import Trial
from gnntrain.sweep.folder import SweepFolder
from gnntrain.sweep.plan import SweepPlan
from gnntrain.sweep.runner import TrialQueue
from gnntrain.sweep.search_space import Space
from gnntrain.sweep.study import Study
from tests.reporting.samples import record_with_val

LR = FloatDistribution(1e-4, 1e-1, log=True)
SPACE: Space = {"trainer.lr": LR, "model.hidden_channels": CategoricalDistribution(["16", "32"])}
BEST_LR = 3e-3


def plan_of(space: Space, fixed: Sequence[str], **keys: object) -> SweepPlan:
    config = SweepConfig.model_validate({"name": "optuna", **keys})
    return SweepPlan(Config(sweep=config), fixed, space=space)


def search(
    folder: Path, begun: Sequence[Trial] = (), space: Space = SPACE, **keys: object
) -> Study:
    plan = plan_of(space, ["trainer.epochs=20"], **keys)
    return Study(begun, SweepFolder(folder), plan, "accuracy")


def grid(folder: Path, *values: str) -> TrialQueue:
    trials = [
        Trial(number, [f"trainer.lr={text}"], str(folder / text), varied=[f"trainer.lr={text}"])
        for number, text in enumerate(values)
    ]
    return TrialQueue(trials)


def optunas(folder: Path) -> optuna.Study:
    """The study as Optuna's own tools read it."""
    storage = JournalStorage(JournalFileBackend(str(folder / "optuna.journal")))
    return optuna.load_study(study_name="gnntrain", storage=storage)


def value_of(trial: Trial) -> float:
    """The better, the nearer its learning rate is to the best one."""
    return 1 - abs(math.log10(float(trial.values["trainer.lr"]) / BEST_LR)) / 4


def begun(source: TrialQueue) -> Trial:
    """The next trial, which there is."""
    trial = source.next()
    assert trial is not None
    trial.metric = "accuracy"
    return trial


def train_one(source: TrialQueue, epochs: int = 20) -> Trial | None:
    """The next trial, whose metric grows towards its value; None: there is none."""
    trial = source.next()
    if trial is None:
        return None
    trial.status, trial.metric = "running", "accuracy"
    Path(trial.run_dir).mkdir(exist_ok=True)
    with (Path(trial.run_dir) / "metrics.jsonl").open("w") as file:
        for epoch in range(1, epochs + 1):
            value = value_of(trial) * (1 - 0.5**epoch)
            file.write(json.dumps(record_with_val(epoch, value).to_dict()) + "\n")
            if source.should_prune(trial, epoch, 20, value):
                trial.status = "pruned"
                break
    trial.status = "completed" if trial.status == "running" else trial.status
    trial.val = value_of(trial)
    source.tell(trial)
    return trial


def train_all(source: TrialQueue) -> list[Trial]:
    while train_one(source) is not None:
        pass
    return source.trials


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_searches_of_two_seeds_share_no_trial(sampler: str, tmp_path: Path) -> None:
    drawn = []
    for seed in (0, 1, 2):
        (tmp_path / str(seed)).mkdir()
        trials = train_all(search(tmp_path / str(seed), seed=seed, sampler=sampler, trials=5))
        drawn += [trial.values["trainer.lr"] for trial in trials]
    assert len(set(drawn)) == 15


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_tpe_alone_learns_from_the_trials_so_far(sampler: str, tmp_path: Path) -> None:
    """Of opposite values the draws after the first ten differ."""
    drawn = []
    for sign in (1, -1):
        (tmp_path / str(sign)).mkdir()
        space: Space = {"trainer.lr": LR}
        source = search(tmp_path / str(sign), space=space, sampler=sampler, trials=14)
        for _ in range(14):
            trial = begun(source)
            lr = float(trial.values["trainer.lr"])
            trial.status, trial.val = "completed", sign * math.log10(lr)
            source.tell(trial)
        drawn.append([trial.values["trainer.lr"] for trial in source.trials])
    assert drawn[0][:10] == drawn[1][:10]
    assert (drawn[0] == drawn[1]) == (sampler == "random")


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
    trial = begun(source)  # and here the sweep is interrupted
    trial.status = "interrupted"
    source.tell(trial)
    again = search(tmp_path / "half", source.trials, sampler=sampler)
    assert [t.varied for t in train_all(again)] == [t.varied for t in whole]
    assert [t.status for t in again.trials] == [t.status for t in whole]


def test_a_trial_below_the_median_is_pruned_neither_at_once_nor_at_the_end(tmp_path: Path) -> None:
    source = search(tmp_path, space={"trainer.lr": FloatDistribution(1e-3, 1e-2)})
    for _ in range(6):
        train_one(source)
    trial = begun(source)
    told = [source.should_prune(trial, epoch, 20, 0.0) for epoch in range(1, 21)]
    assert told == [False, False, *[True] * 17, False]
    # An epoch without a value decides nothing.
    assert not any(source.should_prune(trial, 10, 20, value) for value in (None, math.nan))


def test_a_search_for_the_least_error_prunes_larger_ones(tmp_path: Path) -> None:
    plan = plan_of({"trainer.lr": LR}, [], trials=9)
    source = Study([], SweepFolder(tmp_path), plan, "rmse")
    for number in range(6):
        trial = begun(source)
        assert not any(source.should_prune(trial, epoch, 20, 0.5) for epoch in range(1, 21))
        trial.status, trial.val = "completed", 0.5 - 0.01 * number
        source.tell(trial)
    for value, is_hopeless in ((0.4, False), (0.6, True)):
        trial = begun(source)
        assert source.should_prune(trial, 10, 20, value) is is_hopeless
    assert optunas(tmp_path).direction.name == "MINIMIZE"
    assert optunas(tmp_path).best_value == 0.45


def test_optunas_own_tools_find_the_trials(tmp_path: Path) -> None:
    source = search(tmp_path, trials=3)
    train_one(source)
    trial = begun(source)
    trial.status, trial.error = "failed", "out of memory"
    source.tell(trial)
    source.next()  # is being trained
    study = optunas(tmp_path)
    assert study.direction.name == "MAXIMIZE"
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "RUNNING"]
    assert study.best_trial.params["trainer.lr"] == float(source.trials[0].values["trainer.lr"])
    assert study.best_trial.user_attrs["run_dir"] == Path(source.trials[0].run_dir).name
    assert len(study.best_trial.intermediate_values) == 20


def test_a_grid_tries_failed_trials_again_and_a_search_does_not(tmp_path: Path) -> None:
    trials = grid(tmp_path, "0.01", "0.02", "0.03").trials
    for trial, status in zip(trials, ("completed", "failed", "interrupted"), strict=True):
        trial.status = status
    study = TrialQueue(trials)
    assert len(study.ended) == 1
    assert [trial.number for trial in iter(study.next, None)] == [1, 2]
    again = search(tmp_path, trials, {"trainer.lr": LR}, trials=3)
    assert len(again.ended) == 2
    assert [trial.number for trial in iter(again.next, None)] == [2]
