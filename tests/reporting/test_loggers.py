from __future__ import annotations

import contextlib
import csv
import dataclasses
import importlib
import json
import logging
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from gnntrain.reporting.loggers import LOGGERS, Logger, build_loggers
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.training.records import EpochRecord, Listener, Summary
from tests.disks import full_disk
from tests.reporting.samples import INFO, STEP, SUMMARY, record

CONFIG = {"model": {"name": "sage", "hidden_channels": 16}, "sampler": {"fan_outs": [25, 10]}}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def play(callbacks: list[Listener], *records: EpochRecord, end: Summary = SUMMARY) -> None:
    """A run as its listeners hear it."""
    for callback in callbacks:
        callback.on_start(INFO)
        callback.on_step(STEP)
        for item in records:
            callback.on_epoch(item)
        callback.on_message("a notice")
        callback.on_finish(end)


def json_lines(run: RunDirectory) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def csv_rows(run: RunDirectory) -> list[dict[str, str]]:
    with (run.path / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_metrics_jsonl_has_a_line_an_epoch_even_where_no_logger_was_chosen(
    run: RunDirectory,
) -> None:
    play(build_loggers({}, run, CONFIG), record(1), record(2))
    assert json_lines(run) == [record(1).flat(), record(2).flat()]


def test_a_loss_that_is_not_finite_is_null_in_metrics_jsonl(run: RunDirectory) -> None:
    play(build_loggers({}, run, CONFIG), record(1, train_loss=math.nan))
    assert json_lines(run)[0]["train/loss"] is None


def test_csv_widens_for_a_column_that_comes_later(run: RunDirectory) -> None:
    play(build_loggers({"csv": {}}, run, CONFIG), record(1), record(2, gpu_memory_bytes=5))
    assert [row["gpu_memory"] for row in csv_rows(run)] == ["", "5"]
    assert not list(run.path.glob("*.draft"))


def test_the_files_go_on_where_an_earlier_run_stopped(run: RunDirectory) -> None:
    for epoch in (1, 2):
        play(build_loggers({"csv": {}}, run, CONFIG), record(epoch, gpu_memory_bytes=5))
    assert [row["epoch"] for row in csv_rows(run)] == ["1", "2"]
    assert [row["epoch"] for row in json_lines(run)] == [1, 2]


def tensorboard_events(run: RunDirectory) -> Any:
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    return events


def tensorboard_losses(run: RunDirectory) -> list[tuple[int, float]]:
    events = tensorboard_events(run).Scalars("train/loss")
    return [(event.step, event.value) for event in events]


def test_tensorboard_has_the_scalars_of_every_epoch(run: RunDirectory) -> None:
    play(build_loggers({"tensorboard": {}}, run, CONFIG), record(1), record(2, train_loss=1.5))
    assert tensorboard_losses(run) == [(1, 1.9375), (2, 1.5)]
    events = tensorboard_events(run)
    assert "val/accuracy" in events.Tags()["scalars"]
    assert "config/text_summary" in events.Tags()["tensors"]
    assert (
        b'"hidden_channels": 16'
        in events.Tensors("config/text_summary")[0].tensor_proto.string_val[0]
    )


def test_tensorboard_hides_what_was_told_after_the_checkpoint(run: RunDirectory) -> None:
    play(build_loggers({"tensorboard": {}}, run, CONFIG), record(1), record(2), record(3))
    (first,) = (run.path / "tensorboard").iterdir()
    first.rename(first.with_name("events.out.tfevents.1000000000.earlier"))
    (board,) = build_loggers({"tensorboard": {}}, run, CONFIG)[1:]
    board.on_start(dataclasses.replace(INFO, first_epoch=2))
    board.on_epoch(record(2, train_loss=1.5))
    assert tensorboard_losses(run) == [(1, 1.9375), (2, 1.5)]


class FakeWandbRun:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.id: str = options.get("id", "new-id")
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.summary: dict[str, Any] = {}
        self.exit_code: int | None = None

    def log(self, row: dict[str, Any], step: int) -> None:
        self.logged.append((step, row))

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


@pytest.fixture
def wandb_runs(monkeypatch: pytest.MonkeyPatch) -> list[FakeWandbRun]:
    runs: list[FakeWandbRun] = []

    def init(**options: Any) -> FakeWandbRun:
        runs.append(FakeWandbRun(options))
        return runs[-1]

    module: Any = ModuleType("wandb")
    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return runs


def test_wandb_gets_configuration_epochs_and_end(
    run: RunDirectory, wandb_runs: list[FakeWandbRun]
) -> None:
    options = {"wandb": {"project": "graphs", "mode": "offline"}}
    play(build_loggers(options, run, CONFIG), record(1))
    (started,) = wandb_runs
    assert started.options["project"] == "graphs"
    assert started.options["mode"] == "offline"
    assert started.options["name"] == run.name
    assert started.options["config"]["model"]["name"] == "sage"
    assert started.options["config"]["run_info"]["num_parameters"] == INFO.num_parameters
    assert started.logged[0][0] == 1
    assert started.logged[0][1]["val/accuracy"] == 0.5
    assert started.summary["best/test/accuracy"] == 0.69
    assert started.exit_code == 0


class FakeMlflow(ModuleType):
    def __init__(self) -> None:
        super().__init__("mlflow")
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def called(*values: Any, **options: Any) -> SimpleNamespace:
            self.calls.append((name, (*values, options)))
            return SimpleNamespace(info=SimpleNamespace(run_id=options.get("run_id", "new-id")))

        return called

    def calls_of(self, name: str) -> list[Any]:
        return [arguments for called, arguments in self.calls if called == name]


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    module = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return module


def test_mlflow_gets_configuration_epochs_and_end(run: RunDirectory, mlflow: FakeMlflow) -> None:
    options = {"mlflow": {"tracking_uri": "file:somewhere", "experiment": "graphs"}}
    metrics = {"val": {"accuracy": 0.5, "precision@100": 0.25}}
    play(build_loggers(options, run, CONFIG), record(1, metrics=metrics))
    assert mlflow.calls_of("set_tracking_uri") == [("file:somewhere", {})]
    assert mlflow.calls_of("set_experiment") == [("graphs", {})]
    parameters = mlflow.calls_of("log_params")[0][0]
    assert parameters["model.hidden_channels"] == 16
    assert parameters["run_info.num_nodes"] == INFO.num_nodes
    row, step = mlflow.calls_of("log_metrics")[0]
    assert step == {"step": 1}
    assert row["train/loss"] == 1.9375
    assert row["val/precision_at_100"] == 0.25
    assert mlflow.calls_of("end_run") == [({"status": "FINISHED"},)]


def test_mlflow_gets_parameters_in_portions_it_accepts(
    run: RunDirectory, mlflow: FakeMlflow
) -> None:
    config = {"many": {f"key{number}": number for number in range(250)}}
    play(build_loggers({"mlflow": {}}, run, config))
    portions = [arguments[0] for arguments in mlflow.calls_of("log_params")]
    assert max(map(len, portions)) <= 100
    assert {f"many.{key}" for key in config["many"]} <= set().union(*portions)


def test_a_resumed_run_goes_on_in_the_same_run_of_mlflow(
    run: RunDirectory, mlflow: FakeMlflow, wandb_runs: list[FakeWandbRun]
) -> None:
    for number in (1, 2):
        play(build_loggers({"mlflow": {}, "wandb": {}}, run, CONFIG), record(number))
    assert mlflow.calls_of("start_run") == [({"run_name": run.name},), ({"run_id": "new-id"},)]
    assert [step for _, step in mlflow.calls_of("log_metrics") if step] == [
        {"step": 1},
        {"step": 2},
    ]
    # MLflow refuses another value for a parameter that a run has, such as the number of ranks.
    names = [name for row, _ in mlflow.calls_of("log_params") for name in row]
    assert len(names) == len(set(names))
    assert [one.options.get("id") for one in wandb_runs] == [None, "new-id"]
    assert json.loads((run.path / "trackers.json").read_text()) == {
        "mlflow": "new-id",
        "wandb": "new-id",
    }


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_logger_whose_package_has_gone_is_left_out_with_a_warning(
    name: str,
    run: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for module in (name, "tensorboard.compat.proto.event_pb2"):
        monkeypatch.setitem(sys.modules, module, None)
    with caplog.at_level(logging.WARNING, logger="gnntrain"):
        play(build_loggers({name: {}}, run, CONFIG), record(1))
    assert len(caplog.messages) == 1
    assert name in caplog.messages[0]
    assert len(json_lines(run)) == 1


class Failing(Logger):
    """A logger that works for one epoch."""

    name = "csv"
    catches_up = False
    epochs: ClassVar[list[int]] = []

    def record(self, record: EpochRecord) -> None:
        self.epochs.append(record.epoch)
        if record.epoch == 2:
            raise OSError(28, "No space left on device")

    def end(self, summary: Any) -> None:
        raise AssertionError(f"it was dropped, but heard {summary}")


def test_a_logger_that_fails_is_dropped_with_one_warning(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(LOGGERS, "csv", Failing)
    with caplog.at_level(logging.WARNING, logger="gnntrain"):
        play(build_loggers({"csv": {}}, run, CONFIG), record(1), record(2), record(3))
    assert Failing.epochs == [1, 2]
    assert [row["epoch"] for row in json_lines(run)] == [1, 2, 3]
    (warning,) = caplog.messages
    assert "logger csv failed" in warning
    assert "No space left" in warning


@pytest.mark.parametrize("num_bytes", [0, 280])
def test_files_catch_up_when_a_disk_that_was_full_has_room_again(
    run: RunDirectory, caplog: pytest.LogCaptureFixture, num_bytes: int
) -> None:
    callbacks = build_loggers({"csv": {}, "tensorboard": {}}, run, CONFIG)
    for callback in callbacks:
        callback.on_start(INFO)
    with caplog.at_level(logging.WARNING, logger="gnntrain"):
        for epoch in range(1, 6):
            # the part of a row that found room must not stay
            with full_disk(num_bytes) if 2 <= epoch <= 4 else contextlib.nullcontext():
                for callback in callbacks:
                    callback.on_epoch(record(epoch, train_loss=float(epoch)))
    for callback in callbacks:
        callback.on_finish(SUMMARY)
    assert [row["epoch"] for row in json_lines(run)] == [1, 2, 3, 4, 5]
    assert [row["epoch"] for row in csv_rows(run)] == ["1", "2", "3", "4", "5"]
    assert [value for _, value in tensorboard_losses(run)] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert len(caplog.messages) == 3
    assert all("what it misses follows" in message for message in caplog.messages)
