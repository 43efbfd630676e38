from __future__ import annotations

import contextlib
import csv
import importlib
import logging
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from gnntrain.reporting.loggers import build_loggers
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.training.records import EpochRecord, Listener, Summary
from tests.disks import full_disk
from tests.reporting.samples import INFO, STEP, SUMMARY, info, record
from tests.summaries import epochs_of

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


def csv_rows(run: RunDirectory) -> list[dict[str, str]]:
    with (run.path / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_metrics_jsonl_has_a_line_an_epoch_even_where_no_logger_was_chosen(
    run: RunDirectory,
) -> None:
    play(build_loggers({}, run, CONFIG), record(1), record(2, train_loss=math.nan))
    assert epochs_of(run.path) == [record(1).flat(), record(2).flat() | {"train/loss": None}]


def test_csv_widens_for_a_column_that_comes_later(run: RunDirectory) -> None:
    play(build_loggers({"csv": {}}, run, CONFIG), record(1), record(2, gpu_memory_bytes=5))
    assert [row["gpu_memory"] for row in csv_rows(run)] == ["", "5"]
    assert not list(run.path.glob("*.draft"))


def test_a_resumed_run_begins_with_the_epochs_of_its_checkpoint(run: RunDirectory) -> None:
    play(build_loggers({"csv": {}}, run, CONFIG), record(1), record(2), record(3))
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "st')
    for callback in build_loggers({"csv": {}}, run, CONFIG):
        callback.on_start(info(records=[record(1)]))
        callback.on_epoch(record(2, train_loss=1.5))
    assert epochs_of(run.path) == [record(1).flat(), record(2, train_loss=1.5).flat()]
    assert [row["train/loss"] for row in csv_rows(run)] == ["1.9375", "1.5"]


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
    assert "val/accuracy" in tensorboard_events(run).Tags()["scalars"]


def test_tensorboard_hides_what_was_told_after_the_checkpoint(run: RunDirectory) -> None:
    play(build_loggers({"tensorboard": {}}, run, CONFIG), record(1), record(2), record(3))
    (first,) = (run.path / "tensorboard").iterdir()
    first.rename(first.with_name("events.out.tfevents.1000000000.earlier"))
    (board,) = build_loggers({"tensorboard": {}}, run, CONFIG)[1:]
    board.on_start(info(records=[record(1)]))
    board.on_epoch(record(2, train_loss=1.5))
    assert tensorboard_losses(run) == [(1, 1.9375), (2, 1.5)]


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Packages of W&B and MLflow that note what they are asked for."""
    found = SimpleNamespace(wandb=MagicMock(), mlflow=MagicMock())
    found.wandb.init.return_value.id = "its-id"
    found.mlflow.start_run.return_value.info.run_id = "its-id"
    for name, package in vars(found).items():
        monkeypatch.setitem(sys.modules, name, package)
    return found


def test_wandb_gets_configuration_epochs_and_end(
    run: RunDirectory, services: SimpleNamespace
) -> None:
    options = {"wandb": {"project": "graphs", "mode": "offline"}}
    play(build_loggers(options, run, CONFIG), record(1))
    asked, started = services.wandb.init.call_args.kwargs, services.wandb.init.return_value
    assert (asked["project"], asked["mode"], asked["name"]) == ("graphs", "offline", run.path.name)
    assert asked["config"]["model"]["name"] == "sage"
    assert asked["config"]["run_info"]["dataset"] == "synthetic"
    ((row,), step) = started.log.call_args
    assert (step["step"], row["val/accuracy"]) == (1, 0.5)
    assert started.summary.update.call_args.args[0]["summary/test/accuracy"] == 0.69
    assert started.finish.call_args.kwargs == {"exit_code": 0}


def test_mlflow_gets_configuration_epochs_and_end(
    run: RunDirectory, services: SimpleNamespace
) -> None:
    options = {"mlflow": {"tracking_uri": "file:somewhere", "experiment": "graphs"}}
    metrics, mlflow = {"val": {"accuracy": 0.5, "hits@10": 0.25}}, services.mlflow
    config = {**CONFIG, "many": {f"key{number}": number for number in range(250)}}
    play(build_loggers(options, run, config), record(1, metrics=metrics))
    mlflow.set_tracking_uri.assert_called_once_with("file:somewhere")
    mlflow.set_experiment.assert_called_once_with("graphs")
    portions = [call.args[0] for call in mlflow.log_params.call_args_list]
    assert max(map(len, portions)) <= 100
    parameters = {name: value for portion in portions for name, value in portion.items()}
    assert parameters["model.hidden_channels"] == 16
    assert parameters["run_info.dataset"] == "synthetic"
    assert parameters["many.key249"] == 249
    ((row,), step) = mlflow.log_metrics.call_args_list[0]
    assert (step, row["train/loss"]) == ({"step": 1}, 1.9375)
    assert row["val/hits_at_10"] == 0.25
    mlflow.end_run.assert_called_once_with(status="FINISHED")


def test_a_resumed_run_goes_on_in_the_same_run_of_a_service(
    run: RunDirectory, services: SimpleNamespace
) -> None:
    for number in (1, 2):
        play(build_loggers({"mlflow": {}, "wandb": {}}, run, CONFIG), record(number))
    started = [call.kwargs for call in services.mlflow.start_run.call_args_list]
    assert started == [{"run_name": run.path.name}, {"run_id": "its-id"}]
    # MLflow refuses another value for a parameter that a run has, such as the number of ranks.
    assert services.mlflow.log_params.call_count == 1
    asked = [call.kwargs.get("id") for call in services.wandb.init.call_args_list]
    assert asked == [None, "its-id"]


def test_a_service_that_fails_is_left_out_with_one_warning(
    run: RunDirectory, services: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    log = services.wandb.init.return_value.log
    log.side_effect = [None, OSError(28, "No space left on device")]
    with caplog.at_level(logging.WARNING, logger="gnntrain"):
        play(build_loggers({"wandb": {}}, run, CONFIG), record(1), record(2), record(3))
    assert log.call_count == 2
    assert [row["epoch"] for row in epochs_of(run.path)] == [1, 2, 3]
    (warning,) = caplog.messages
    assert "logger wandb failed" in warning
    assert "No space left" in warning


@pytest.mark.parametrize("module", ["torch.utils.tensorboard", "wandb", "mlflow"])
def test_a_logger_whose_package_has_gone_is_left_out_with_a_warning(
    module: str,
    run: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    name = module.rpartition(".")[2]
    play(build_loggers({name: {}}, run, CONFIG), record(1), record(2))
    (warning,) = caplog.messages
    assert f"logger {name} failed and is left out" in warning
    assert len(epochs_of(run.path)) == 2


@pytest.mark.parametrize("num_bytes", [0, 280])
def test_files_catch_up_when_a_disk_that_was_full_has_room_again(
    run: RunDirectory, caplog: pytest.LogCaptureFixture, num_bytes: int
) -> None:
    callbacks = build_loggers({"csv": {}}, run, CONFIG)
    for callback in callbacks:
        callback.on_start(INFO)
    with caplog.at_level(logging.WARNING, logger="gnntrain"):
        for epoch in range(1, 6):
            # the part of a row that found room must not stay
            with full_disk(num_bytes) if 2 <= epoch <= 4 else contextlib.nullcontext():
                for callback in callbacks:
                    callback.on_epoch(record(epoch, train_loss=float(epoch)))
            for name in ("metrics.jsonl", "metrics.csv"):
                assert (run.path / name).read_bytes().endswith(b"\n")
    for callback in callbacks:
        callback.on_finish(SUMMARY)
    assert [row["epoch"] for row in epochs_of(run.path)] == [1, 2, 3, 4, 5]
    assert [row["epoch"] for row in csv_rows(run)] == ["1", "2", "3", "4", "5"]
    assert len(caplog.messages) == 2
    assert all("what it misses follows" in message for message in caplog.messages)
