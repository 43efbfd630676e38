"""A real Slurm on machines made for it, where Debian's slurm-wlm and munge are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from scripts.cluster.machines import Failed, Machines, Unavailable

_CONFIGURATION = """\
ClusterName=gnntrain
SlurmctldHost=machine0
SlurmUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
KillWait=20
NodeName=machine[0-{last}] CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_START_SECONDS = 30


def start_slurm(machines: Machines, count: int, folder: Path) -> Mapping[str, str]:
    """Start Slurm's daemons, the controller on machine 0.

    Args:
        machines: The machines.
        count: Their number.
        folder: For state and logs, empty.

    Returns:
        The environment variables that Slurm's commands need.

    Raises:
        Unavailable: Slurm is not installed, this process is not root, or Slurm does not start.
    """
    missing = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing or os.geteuid():
        reason = f"not installed: {', '.join(missing)}" if missing else "only root can start Slurm"
        raise Unavailable(reason)
    (folder / "state").mkdir(parents=True)
    values = {"folder": folder, "last": count - 1, "cpus": os.cpu_count()}
    (folder / "slurm.conf").write_text(_CONFIGURATION.format(**values))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    _munge(machines, key)
    env = {"SLURM_CONF": str(folder / "slurm.conf")}
    machines.start(0, ["slurmctld", "-D"], env=env)
    for machine in range(count):
        machines.start(machine, ["slurmd", "-D"], env=env)
    _wait_until_idle(machines, count, env)
    return env


def _munge(machines: Machines, key: Path) -> None:
    files = [f"--{kind}-file={key.parent}/munged.{kind}" for kind in ("log", "pid", "seed")]
    command = f"mkdir -m 755 /run/munge && munged --force --key-file={key} {' '.join(files)}"
    process = machines.start(0, ["bash", "-c", command])
    if printed := process.communicate()[0]:
        raise Unavailable(f"munged: {printed.strip()}")


def _wait_until_idle(machines: Machines, count: int, env: Mapping[str, str]) -> None:
    for _ in range(_START_SECONDS):
        sinfo = machines.start(0, ["sinfo", "--noheader", "--Node", "--format=%t"], env=env)
        if (states := sinfo.communicate()[0].split()) == ["idle"] * count:
            return
        time.sleep(1)
    raise Unavailable(f"Slurm's nodes are not idle after {_START_SECONDS} s but {states}")


class Job:
    """A batch job, as its user sees it.

    Args:
        machines: Where Slurm runs.
        script: The text of the batch script.
        folder: Its current directory.
        env: As `start_slurm` returns them, and variables of the job's own.
    """

    number = 1  # of the first job

    def __init__(
        self, machines: Machines, script: str, folder: Path, env: Mapping[str, str]
    ) -> None:
        self._machines, self._env = machines, env
        self._output = folder / "slurm.out"
        (folder / "train.sbatch").write_text(script)
        command = ["sbatch", "--wait", f"--output={self._output}", str(folder / "train.sbatch")]
        self._process = machines.start(0, command, folder=folder, env=env)

    def command(self, *words: str) -> str:
        """What one of Slurm's commands prints."""
        return self._machines.start(0, words, env=self._env).communicate()[0]

    def wait(self, seconds: float) -> None:
        """Wait for the job's end.

        Raises:
            Failed: It could not be submitted, has failed, or goes on.
        """
        try:
            said, _ = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"no end after {seconds:g} s\n{self._printed()}") from None
        if self._process.returncode:
            raise Failed(f"exit code {self._process.returncode}\n{said}{self._printed()}")

    def _printed(self) -> str:
        return self._output.read_text() if self._output.exists() else ""
