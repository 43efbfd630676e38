"""What a container or a batch system leaves to a process: memory and cores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from gnntrain import limits
from gnntrain.config import Config
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.limits import Container, container

MIB = 2**20


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The control group of a job of Slurm's, three levels below the machine's."""
    (tmp_path / "self").write_text("1:name=systemd:/other\n0::/slurm/job_7/step_0\n")
    monkeypatch.setattr(limits, "_OWN_CGROUP", tmp_path / "self")
    monkeypatch.setattr(limits, "_CGROUPS", tmp_path / "cgroup")
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
    assert limits.total_memory() == 64 * MIB
    assert limits.available_memory() == 24 * MIB


def test_pages_of_files_that_nobody_reads_are_available(job: Path) -> None:
    limit(job, f"{64 * MIB}", used=60 * MIB, idle_files=50 * MIB)
    assert limits.available_memory() == 54 * MIB
    limit(job, f"{64 * MIB}", used=70 * MIB)
    assert limits.available_memory() == 0


def test_without_control_groups_the_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_OWN_CGROUP", Path("/nonexistent"))
    assert container() == Container(None, None, None, 0)
    assert limits.total_memory() == psutil.virtual_memory().total
    assert limits.available_memory() > 0
    assert limits.available_cores() == len(limits.core_numbers())


VERSION_1 = {
    "memory/memory.limit_in_bytes": f"{1536 * MIB}\n",
    "memory/memory.usage_in_bytes": f"{1024 * MIB}\n",
    "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {256 * MIB}\n",
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
    "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
}
VERSION_2 = {
    "memory.max": f"{1536 * MIB}\n",
    "memory.current": f"{1024 * MIB}\n",
    "memory.stat": f"inactive_file {256 * MIB}\n",
    "memory.events": "oom 3\noom_kill 2\n",
    "cpu.max": "50000 100000\n",
}
BESIDE_VERSION_1 = {f"unified/{name}": text for name, text in VERSION_2.items()}
UNLIMITED = {
    "memory/memory.limit_in_bytes": "9223372036854771712\n",
    "cpu/cpu.cfs_quota_us": "-1\n",
    "cpu/cpu.cfs_period_us": "100000\n",
    "memory.max": "max\n",
    "cpu.max": "max 100000\n",
}
GROUPS_OF_1 = "9:memory:/docker/abc\n5:cpu,cpuacct:/docker/abc\n"


@pytest.mark.parametrize(
    ("files", "groups"),
    [(VERSION_1, GROUPS_OF_1), (VERSION_2, "0::/\n"), (BESIDE_VERSION_1, "1:pids:/\n0::/\n")],
)
def test_both_versions_of_control_groups_are_read(
    files: Mapping[str, str], groups: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(tmp_path, files, groups, monkeypatch)
    assert container() == Container(1536 * MIB, 768 * MIB, 0.5, kills=2)
    assert "killed 2 of this" in limits.why_killed()


def test_an_unlimited_group_limits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(tmp_path, UNLIMITED, f"{GROUPS_OF_1}0::/\n", monkeypatch)
    assert limits.total_memory() == psutil.virtual_memory().total
    assert limits.available_cores() == len(limits.core_numbers())


@pytest.mark.parametrize(
    ("quota", "threads"), [("50000 100000", 1), ("250000 100000", 2), ("max 100000", 64)]
)
def test_as_many_threads_start_as_a_quota_gives_whole_cores(
    quota: str, threads: int, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    (job.parent / "cpu.max").write_text(quota)
    assert LaunchPlan.of(Config()).threads == threads


def mount(
    folder: Path, files: Mapping[str, str], groups: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "self").write_text(groups)
    monkeypatch.setattr(limits, "_CGROUPS", folder / "cgroup")
    monkeypatch.setattr(limits, "_OWN_CGROUP", folder / "self")
