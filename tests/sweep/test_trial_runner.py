"""Trials at the same time, in threads that stand in for processes; and once in real ones."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import types
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

from gnntrain.cli import main
from gnntrain.config import Config
from gnntrain.errors import RunError
from gnntrain.reporting.channel import Channel
from gnntrain.reporting.trials import SweepResults, Trial
from gnntrain.sweep import SweepFolder, run_sweep
from gnntrain.training.records import Pruned
from tests.reporting.samples import info, record_with_val

EPOCHS = 20


class ThreadProcess(threading.Thread):
    """What a pool needs of a process; it has an end of the pipe of its own, as a process has."""

    pid = None
    exitcode = 0

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...]) -> None:
        super().__init__(target=target, args=args, daemon=True)
        self._end, self._rest = args[0], args[1:]

    @classmethod
    def launch(
        cls, target: Callable[..., None], arguments: Sequence[Any], **_: object
    ) -> ThreadProcess:
        """Stands in for `distributed.processes.start_process`."""
        process = cls(target, tuple(arguments))
        process.start()
        return process

    def start(self) -> None:
        """As a process: the parent's copy of the connection may be closed after it."""
        self._own = Connection(os.dup(self._end.fileno()))
        super().start()

    def run(self) -> None:
        """Serve."""
        assert self._target is not None  # type: ignore[attr-defined]
        self._target(self._own, *self._rest)  # type: ignore[attr-defined]

    def kill(self) -> None:
        """A thread ends by itself."""


class Training(types.ModuleType):
    """Stands in for `gnntrain.run`: epochs whose metric is the learning rate, told to the sweep."""

    def __init__(self) -> None:
        super().__init__("gnntrain.run")
        self.lock = threading.Lock()
        self.num_running = self.most_running = 0
        self.configs: list[Config] = []
        self.before: Callable[[Config], None] = lambda _config: None

    def resume(self, run: str, listener: Any) -> None:
        raise AssertionError((run, listener))  # nothing here has a checkpoint

    def train(self, config: Config, *_: Any, listener: Any, **__: Any) -> dict[str, Any]:
        with self.lock:
            self.configs.append(config)
            self.num_running += 1
            self.most_running = max(self.most_running, self.num_running)
        try:
            Path(str(config.run.dir)).mkdir(parents=True)
            self.before(config)
            return self._epochs(config, Channel(listener))
        finally:
            with self.lock:
                self.num_running -= 1

    def _epochs(self, config: Config, channel: Channel) -> dict[str, Any]:
        channel.on_start(info(epochs=EPOCHS))
        status = "completed"
        value = config.trainer.lr
        for epoch in range(1, EPOCHS + 1):
            try:
                channel.on_epoch(record_with_val(epoch, value))
            except Pruned:
                status = "pruned"
                break
        found = {"accuracy": value}
        summary = {"status": status, "metric": "accuracy", "val": found, "test": found}
        return {**summary, "epochs": epoch, "best_epoch": 1}


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Training:
    fake = Training()
    monkeypatch.setitem(sys.modules, "gnntrain.run", fake)
    monkeypatch.setattr("gnntrain.sweep.workers.start_process", ThreadProcess.launch)
    monkeypatch.setattr("gnntrain.sweep.start_server", lambda: None)
    monkeypatch.setattr("gnntrain.sweep.slots.available_cores", lambda: 4)
    monkeypatch.chdir(tmp_path)
    return fake


def statuses(standings: SweepResults) -> list[str]:
    return [trial.status for trial in standings.trials]


def test_trials_are_trained_at_the_same_time_but_no_more_than_asked(training: Training) -> None:
    barrier = threading.Barrier(2, timeout=30)

    def meet(_config: Config) -> None:
        barrier.wait()

    training.before = meet
    standings = run_sweep(["trainer.lr=0.1,0.2,0.3,0.4", "sweep.jobs=2", "run.dir=s"])
    assert statuses(standings) == ["completed"] * 4
    assert training.most_running == 2
    assert {config.distributed.threads for config in training.configs} == {2}


def test_the_best_configuration_is_a_file_to_train_again(training: Training) -> None:
    overrides = ["trainer.lr=0.1,0.3,0.2", "model=gat", "sweep.jobs=2", "run.dir=s"]
    best = run_sweep(overrides).best
    assert best is not None
    assert best.number == 1
    found = yaml.safe_load(Path("s/best.yaml").read_text())
    assert (found["trainer"]["lr"], found["model"]["name"]) == (0.3, "gat")
    assert found["distributed"]["threads"] is None  # it has the machine to itself then
    assert "run" not in found
    (again,) = run_sweep(["s/best.yaml", "trainer.seed=0,1", "run.dir=again"]).groups
    assert len(again.counted) == 2
    assert {config.trainer.lr for config in training.configs[3:]} == {0.3}
    assert {config.model.name for config in training.configs[3:]} == {"gat"}


def test_a_search_prunes_and_learns(training: Training) -> None:
    overrides = ["sweep=optuna", "sweep.trials=15", "trainer.lr=interval(0.001,1)", "run.dir=s"]
    standings = run_sweep(overrides)
    assert len(training.configs) == 15
    assert 0 < standings.count("pruned") < 10
    for trial in standings.trials:
        assert trial.epochs == (EPOCHS if trial.status == "completed" else 3)
    assert standings.best is not None
    assert standings.best.val == max(config.trainer.lr for config in training.configs)
    told = json.loads(Path("s/summary.json").read_text())
    assert (told["status"], told["trials"]) == ("completed", 15)
    assert told["best"]["number"] == standings.best.number


