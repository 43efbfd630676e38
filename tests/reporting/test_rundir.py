from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gnntrain.errors import RunError, UserError
from gnntrain.reporting import rundir
from gnntrain.reporting.rundir import (
    RunDirectory,
    RunPlace,
    find_run,
    has_checkpoint,
    is_run,
    planned_run,
    run_directories,
)
from tests.report.samples import write_run

CONFIG = {
    "model": {"name": "sage"},
    "sampler": {"fan_outs": [25, 10]},
    "trainer": {"lr": 1e-5, "seed": 7},
}


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
    return RunDirectory.create(place, CONFIG, overrides=overrides)


def test_a_new_run_says_what_was_asked_and_on_what_it_runs() -> None:
    run = create()
    assert run.config() == CONFIG
    assert (run.path / "overrides.txt").read_text() == "dataset=cora\nmodel=sage\n"
    assert json.loads((run.path / "env.json").read_text())["seed"] == 7
    assert run.checkpoints.is_dir()
    assert (run.path / "logs").is_dir()


@pytest.mark.parametrize("name", ["../up", "n\nl", "x" * 300])
def test_a_name_of_a_data_set_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    run = create(dataset=name)
    assert run.path.parent == tmp_path / "runs"
    assert run.path.name[0] not in ".-"
    assert len(run.path.name) < 130


@pytest.mark.parametrize("directory", [None, "out"])
def test_of_runs_that_start_at_once_on_a_directory_one_gets_it(
    directory: str | None, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    outcomes: list[Path | None] = []

    def start() -> None:
        try:
            outcomes.append(create(directory=directory).path)
        except UserError:
            outcomes.append(None)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [path for path in outcomes if path is not None]
    assert len({*made}) == len(made) == (1 if directory else 6)
    assert all((path / "config.yaml").is_file() for path in made)


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
        assert not has_checkpoint("out")
        assert RunDirectory.open("out").checkpoints.is_dir()
    else:
        create(directory="out")


@pytest.mark.parametrize("name", [" ", "latest", "/absolute", "a/../../b"])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"run\.name"):
        create(name=name)


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
    (tmp_path / "runs" / "latest").unlink()  # as on a file system without links
    os.utime(two.path / "config.yaml", (9e9, 9e9))
    assert RunDirectory.open("latest").path == two.path


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


def test_the_runs_of_a_folder_are_those_up_to_four_levels_below(tmp_path: Path) -> None:
    folder = tmp_path / "multirun"
    names = ["10", "9", "b/0", "c/2026-11-22/10-00-00", "d/1/2/3", "e/1/2/3/4", ".hydra"]
    for name in names:
        write_run(folder / name)
    write_run(folder / "9" / "checkpoints" / "inner")  # inside of a run
    (folder / "latest").symlink_to(folder / "9")
    found = [str(path.relative_to(folder)) for path in run_directories(folder)]
    assert found == ["9", "10", "b/0", "c/2026-11-22/10-00-00", "d/1/2/3"]


def test_a_missing_checkpoint_is_a_sentence() -> None:
    with pytest.raises(UserError, match="runs/young has no best checkpoint yet"):
        create(name="young").best_checkpoint()


def test_a_folder_that_is_no_run_hides_no_run(tmp_path: Path) -> None:
    run = create(name="plug")
    (tmp_path / "plug").mkdir()
    assert find_run("plug").resolve() == run.path
    (tmp_path / "plug" / "sweep.json").touch()
    assert find_run("plug").resolve() == tmp_path / "plug"
