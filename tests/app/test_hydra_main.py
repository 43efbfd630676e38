"""Training by Hydra's own main: flags, keys, launchers, sweepers, callbacks."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from gnntrain.app import Sources, compose_config
from gnntrain.cli import main
from gnntrain.errors import UserError
from gnntrain.groups import conf_dir
from gnntrain.reporting.trials import SweepResults
from gnntrain.sweep.plan import check_sweep
from tests.outcomes.test_cli import FakeRun, run
from tests.packages import install
from tests.processes import python

__all__ = ["run"]  # the fixture

SMALL = ["dataset.num_nodes=300", "trainer.epochs=1", "trainer.gpus=0"]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Hydra sets levels and handlers of the whole process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers = handlers


def folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir())


def test_a_run_has_hydras_directory_and_no_key_of_hydras(run: FakeRun, tmp_path: Path) -> None:
    assert main([]) == 0
    ((config, overrides),) = run.asked
    (place,) = run.places
    assert place is not None
    assert place.is_made_up
    assert place.path.parent == tmp_path / "runs"
    assert place.path.name.startswith("synthetic-sage-")
    assert (config.run.dir, overrides) == (None, [])


def test_runs_that_start_in_one_second_have_directories_of_their_own(run: FakeRun) -> None:
    assert main([]) == main([]) == 0
    assert len({place.path for place in run.places if place is not None}) == 2


@pytest.mark.parametrize(
    ("typed", "path"),
    [
        (["run.dir=a"], "a"),
        (["run.name=a"], "runs/a"),
        (["hydra.run.dir=b/${hydra.job.override_dirname}", "trainer.lr=1"], "b/trainer.lr=1"),
        (["run.dir=a", "hydra.run.dir=b"], "b"),
        (["hydra.run.dir=~/b"], "~/b"),
        (["hydra.job.chdir=true", "run.dir=a"], "a"),
    ],
)
def test_run_dir_run_name_and_hydra_run_dir_agree(
    typed: list[str], path: str, run: FakeRun, tmp_path: Path
) -> None:
    assert main(typed) == 0
    (place,) = run.places
    assert place is not None
    assert (place.path, place.is_made_up) == (tmp_path / path, False)


def test_relative_paths_start_where_the_command_was_typed(run: FakeRun, tmp_path: Path) -> None:
    assert main(["hydra.job.chdir=true", "dataset.root=raw"]) == 0
    assert run.asked[0][0].dataset.root == str(tmp_path / "raw")
    assert Path.cwd() == tmp_path


def test_output_subdir_and_job_name_are_hydras(run: FakeRun, tmp_path: Path) -> None:
    assert main(["hydra.output_subdir=.hydra", "hydra.job.name=mine", "run.dir=a"]) == 0
    saved = yaml.safe_load((tmp_path / "a" / ".hydra" / "hydra.yaml").read_text())
    assert saved["hydra"]["job"]["name"] == "mine"
    (place,) = run.places
    assert place is not None
    assert set(place.hydras) == {".hydra", "mine.log"}


class Noting(Callback):
    """A callback of a user's."""

    told: list[str] = []  # noqa: RUF012

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        self.told.append(f"start {config.trainer.lr}")

    def on_job_end(self, config: DictConfig, job_return: Any, **_: Any) -> None:  # noqa: ARG002
        self.told.append(f"end {job_return.status.name}")
        print("the user's line", file=sys.stderr)