def test_a_search_is_checked_at_its_ends_before_it_begins(
    training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ["sweep=optuna", "model.dropout=interval(0,2)", "trainer.lr=0.1,-1", "x.y=1"]
    assert main(["-m", *overrides]) == 2
    err = capsys.readouterr().err
    for part in ("model.dropout=2", "trainer.lr=-1", "x.y=1"):
        assert part in err
    assert training.configs == []
    assert not Path("runs").exists()


def test_values_that_do_not_go_together_fail_and_the_search_goes_on(training: Training) -> None:
    # Three heads do not divide 16 channels.
    values = ["model=gat", "model.heads=4,3", "model.hidden_channels=12,16"]
    with pytest.raises(RunError, match=r"a divisor of model\.hidden_channels=16"):
        run_sweep([*values, "sweep=optuna", "sweep.trials=12", "run.dir=s"])
    for trial in SweepFolder(Path("s").absolute()).trials():
        do_not_go = list(trial.values.values()) == ["3", "16"]
        assert trial.status in (["failed"] if do_not_go else ["completed", "pruned"])
    models = [config.to_dict()["model"] for config in training.configs]
    assert not any(model["hidden_channels"] % model["heads"] for model in models)


@pytest.mark.usefixtures("training")
def test_a_process_that_is_gone_costs_one_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    class Vanishing(ThreadProcess):
        """Ends in the middle of its first trial, as one that the system kills."""

        exitcode = -signal.SIGKILL

        def run(self) -> None:
            if len(started) == 1:
                self._own.recv()
                self._own.close()
                return
            super().run()

        def start(self) -> None:
            started.append(self)
            super().start()

    started: list[Vanishing] = []
    monkeypatch.setattr("gnntrain.sweep.workers.start_process", Vanishing.launch)
    with pytest.raises(RunError, match=r"was ended by SIGKILL\. The system kills a process when"):
        run_sweep(["trainer.lr=0.1,0.2,0.3", "run.dir=s"])
    told = json.loads(Path("s/sweep.json").read_text())
    assert [trial["status"] for trial in told] == ["failed", "completed", "completed"]
    assert len(started) == 2


@pytest.mark.skipif(not hasattr(os, "setpgid"), reason="needs POSIX process groups")
@pytest.mark.slow
def test_real_processes_train_fail_and_go_on(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    small = ["dataset.num_nodes=300", "trainer.epochs=150", "trainer.gpus=0"]
    small.append(f"dataset.store_dir={here}")

    over = threading.Event()

    def interrupt() -> None:
        while not Path("s/1_trainer.lr=0.01/metrics.jsonl").exists():
            if over.wait(0.02):
                return  # a later signal would end the tests
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    code = main(["-m", "trainer.lr=1e30,0.01", *small, "run.dir=s"])
    over.set()
    assert code == 130
    assert "Go on with `gnntrain resume s`" in capfd.readouterr().err
    told = json.loads(Path("s/sweep.json").read_text())
    assert [trial["status"] for trial in told] == ["failed", "interrupted"]
    assert 0 < told[1]["epochs"] < 150
    assert main(["resume", "s"]) == 1
    assert "1 of 2 trials failed" in capfd.readouterr().err
    told = json.loads(Path("s/sweep.json").read_text())
    assert [trial["status"] for trial in told] == ["failed", "completed"]
    assert told[1]["epochs"] == 150
    assert "The training loss is nan" in told[0]["error"]


# A folder


def test_a_grid_that_was_moved_or_copied_goes_on_where_it_is(here: Path) -> None:
    keys = ["trainer.gpus=0", "dataset.num_nodes=200", "model.hidden_channels=4"]
    grid = [*keys, "trainer.epochs=1", "trainer.lr=0.01,0.02", "run.dir=grid"]
    assert main(["-m", *grid]) == 0
    trials = json.loads(Path("grid/sweep.json").read_text())
    shutil.rmtree(here / "grid" / trials[1]["run_dir"])
    trials[1]["status"] = "waiting"
    Path("grid/sweep.json").write_text(json.dumps(trials))
    shutil.copytree("grid", "copy")
    Path("grid").rename("moved")

    def runs(folder: str) -> int:
        return len(list(Path(folder).glob("*/summary.json")))

    assert main(["resume", "copy"]) == 0
    assert (runs("copy"), runs("moved"), Path("grid").exists()) == (2, 1, False)
    assert main(["resume", "moved"]) == 0
    assert (runs("moved"), Path("grid").exists()) == (2, False)


@pytest.mark.usefixtures("here")
def test_two_processes_do_not_train_one_sweep_at_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = list[int]()

    def conduct(*_: object) -> None:
        codes.append(main(["resume", "s"]))

    monkeypatch.setattr("gnntrain.sweep._conduct", conduct)
    run_sweep(["trainer.lr=0.1,0.2", "run.dir=s"])
    assert codes == [2]
    assert "the sweep s is still going on in another process" in capfd.readouterr().err
    assert main(["resume", "s"]) == 0
    assert codes == [2, 2]


def test_trials_with_the_same_name_have_folders_of_their_own(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path, lambda *_: "same")
    first = folder.trial_dir(0, 2, [], [], [])
    second = folder.trial_dir(1, 2, [], [], [Trial(0, [], str(first))])
    assert (first, second) == (tmp_path / "same", tmp_path / "same-1")
