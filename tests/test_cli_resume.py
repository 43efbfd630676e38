"""The command `resume`, and the word of it at the end of a run that was broken off."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnntrain.cli import main
from gnntrain.config import Config
from gnntrain.errors import RunError
from tests.report.samples import write_run
from tests.test_cli import FakeRun, files, run

__all__ = ["run"]  # the fixture


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
    assert main(["resume", "latest", "model.hidden_channels=64", "trainer.lr=0.5"]) == 2
    err = capsys.readouterr().err
    assert "2 mistakes" in err
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


def test_a_failure_or_an_interruption_names_the_command_that_goes_on(
    run: FakeRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    way_on = "Go on with `gnntrain resume my-run`."
    checkpoints = tmp_path / "my-run" / "checkpoints"
    for error, code in ((KeyboardInterrupt(), 130), (RunError("it broke"), 1)):
        run.error = error
        assert main(["run.dir=my-run"]) == code
        assert way_on not in capsys.readouterr().err  # nothing was saved
        checkpoints.mkdir(parents=True)
        (checkpoints / "last.prev.pt").touch()
        error.run_dir = tmp_path / "my-run"  # type: ignore[union-attr]
        assert main(["run.dir=my-run"]) == code
        assert way_on in capsys.readouterr().err
        (checkpoints / "last.prev.pt").unlink()
        checkpoints.rmdir()