def test_callbacks_hear_of_success_and_failure(
    run: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = [f"+hydra.callbacks.mine._target_={__name__}.Noting", "trainer.lr=0.5"]
    Noting.told.clear()
    assert main(typed) == 0
    run.error = UserError("no such file")
    assert main(typed) == 2
    assert Noting.told == ["start 0.5", "end COMPLETED", "start 0.5", "end FAILED"]
    err = capsys.readouterr().err
    assert err.count("the user's line") == 2
    assert "Error executing job" not in err


@pytest.mark.parametrize(
    "text",
    [
        "dataset: cora\nhydra: {callbacks: {x: {_target_: NOTING}}}\n",
        "dataset: cora\nhydra.callbacks: {x: {_target_: NOTING}}\n",
        "dataset: cora\nhydra: {job_logging: {version: 1, formatters: {x: {(): NOTING}}}}\n",
        "model: {options: {a: [{_target_: NOTING}]}}\n",
        "dataset: FOLDER/option\n",
    ],
)
@pytest.mark.parametrize("flags", [[], ["-m", "hydra/sweeper=basic", "trainer.lr=1,2"]])
def test_a_file_that_is_an_argument_runs_no_code(
    text: str, flags: list[str], run: FakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    option = "# @package _global_\nhydra: {callbacks: {x: {_target_: NOTING}}}\n"
    (tmp_path / "option.yaml").write_text(option.replace("NOTING", f"{__name__}.Noting"))
    up = os.path.relpath(tmp_path, conf_dir() / "dataset")
    file = tmp_path / "shared.yaml"
    file.write_text(text.replace("NOTING", f"{__name__}.Noting").replace("FOLDER", up))
    Noting.told.clear()
    assert main([str(file), *flags]) == 2
    assert (Noting.told, run.asked) == ([], [])
    assert "mistake" in capsys.readouterr().err
    assert list((tmp_path / "runs").glob("*")) == []


def test_verbose_shows_debug_messages_but_not_those_of_numba(run: FakeRun) -> None:
    assert main(["hydra.verbose=true"]) == 0
    assert logging.getLogger().level == logging.DEBUG
    assert logging.getLogger("numba").getEffectiveLevel() == logging.INFO
    assert main([]) == 0
    assert logging.getLogger().level == logging.WARNING
    assert run.asked


@pytest.mark.parametrize(
    ("flags", "printed"),
    [
        (["--info"], "Hydra"),
        (["--info=defaults"], "trainer/default"),
        (["--info", "plugins"], "GnntrainSweeper"),
        (["--hydra-help"], "hydra/launcher: basic"),
        (["--cfg", "hydra", "--package", "hydra.job"], "name: gnntrain"),
        (["-c", "job", "-p", "trainer.lr", "trainer.lr=0.7"], "0.7"),
        (["--cfg", "job", "--resolve", "trainer.epochs=${trainer.seed}"], "epochs: 0"),
        (["model=gat", "--cfg=job"], "name: gat"),
    ],
)
def test_hydras_flags_print_what_hydra_prints(
    flags: list[str], printed: str, run: FakeRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(flags) == 0
    assert printed in capsys.readouterr().out
    assert run.asked == []
    assert not any(tmp_path.iterdir())


@pytest.fixture
def own_conf(tmp_path: Path) -> Path:
    """A folder with a primary configuration of the user's own."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "own.yaml").write_text(
        "defaults: [config, override model: mlp, _self_]\ntrainer: {epochs: 2}\n"
    )
    return folder


@pytest.mark.parametrize("flag", ["--config-path=nowhere", "--config-dir=nowhere"])
def test_a_folder_that_is_not_there_is_one_mistake(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([flag, "--config-name=own"]) == 2
    assert "1 mistake" in capsys.readouterr().err


@pytest.mark.parametrize("places", [["mine"], ["other", "mine"], ["mine", "other"]])
def test_mistakes_beside_a_primary_configuration_of_the_users_own(
    places: list[str], run: FakeRun, own_conf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_conf.with_name("other").mkdir()
    flags = [f"--config-dir={place}" for place in places]
    assert main([*flags, "--config-name", "own"]) == 0
    assert run.asked[0][0].model.name == "mlp"
    typed = ["trainer.lr=0", "trainer.epoch=3"]
    assert main([*flags, "--config-name", "own", *typed]) == 2
    err = capsys.readouterr().err
    assert "2 mistakes" in err
    assert [text for text in typed if text not in err] == []


@pytest.mark.parametrize(
    ("typed", "seeds"), [([], {1, 2}), (["trainer.seed=5"], {5}), (["trainer.seed=7,8"], {7, 8})]
)
def test_params_of_the_sweeper_are_overrides_of_a_sweep(
    typed: list[str], seeds: set[int], own_conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_conf.parent)
    begun: list[list[str]] = []

    def run_sweep(overrides: list[str], *_: object) -> SweepResults:
        begun.append(overrides)
        return SweepResults([])

    monkeypatch.setattr("gnntrain.sweep.run_sweep", run_sweep)
    with (own_conf / "own.yaml").open("a") as file:
        file.write("hydra: {sweeper: {params: {trainer.seed: '1,2'}}}\n")
    assert main(["--config-dir=mine", "--config-name=own", "-m", *typed]) == 0
    plan = check_sweep(begun[0], Sources())
    configs = [Sources().compose([*plan.fixed, *varied]) for varied in plan.grid]
    assert {config.trainer.seed for config in configs} == seeds


def test_config_path_takes_the_place_of_conf(
    run: FakeRun, own_conf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_conf / "config.yaml").write_text("model: {name: gin}\nhydra: {run: {dir: x}}\n")
    assert main(["--config-path", "mine"]) == 0
    assert run.asked[0][0].model.name == "gin"
    assert main(["--config-path", "mine", "--config-name", "confg"]) == 2
    assert "'confg'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (["hydra.vrebose=true"], ["hydra.vrebose"]),
        (["hydra/launcher=jobib"], ["hydra/launcher/jobib", "joblib"]),
        (["hydra/launcher=joblib", "hydra.launcher.n_job=2"], ["hydra.launcher.n_job"]),
        (["hydra.run.dri=x", "model=gta", "trainer.lr=0"], ["model=gta", "trainer.lr=0"]),
        (["trainer.lr=0", "trainer.epoch=3"], ["trainer.lr=0", "trainer.epoch=3"]),
        (["-m", "hydra/sweeper=basic", "trainer.lr=1,0", "model=sage,gta"], ["lr=0", "=gta"]),
        (["-m", "hydra.vrebose=1", "trainer.lr=1,0"], ["trainer.lr=0"]),
        (["run.name=../x"], ["run.name=../x"]),
        (["run.dir=/proc/nowhere/x"], ["/proc/nowhere"]),
        (["hydra.run.dir=/proc/nowhere/x"], ["/proc/nowhere"]),
        (["-m", "--cfg", "job"], ["--multirun"]),
        (["--resolve"], ["--resolve"]),
        (["--info", "--run"], ["--run"]),
        (["--info", "nope"], ["'nope'"]),
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=two"], ["'two'"]),
        (["~trainer.lrr"], ["~trainer.lrr"]),
        (["-m", "hydra/sweeper=basic", "hydra.sweep.dir=/proc/version"], ["/proc/version"]),
        (["--cfg", "hydra", "model=gta"], ["model=gta"]),
    ],
)
def test_mistakes_are_told_all_at_once_and_leave_nothing_behind(
    typed: list[str],
    keys: list[str],
    run: FakeRun,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    assert main(typed) == 2
    err = capsys.readouterr().err
    assert err.startswith("gnntrain: ")
    assert "Traceback" not in err
    assert [key for key in keys if key not in err] == []
    assert run.asked == []
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "typed",
    [
        ["trainer.lr=0.5", "+trainer.epochs=1"],
        ["trainer.lr=0.5", "model=plugin", "model.name=own_model", "+model.options.width=3"],
        ["trainer.lr=0.5", "model=plugin", "model.name=own_model", "model.options.width=3"],
        ["trainer.lr=0.5", "model=plugin", "model.name=own_model", "model.options={width: 3}"],
        ["trainer.lr=0.5", "dataset=own_data", "dataset.split=1", "model=own_model"],
        ["trainer.lr=0.5", "dataset.root=~/a b"],
        ["trainer.lr=0.5", "experiment=none"],
        ["trainer.lr=0.5", "logger=wandb", "logger.wandb.group=mine"],
    ],
)
def test_what_gnntrain_accepts_hydra_accepts(
    typed: list[str], run: FakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    points = """\
        [gnntrain.models]
        own_model = own_parts:Model
        [gnntrain.datasets]
        own_data = own_parts:Data
    """
    install(tmp_path / "packages", monkeypatch, "own_parts", "", points)
    install(tmp_path / "wandb", monkeypatch, "wandb", "", "")
    assert main(typed) == 0
    assert run.asked == [(compose_config(typed), typed)]


@pytest.mark.parametrize("removed", ["trainer.epochs", "dataset"])
def test_what_hydra_removes_has_its_default(removed: str, run: FakeRun) -> None:
    typed = ["experiment=cora_gat", "trainer.lr=0.5", f"~{removed}", "experiment=none"]
    assert main(typed) == 0
    assert run.asked == [(compose_config(["trainer.lr=0.5"]), typed)]


def test_a_file_to_begin_with_is_trained_as_it_is(run: FakeRun, tmp_path: Path) -> None:
    begun = compose_config(
        ["dataset=cora", "model=gat", "logger=[csv]", 'dataset.root="a\\"b\\\\"']
    )
    file = tmp_path / "whole.yaml"
    file.write_text(yaml.safe_dump(begun.to_dict()))
    assert main([str(file), "trainer.seed=4"]) == 0
    config, overrides = run.asked[0]
    trainer = begun.trainer.model_copy(update={"seed": 4})
    assert config == begun.model_copy(update={"trainer": trainer})
    assert overrides == [str(file), "trainer.seed=4"]


def test_hydras_basic_sweeper_runs_every_job_in_its_own_directory(
    run: FakeRun, tmp_path: Path
) -> None:
    typed = ["-m", "hydra/sweeper=basic", "model=sage,gcn", "hydra.sweep.dir=a"]
    assert main([*typed, "hydra.sweep.subdir=${hydra.job.num}_${model.name}"]) == 0
    assert folders(tmp_path / "a") == ["0_sage", "1_gcn"]
    assert [place and place.path.name for place in run.places] == ["0_sage", "1_gcn"]
    assert [config.run.dir for config, _ in run.asked] == [
        str(tmp_path / "a" / "0_sage"),
        str(tmp_path / "a" / "1_gcn"),
    ]
    assert run.asked[1][1] == ["model=gcn"]


def test_a_run_that_wrote_nothing_leaves_no_directory(run: FakeRun, tmp_path: Path) -> None:
    run.error = UserError("no such file")
    assert main(["trainer.seed=0"]) == 2
    assert run.asked
    assert not any(tmp_path.iterdir())


def test_a_package_that_is_not_there_exits_with_2(
    run: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--cfg", "job", "--package", "trianer"]) == 2
    assert "trianer" in capsys.readouterr().err
    assert run.asked == []


def test_hydra_mode_multirun_is_a_sweep(run: FakeRun) -> None:
    assert main(["hydra.mode=MULTIRUN", "trainer.seed=1,2", "run.dir=a"]) == 0
    assert [config.trainer.seed for config, _ in run.asked] == [1, 2]


def test_a_job_that_fails_ends_a_foreign_sweep_with_1(run: FakeRun) -> None:
    run.error = ZeroDivisionError("division by zero")
    assert main(["-m", "hydra/sweeper=basic", "trainer.seed=1,2,3", "run.dir=a"]) == 1


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("hydra_plugins.hydra_optuna_sweeper") is None,
    reason="hydra-optuna-sweeper demands optuna<3: `pip install --no-deps hydra-optuna-sweeper`",
)
def test_optunas_sweeper_searches_on_the_returned_metric(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def train(config: Any, *_: object, **__: object) -> dict[str, Any]:
        run.asked.append(config)
        metrics = {"accuracy": 1 / config.trainer.lr}
        return {"status": "completed", "metric": "accuracy", "val": metrics}

    monkeypatch.setattr(run, "train", train)
    search = "trainer.lr=tag(log,interval(0.01,0.1))"
    typed = ["-m", "hydra/sweeper=optuna", "hydra.sweeper.direction=maximize", search]
    assert main([*typed, "hydra.sweeper.n_trials=3", "run.dir=a"]) == 0
    found = yaml.safe_load((tmp_path / "a" / "optimization_results.yaml").read_text())
    rates = [config.trainer.lr for config in run.asked]
    assert len(rates) == 3
    assert found["best_value"] == pytest.approx(1 / min(rates))


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", [["joblib", "hydra.launcher.n_jobs=2"], ["submitit_local"]], ids=lambda x: x[0]
)
def test_launchers_train_real_runs(launcher: list[str], tmp_path: Path) -> None:
    name, *keys = launcher
    typed = ["-m", "hydra/sweeper=basic", f"hydra/launcher={name}", *keys, *SMALL]
    keys = ["trainer.lr=0.1,0.01", "run.dir=a"]
    done = python("-m", "gnntrain", *typed, *keys, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for number, rate in enumerate((0.1, 0.01)):
        job = tmp_path / "a" / str(number)
        assert json.loads((job / "summary.json").read_text())["status"] == "completed"
        assert yaml.safe_load((job / "config.yaml").read_text())["trainer"]["lr"] == rate
        assert f"trainer.lr={rate}" in (job / "overrides.txt").read_text().splitlines()
        assert (job / "checkpoints" / "best.pt").is_file()
