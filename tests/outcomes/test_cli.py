"""The command line as a stranger meets it: help, exit codes, messages, sweeps."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gnntrain.cli import main
from gnntrain.commands import COMMANDS
from gnntrain.commands.parsing import parse
from gnntrain.config import Config
from gnntrain.errors import Diverged, RankLost, RunError, UserError
from gnntrain.reporting.rundir import RunPlace
from tests.processes import python, started
from tests.report.samples import write_run
from tests.sweep.test_trial_runner import ThreadProcess

HEAVY = {"torch", "torch_geometric", "hydra", "omegaconf", "pydantic", "numpy", "numba", "rich"}
SUMMARY = {"status": "completed", "metric": "accuracy", "val": {"accuracy": 0.5}, "test": {}}


class FakeRun(types.ModuleType):
    """Stands in for `gnntrain.run` and notes what it is asked."""

    def __init__(self) -> None:
        super().__init__("gnntrain.run")
        self.asked: list[Any] = []
        self.places: list[RunPlace | None] = []
        self.error: BaseException | None = None

    def train(
        self,
        config: Config,
        *,
        overrides: Sequence[str],
        listener: object = None,  # noqa: ARG002
        place: RunPlace | None = None,
        data: object = None,  # noqa: ARG002
    ) -> dict[str, Any]:
        self.asked.append((config, list(overrides)))
        self.places.append(place)
        if config.run.dir is not None:
            Path(config.run.dir).mkdir(parents=True, exist_ok=True)
            (Path(config.run.dir) / "config.yaml").touch()
        if self.error is not None and (config.trainer.seed == 0 or len(self.asked) == 2):
            raise self.error
        if place is not None and place.is_made_up:
            (place.path / "config.yaml").touch()
        return SUMMARY

    def open(self, run: str) -> types.SimpleNamespace:
        assert run == "latest"
        return types.SimpleNamespace(config=Config().to_dict)

    def resume(self, run: str, config: Config, *, overrides: Sequence[str]) -> dict[str, Any]:
        assert run == "latest"
        return self.train(config, overrides=overrides)

    def evaluate(self, run: str) -> dict[str, Any]:
        self.asked.append(run)
        metrics = {"train": {"accuracy": 0.9}, "val": {}, "test": {"accuracy": 0.75}}
        result = {"run": "runs/x", "epoch": 3, "metric": "accuracy", "positive_class": None}
        result["estimated"] = ""
        return {**result, "metrics": metrics}

    def result(self, *words: str, **options: Any) -> types.SimpleNamespace:
        self.asked.append((words, options))
        about = {"what": "class", "num_rows": 10, "dataset": "synthetic", "epoch": 3}
        path = Path("runs/x/export")
        return types.SimpleNamespace(path=path, run="runs/x", made_with="pyg.GCN", **about)

    def plan(self, config: Config) -> Any:
        self.asked.append(config)
        return types.SimpleNamespace(fits=True, to_dict=dict, sections=list)

    def prepare(self, config: Config) -> dict[str, Any]:
        self.asked.append(config)
        sizes = {"train": 1}
        read = {"labels": "8 classes", "split_sizes": sizes}
        return {"path": "/store", "num_nodes": 10, "seconds": 0.25, "splits": sizes, "data": read}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, here: Path) -> FakeRun:
    fake = FakeRun()
    # It imports the real gnntrain.run, so before that is replaced.
    monkeypatch.setattr("gnntrain.planning.plan.plan", fake.plan)
    monkeypatch.setitem(sys.modules, "gnntrain.run", fake)
    monkeypatch.setattr("gnntrain.reporting.rundir.RunDirectory.open", fake.open)
    for command, room in (("predict", "prediction"), ("export", "export")):
        module = types.ModuleType(f"gnntrain.results.{room}")
        setattr(module, command, fake.result)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("gnntrain.sweep.workers.start_process", ThreadProcess.launch)
    monkeypatch.setattr("gnntrain.sweep.start_server", lambda: None)
    monkeypatch.setattr("gnntrain.sweep.graph_metric", lambda *_: "accuracy")
    monkeypatch.setattr("gnntrain.doctor.checks.check_machine", lambda _: [])
    monkeypatch.setattr("gnntrain.doctor.gpu.check_kernels", lambda _: [])
    report = types.ModuleType("gnntrain.report.writing")
    report.write_report = lambda *_: here  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, report.__name__, report)
    monkeypatch.delenv("GNNTRAIN_DEBUG", raising=False)
    return fake


def shell(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "gnntrain", *arguments, env=variables)


def test_help_shows_verbs_examples_and_the_options_of_every_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for part in (
        *COMMANDS,
        "examples:",
        "gnntrain model=gat",
        "ogbn-papers100M",
        "cora_gat",
        "wandb",
    ):
        assert part in out
    assert all(len(line) <= 100 for line in out.splitlines())


@pytest.mark.parametrize("command", list(COMMANDS))
def test_each_verb_has_help_with_examples_that_are_understood(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    assert f"usage: gnntrain {command}" in capsys.readouterr().out
    for example in COMMANDS[command].examples:
        assert (parse(shlex.split(example)[1:]).command or "train") == command


def test_the_examples_compose(
    run: FakeRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that no graph is cut: a table is made as it is printed.
    monkeypatch.setattr("gnntrain.reporting.tables.print_sections", lambda _: None)
    for command in COMMANDS.values():
        for example in command.examples:
            assert main(shlex.split(example)[1:]) == 0, (example, capsys.readouterr().err)
    assert run.asked


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--help"], ["--version"], ["train", "--help"], ["trian"]),
        ["completion", "bash", "--line", "gnntrain trainer."],
    ],
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from gnntrain.cli import main\n"
        f"main({arguments!r}); print(sorted(set(sys.modules) & {HEAVY!r}), file=sys.stderr)"
    )
    assert python("-c", code).stderr.splitlines()[-1] == "[]"


def test_the_default_verb_trains(run: FakeRun) -> None:
    assert main(["model=gat", "trainer.epochs=3"]) == 0
    assert main(["train", "model=gat", "trainer.epochs=3"]) == 0
    (config, overrides), again = run.asked
    assert (config.model.name, config.trainer.epochs) == ("gat", 3)
    assert overrides == ["model=gat", "trainer.epochs=3"]
    assert again == (config, overrides)


def test_a_split_without_labels_is_told(run: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "latest"]) == 0
    assert run.asked == ["latest"]
    out = capsys.readouterr().out
    assert "test   accuracy 0.7500" in out
    assert "val    no labelled node" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "Did you mean train?"),
        (["evalute", "latest"], "Did you mean evaluate?"),
        (["evaluate"], "gnntrain evaluate latest"),
        (["evaluate", "a", "b"], "takes RUN, not a b"),
        (["resume", "trainer.epochs=3"], "gnntrain resume latest"),
        (["resume", "latest", "trainer.epochs=x"], "an integer >= 1"),
        (["resume", "latest", "experiment=cora_gcn"], "train a new run with it"),
        (["--cgf", "job"], "Did you mean --cfg?"),
        (["--cfg"], "--cfg/-c: expected one argument"),
        (["--cfg", "jobs"], "choose from"),
        (["-m", "prepare"], "unknown option -m of prepare"),
        (["resume", "latest", "--cfg", "job"], "unknown option --cfg of resume"),
        (["--help=x"], "ignored explicit argument 'x'"),
        (["--lr", "0.1"], "without dashes"),
        (["trainer.lr", "=", "0.1"], "without spaces"),
        (["help"], "Did you mean --help?"),
        ([""], "unknown command"),
        (["cora"], "dataset=cora"),
        (["model=gat", "train"], "key=value"),
        (["model=gta"], "did you mean gat?"),
        (["trainer.lr=0.1,0.2"], "add -m"),
        (["--config-dir", "nowhere"], "--config-dir=nowhere"),
        (["predict", "latest"], "required: --out"),
        (["sweep=optuna", "sweep.trials=3"], "add -m"),
        (["run.name=gr\udcc3\udcb6n"], r"'run.name=gr\udcc3\udcb6n' is no text in this locale"),
        (["run.name=gr\udcc3\udcb6n"], "PYTHONUTF8=1"),
    ],
)
def test_the_users_mistakes_exit_with_2_and_a_hint_and_no_traceback(
    run: FakeRun, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("gnntrain: ")
    assert said in err
    assert "Traceback" not in err
    assert run.asked == []


def test_a_run_time_failure_exits_with_1_and_keeps_its_traceback(
    run: FakeRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run.error = RunError("the loss is not finite", "Lower trainer.lr.")
    assert main([f"run.dir={tmp_path}/out"]) == 1
    err = capsys.readouterr().err
    log = tmp_path / "out" / "logs" / "error.log"
    assert err == f"gnntrain: the loss is not finite\nLower trainer.lr.\nTraceback: in {log}.\n"
    assert "RunError" in log.read_text()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.EIO, "Input/output error"), 138),
        (OSError(errno.ESTALE, "Stale file handle"), 138),
        (ConnectionResetError("the feature service has gone"), 138),
        (RankLost("Rank 1 was ended by SIGKILL."), 138),
        (MemoryError(), 138),
        (Diverged("The training loss is nan."), 1),
        (ValueError("read timed out"), 1),
        (RunError("The disk is full."), 1),
        (UserError("no such column"), 2),
    ],
)
def test_the_exit_code_says_whether_another_try_may_mend_a_failure(
    run: FakeRun, error: Exception, code: int
) -> None:
    run.error = error
    assert main(["resume", "latest"]) == code
    wrapped = RunError("The run failed.")
    wrapped.__cause__ = error
    run.error = wrapped
    assert main(["resume", "latest"]) == (138 if code == 138 else 1)


def test_an_unforeseen_failure_exits_with_1_and_its_name(
    run: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.error = ZeroDivisionError("division by zero")
    assert main([]) == 1
    err = capsys.readouterr().err
    assert "ZeroDivisionError: division by zero" in err
    assert "GNNTRAIN_DEBUG=1" in err
    assert "Traceback (most recent" not in err


def test_debugging_shows_the_traceback(
    run: FakeRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNNTRAIN_DEBUG", "1")
    run.error = UserError("no such file")
    assert main([]) == 2
    assert "Traceback (most recent" in capsys.readouterr().err


def test_an_interruption_exits_with_130(run: FakeRun) -> None:
    run.error = KeyboardInterrupt()
    assert main([]) == 130


def test_sigterm_ends_a_run_in_order_with_143(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = []

    def train(config: Config, *_: object, **__: object) -> dict[str, Any]:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # one more must not end the saving
            saved.append(config)
        return SUMMARY

    monkeypatch.setattr(run, "train", train)

    def ignore(number: int, _frame: object) -> None:
        """What is there before and after; without it, SIGTERM would end the tests."""

    previous = signal.signal(signal.SIGTERM, ignore)
    try:
        assert main([]) == 143
        assert len(saved) == 1
        assert signal.getsignal(signal.SIGTERM) is ignore
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_a_sweep_trains_every_trial_in_a_folder_of_its_own(
    run: FakeRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["-m", "model=sage,gcn", "trainer.epochs=1", f"run.dir={tmp_path}/sweep"]) == 0
    assert [(config.model.name, config.run.dir) for config, _ in run.asked] == [
        ("sage", f"{tmp_path}/sweep/0_model=sage"),
        ("gcn", f"{tmp_path}/sweep/1_model=gcn"),
    ]
    text = (tmp_path / "sweep" / "sweep.json").read_text()
    trials = json.loads(text)
    assert len(text.splitlines()) == len(trials) + 2
    assert [trial["status"] for trial in trials] == ["completed", "completed"]
    assert "model=sage" in trials[0]["overrides"]
    assert (trials[1]["metric"], trials[1]["val"], trials[1]["test"]) == ("accuracy", 0.5, None)
    out = capsys.readouterr().out
    assert "trial 1  val accuracy 0.5000  model gcn  test accuracy -" in out
    assert f"gnntrain {tmp_path}/sweep/best.yaml" in out or "gnntrain sweep/best.yaml" in out


def test_a_sweep_without_a_folder_goes_to_runs_multirun(run: FakeRun, tmp_path: Path) -> None:
    assert main(["--multirun", "trainer.seed=range(1,12)"]) == 0
    assert len(run.asked) == 11
    (folder,) = (tmp_path / "runs" / "multirun").iterdir()
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert names[0] == "00_trainer.seed=1"
    assert len(names) == 11


def test_a_failed_trial_stops_neither_the_sweep_nor_hides_at_its_end(
    run: FakeRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run.error = ZeroDivisionError("division by zero")
    code = main(["-m", "trainer.seed=1,2,3", f"run.dir={tmp_path}/sweep"])
    assert code == 1
    assert len(run.asked) == 3
    err = capsys.readouterr().err
    assert "1 of 3 trials failed" in err
    assert "1_trainer.seed=2: ZeroDivisionError: division by zero" in err
    jobs = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert [job["status"] for job in jobs] == ["completed", "failed", "completed"]
    assert (tmp_path / "sweep" / "1_trainer.seed=2" / "logs" / "error.log").is_file()


def test_every_trial_of_a_sweep_is_checked_before_the_first_starts(
    run: FakeRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = main(["-m", "model=sage,gat,gta", "model.heads=2", "trainer.lr=1,0", "trainer.x=1"])
    assert code == 2
    assert run.asked == []
    err = capsys.readouterr().err
    assert "4 mistakes" in err
    for part in ("model.heads=2", "model=gta", "trainer.lr=0", "trainer.x=1"):
        assert part in err
    assert not (tmp_path / "runs").exists()


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "keys",
    [
        ["run.dir=r"],
        ["run.dir=r", "sweep=optuna", "sweep.trials=2"],
        ["run.dir=r", "hydra/launcher=joblib"],
        ["hydra.sweep.dir=r", "hydra/sweeper=basic"],
    ],
    ids=" ".join,
)
def test_a_sweep_refuses_a_folder_that_holds_a_run(
    keys: list[str], run: FakeRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_run(tmp_path / "r")
    before = files(tmp_path)
    assert main(["-m", "trainer.seed=1,2", *keys]) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert run.asked == []
    multirun = tmp_path / "r" / "multirun.yaml"  # which Hydra's sweeper writes first
    assert {path: text for path, text in files(tmp_path).items() if path != multirun} == before


def test_a_folder_that_holds_a_sweep_is_not_overwritten(
    run: FakeRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sweep = ["-m", "trainer.seed=1,2", f"run.dir={tmp_path}/sweep"]
    assert main(sweep) == 0
    assert main(sweep) == 2
    err = capsys.readouterr().err
    assert "holds a sweep already" in err
    assert "gnntrain resume sweep" in err
    assert len(run.asked) == 2


def test_an_interrupted_sweep_stops_says_what_it_did_and_goes_on(
    run: FakeRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run.error = KeyboardInterrupt()
    assert main(["-m", "trainer.seed=1,2,3", f"run.dir={tmp_path}/sweep"]) == 130
    trials = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert [trial["status"] for trial in trials] == ["completed", "interrupted", "waiting"]
    assert "Go on with `gnntrain resume sweep`" in capsys.readouterr().err
    run.error = None
    assert main(["resume", "sweep"]) == 0
    trials = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert [trial["status"] for trial in trials] == ["completed"] * 3
    assert [config.trainer.seed for config, _ in run.asked] == [1, 2, 2, 3]


@pytest.mark.parametrize("override", ["trainer.lr=1", "sweep=optuna"])
def test_a_sweep_goes_on_with_the_keys_it_was_begun_with(
    override: str, run: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "trainer.seed=1,2", "run.dir=sweep"]) == 0
    assert main(["resume", "sweep", override]) == 2
    assert "Only keys such as sweep.trials=50" in capsys.readouterr().err
    assert len(run.asked) == 2


def test_a_grid_goes_on_with_the_trials_it_was_begun_with(run: FakeRun, here: Path) -> None:
    files = [here / "mine" / "model" / f"own_{name}.yaml" for name in "ab"]
    files[0].parent.mkdir(parents=True)
    for file in files:
        file.write_text("defaults: [sage, _self_]\n")
    assert main(["--config-dir=mine", "-m", "model=glob(own_*)", "run.dir=sweep"]) == 0
    files[1].unlink()
    assert main(["resume", "sweep"]) == 0
    assert len(run.asked) == 2


def test_a_search_goes_on_with_no_fewer_trials_than_it_has(
    run: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    search = ["sweep=optuna", "sweep.trials=3", "trainer.lr=interval(0.01,0.1)"]
    assert main(["-m", *search, "run.dir=sweep"]) == 0
    assert main(["resume", "sweep", "sweep.trials=2"]) == 2
    assert "sweep.trials=2: the search has 3 trials" in capsys.readouterr().err
    assert main(["resume", "sweep", "sweep.trials=4"]) == 0
    assert len(run.asked) == 4


def test_a_current_directory_that_has_gone_is_a_sentence(
    run: FakeRun,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main([]) == 2
    assert run.asked == []
    assert "the current directory does not exist any more" in capsys.readouterr().err
    assert main(["--help"]) == 0


def test_output_survives_an_encoding_that_lacks_its_characters() -> None:
    done = shell("trainer.lr=\u03b1", PYTHONIOENCODING="ascii:strict", PYTHONUTF8="0")
    assert done.returncode == 2
    assert "a number > 0" in done.stderr
    assert shell("--help", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0").returncode == 0


def test_the_version_is_told_and_the_messages_are_ascii() -> None:
    assert shell("--version").stdout.startswith("gnntrain ")
    for printed in ("--help",), ("--cfg", "job", "experiment=cora_gat"):
        assert shell(*printed).stdout.isascii()


def test_a_reader_that_goes_away_is_no_failure() -> None:
    with started("-m", "gnntrain", "--help") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


# The command `resume`, and the word of it at the end of a run that was broken off.


def test_resume_goes_on_with_the_keys_that_may_change(run: FakeRun) -> None:
    changes = ["trainer.epochs=50", "logger=[csv]", "distributed.num_processes=2"]
    assert main(["resume", "latest", *changes]) == 0
    ((config, overrides),) = run.asked
    assert overrides == changes
    assert config.trainer.epochs == 50
    assert list(config.logger.chosen()) == ["csv"]
    assert config.model == Config().model


def test_resume_refuses_changes_that_make_another_run_all_at_once(
    run: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["dataset=cora", "trainer.lr=0.5", "trainer.epochs=3", "run.name=on"]
    assert main(["resume", "latest", *changes]) == 2
    assert run.asked == []
    err = capsys.readouterr().err
    assert "dataset=cora" in err
    assert "trainer.epochs" not in err
    changes = ["model.hidden_channels=64", "trainer.lr=0.5", "run.name=on"]
    assert main(["resume", "latest", *changes]) == 2
    err = capsys.readouterr().err
    assert "3 mistakes" in err
    assert "run.name=on" in err
    assert "model.hidden_channels=64  128, with which the run was begun" in err


def test_resume_of_a_folder_of_runs_lists_them_and_changes_nothing(
    run: FakeRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("0", "deep/1"):
        write_run(tmp_path / "others" / name, summary={"status": "failed"})
    (tmp_path / "others" / "multirun.yaml").touch()
    before = files(tmp_path)
    assert main(["resume", "others"]) == 2
    err = capsys.readouterr().err
    assert "gnntrain resume others/0\n" in err
    assert "gnntrain resume others/deep/1\n" in err
    assert run.asked == []
    assert files(tmp_path) == before


def test_a_failure_names_the_command_that_goes_on_where_there_is_a_checkpoint(
    run: FakeRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run.error = RunError("it broke")
    run.error.run_dir = tmp_path / "my-run"  # type: ignore[attr-defined]
    checkpoints = tmp_path / "my-run" / "checkpoints"
    for is_saved in (False, True):
        if is_saved:
            checkpoints.mkdir(parents=True)
            (checkpoints / "last.prev.pt").touch()
        assert main(["run.dir=my-run"]) == 1
        assert ("Go on with `gnntrain resume my-run`." in capsys.readouterr().err) == is_saved
