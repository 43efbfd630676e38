"""The memory that a container or a batch system leaves to a process."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from gnntrain import host_memory

MIB = 2**20


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The control group of a job of Slurm's, three levels below the machine's."""
    (tmp_path / "self").write_text("1:name=systemd:/other\n0::/slurm/job_7/step_0\n")
    monkeypatch.setattr(host_memory, "_OWN_CGROUP", tmp_path / "self")
    monkeypatch.setattr(host_memory, "_CGROUPS", tmp_path / "cgroup")
    folder = tmp_path / "cgroup/slurm/job_7/step_0"
    folder.mkdir(parents=True)
    return folder


def limit(folder: Path, most: str, used: int = 0, idle_files: int = 0) -> None:
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {idle_files}\n")


def test_the_narrowest_group_that_a_process_is_in_limits_it(job: Path) -> None:
    limit(job, "max")
    limit(job.parent, f"{64 * MIB}", used=40 * MIB)
    limit(job.parents[1], f"{1024 * MIB}")
    assert host_memory.memory_limit() == 64 * MIB
    assert host_memory.available_memory() == 24 * MIB


def test_pages_of_files_that_nobody_reads_are_available(job: Path) -> None:
    limit(job, f"{64 * MIB}", used=60 * MIB, idle_files=50 * MIB)
    assert host_memory.available_memory() == 54 * MIB
    limit(job, f"{64 * MIB}", used=70 * MIB)
    assert host_memory.available_memory() == 0


def test_without_a_limit_the_machines_memory_counts(job: Path) -> None:
    assert job.is_dir()
    assert host_memory.memory_limit() is None
    available = psutil.virtual_memory().available
    assert 0.5 * available < host_memory.available_memory() < 2 * available


def test_without_control_groups_the_machines_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_OWN_CGROUP", Path("/nonexistent"))
    assert host_memory.memory_limit() is None
    assert host_memory.available_memory() > 0
