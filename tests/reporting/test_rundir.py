from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gnntrain.errors import RunError, UserError
from gnntrain.reporting import rundir
from gnntrain.reporting.rundir import RunDirectory, RunPlace, is_run, planned_run

CONFIG = {"model": {"name": "sage"}, "sampler": {"fan_outs": [25, 10]}, "trainer": {"lr": 1e-5}}


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests of the directory need not ask the machine; test_environment does."""
    monkeypatch.setattr(rundir, "describe_environment", lambda seed, **_: {"seed": seed})
    monkeypatch.chdir(tmp_path)


def create(
    directory: str | Path | None = None, name: str | None = None, dataset: str = "cora"
) -> RunDirectory:
    path = planned_run(None if directory is None else str(directory), name, dataset, "sage")
    place = RunPlace(Path(path), is_made_up=directory is None and name is None)
    overrides = ["dataset=cora", "model=sage"]
    return RunDirectory.create(place, CONFIG, overrides=overrides, seed=7)


def test_a_new_run_says_what_was_asked_and_on_what_it_runs() -> None:
    run = create()
    assert run.config() == {
        "model": {"name": "sage"},
        "sampler": {"fan_outs": [25, 10]},
        "trainer": {"lr": 1e-5},
    }
    assert (run.path / "overrides.txt").read_text() == "dataset=cora\nmodel=sage\n"
    assert json.loads((run.path / "env.json").read_text())["seed"] == 7
    assert run.checkpoints.is_dir()
    assert (run.path / "logs").is_dir()


def test_a_run_goes_where_run_dir_says_or_else_under_runs(tmp_path: Path) -> None:
    assert create(directory=tmp_path / "a" / "b", name="x").path == tmp_path / "a" / "b"
    assert create(name="first").path == tmp_path / "runs" / "first"
    assert create().path.parent == tmp_path / "runs"
    assert create().name.startswith("cora-sage-20")


@pytest.mark.parametrize("name", ["../up", "n\nl", "x" * 300])
def test_a_name_of_a_data_set_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    run = create(dataset=name)
    assert run.path.parent == tmp_path / "runs"
    assert run.name[0] not in ".-"
    assert len(run.name) < 130


def test_runs_that_start_at_once_get_a_directory_each() -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(create().path)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 8
    assert all((path / "config.yaml").is_file() for path in paths)


def test_of_two_runs_on_one_empty_directory_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    outcomes: list[str] = []

    def start() -> None:
        try:
            create(directory="out")
            outcomes.append("made")
        except UserError:
            outcomes.append("refused")

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made", "refused", "refused", "refused"]


def test_an_empty_directory_is_taken_and_any_other_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.mkdir()
    assert create(directory="out").path == path
    for name in ("config.yaml", "chapter.tex", "sweep.json", "multirun.yaml"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("{}")
        with pytest.raises(UserError) as caught:
            create(directory=name)
        assert "run.dir" in (caught.value.hint or "")
        assert [entry.name for entry in (tmp_path / name).iterdir()] == [name]


@pytest.mark.parametrize("moment", [(Path, "open"), (rundir, "describe_environment")])
def test_a_run_that_is_killed_while_its_directory_is_made_can_begin_anew(
    moment: tuple[Any, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*moment, killed)
        with pytest.raises(KeyboardInterrupt):
            create(directory="out")
    if is_run(tmp_path / "out"):
        assert not RunDirectory.open("out").has_checkpoint
        assert RunDirectory.open("out").checkpoints.is_dir()
    else:
        create(directory="out")


@pytest.mark.parametrize("name", [" ", "latest", "/absolute", "a/../../b"])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"run\.name"):
        create(name=name)


def fail_with(code: int) -> Any:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_place_that_cannot_be_written_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    for directory in ("out", "out/run"):
        with pytest.raises(UserError, match="cannot be written") as caught:
            create(directory=directory)
        assert "run.dir" in (caught.value.hint or "")


def test_a_full_disk_gives_a_sentence_and_leaves_no_half_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real_open = Path.open

    def full(path: Path, *args: Any, **options: Any) -> Any:
        real_open(path, *args, **options).close()
        return real_open(Path("/dev/full"), "w")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(RunError, match="No space left") as caught:
            create(directory="out")
    assert "space" in (caught.value.hint or "")
    assert not (tmp_path / "out/config.yaml").exists()
    create(directory="out")


def test_latest_is_the_newest_run(tmp_path: Path) -> None:
    create(name="one")
    two = create(name="two")
    assert RunDirectory.open("latest").path == two.path
    assert (tmp_path / "runs" / "latest").readlink() == Path("two")


def test_latest_works_on_a_file_system_without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "symlink_to", fail_with(errno.EPERM))
    old, new = create(name="old"), create(name="new")
    os.utime(old.path / "config.yaml", (1, 1))
    assert RunDirectory.open("latest").path == new.path


def test_a_run_is_found_by_path_and_by_name() -> None:
    with pytest.raises(UserError):
        RunDirectory.open("latest")
    run = create(name="mine")
    for name in ("mine", "runs/mine", run.path, "latest"):
        assert RunDirectory.open(name).path == run.path


@pytest.mark.parametrize(
    ("name", "hint"), [("cora-sgae-1", "Did you mean cora-sage-1?"), ("nope", "cora-sage-1")]
)
def test_an_unknown_run_is_answered_with_the_nearest_names(name: str, hint: str) -> None:
    create(name="cora-sage-1")
    with pytest.raises(UserError, match=f"no run '{name}'") as caught:
        RunDirectory.open(name)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_a_missing_checkpoint_is_a_sentence() -> None:
    run = create(name="young")
    with pytest.raises(UserError, match="runs/young has no best checkpoint yet"):
        run.best_checkpoint()
    (run.checkpoints / "best.pt").touch()
    assert run.best_checkpoint() == run.path / "checkpoints" / "best.pt"


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "- 1", "!!python/name:os.system", "\udcff", "\x00"]
)
def test_a_file_that_is_no_plain_data_is_a_users_error(text: str) -> None:
    run = create()
    for name in ("config.yaml", "store.json", "summary.json"):
        (run.path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=r"config\.yaml"):
        run.config()
    with pytest.raises(UserError, match=r"store\.json cannot be read"):
        run.store_record()
    assert run.summary() is None
