from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

import pytest

from gnntrain.run import begun_run, job_names


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def write_run(path: Path, overrides: Sequence[str], jobs: Mapping[str, str]) -> Path:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("{}\n")
    (path / "overrides.txt").write_text("".join(f"{text}\n" for text in overrides))
    (path / "env.json").write_text(json.dumps({"jobs": jobs}))
    return path


def found(
    environ: Mapping[str, str],
    overrides: Sequence[str] = ("model=gcn",),
    named: Path | None = None,
    *,
    torchrun_job: str | None = None,
    is_launched: bool = False,
    if_exists: str = "auto",
) -> Path | None:
    with mock.patch.dict(os.environ, environ, clear=True):
        jobs = job_names(torchrun_job)
        run = begun_run(if_exists, overrides, named, jobs, is_launched=is_launched)
    return None if run is None else run.path


REQUEUED = {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "1"}


def test_a_requeued_slurm_job_finds_the_run_that_it_began(runs: Path) -> None:
    run = write_run(runs / "a", ["model=gcn"], {"slurm": "17"})
    write_run(runs / "b", ["model=gcn"], {"slurm": "18"})
    write_run(runs / "c", ["model=gat"], {"slurm": "17"})
    write_run(runs / "d", ["model=gcn"], {})
    assert found(REQUEUED) == run
    assert found(REQUEUED, ["model=sage"]) is None
    assert found({"SLURM_JOB_ID": "17"}) is None
    assert found({"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "0"}) is None
    assert found({}) is None


def test_a_task_of_a_job_array_finds_its_own(runs: Path) -> None:
    array = {"SLURM_ARRAY_JOB_ID": "20", "SLURM_RESTART_COUNT": "1"}
    made = [write_run(runs / str(n), ["model=gcn"], {"slurm": f"20_{n}"}) for n in range(3)]
    for number, job in enumerate(("22", "21", "20")):
        environ = {**array, "SLURM_JOB_ID": job, "SLURM_ARRAY_TASK_ID": str(number)}
        assert found(environ) == made[number]


def test_ranks_that_torchrun_starts_again_find_their_run(runs: Path) -> None:
    run = write_run(runs / "a", ["model=gcn"], {"torchrun": "abc", "slurm": "17"})
    for count in ("0", "1"):  # one agent may count a restart, and another not
        assert found({"TORCHELASTIC_RESTART_COUNT": count}, torchrun_job="abc") == run
    assert found({"TORCHELASTIC_RESTART_COUNT": "1"}, torchrun_job="def") is None
    assert found(REQUEUED, torchrun_job="ghi") == run  # torchrun's store is new


def test_the_second_run_of_a_program_is_not_taken_for_its_first() -> None:
    with mock.patch.dict(os.environ, REQUEUED, clear=True):
        names = [job_names("abc", number) for number in (1, 2)]
    assert names[0] == {"slurm": "17", "torchrun": "abc"}
    assert not names[0].items() & names[1].items()


def test_skypilot_tells_no_count_but_a_name_that_lasts(runs: Path) -> None:
    run = write_run(runs / "a", ["model=gcn"], {"skypilot": "sky-1"})
    assert found({"SKYPILOT_TASK_ID": "sky-1"}) == run
    assert found({"SKYPILOT_TASK_ID": "sky-2"}) is None


def test_under_a_launcher_the_same_command_goes_on_in_the_directory_that_it_names(
    runs: Path,
) -> None:
    run = write_run(runs / "named", ["model=gcn"], {})
    assert found({}, named=run) is None
    assert found({}, named=run, is_launched=True) == run
    assert found(REQUEUED, named=run) == run
    assert found({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, named=run) == run
    assert found({}, named=run, if_exists="resume") == run
    assert found(REQUEUED, named=run, is_launched=True, if_exists="error") is None
    assert found({}, named=runs / "new", is_launched=True) is None


def test_a_run_whose_files_are_damaged_is_no_candidate(runs: Path) -> None:
    run = write_run(runs / "a", ["model=gcn"], {"slurm": "17"})
    (run / "env.json").write_text("[")
    assert found(REQUEUED) is None
