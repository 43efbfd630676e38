"""How a launcher has started this process: torchrun, SLURM, submitit, Kubernetes or SkyPilot.

Reads environment variables, without an import, since every command asks, and most are started by
no launcher.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gnntrain.errors import UserError

_PORT = 29500  # torch's own default
_SLURM_PORT = 15000  # and the last four digits of the job's number, as other programs choose
# Names that SLURM gives to the job of a person who types in its shell.
INTERACTIVE = ("bash", "interactive")
_REPEATED = r"(\d+)(?:\(x(\d+)\))?"  # 2(x3),1: three times 2, then 1
_HOST = r"(?:[^,\[\]]|\[[^\]]*\])+"  # up to the first comma that is in no bracket


@dataclass(frozen=True, slots=True)
class Launched:
    """One of the processes that a launcher has started for one run.

    Attributes:
        launcher: Its name, for messages.
        process: The number of this process, from 0.
        num_processes: How many processes the launcher has started on all machines.
        local_rank: The number of this process on its machine, where each process is a rank; None:
            one process a machine, which starts that machine's ranks.
        address: Where all processes meet: an address of process 0's machine, or its host name.
        port: The port at that address.
        has_store: Whether the launcher serves a `TCPStore` there; otherwise process 0 does.
        num_ranks: Ranks a machine, where the launcher says so to one process a machine.
        is_on_one_machine: Whether that is certain of all processes.
    """

    launcher: str
    process: int
    num_processes: int
    local_rank: int | None
    address: str
    port: int
    has_store: bool = False
    num_ranks: int | None = None
    is_on_one_machine: bool = False

    @property
    def is_main(self) -> bool:
        """Whether this process leads the run: it reads the command line and prints."""
        return self.process == 0


def launched(environ: Mapping[str, str] = os.environ) -> Launched | None:
    """How this process was started; None: by no launcher, or as the only process.

    Raises:
        UserError: The variables contradict each other, or some are missing.
    """
    variables = _Variables(environ)
    found = _found(variables)
    if found is None or (found.num_processes == 1 and not found.has_store):
        return None
    return found


def _found(variables: _Variables) -> Launched | None:
    # torchrun's come first: it is started by the others, and sets all of its own.
    if "TORCHELASTIC_RUN_ID" in variables:
        return _torchrun(variables)
    if (kubernetes := _kubeflow(variables)) is not None:
        return kubernetes
    outer = _slurm(variables) or _skypilot(variables) or _submitit_local(variables)
    inner = _torchs_variables(variables, outer)
    if outer is not None:  # also WORLD_SIZE without RANK, as scripts export it for all tasks
        for name, number in (("RANK", outer.process), ("WORLD_SIZE", outer.num_processes)):
            if name in variables and variables.number(name) != number:
                raise UserError(
                    f"{name}={variables.text(name)} contradicts {outer.launcher}, which has "
                    f"started this process as number {outer.process} of {outer.num_processes}.",
                    "Unset RANK and WORLD_SIZE: gnntrain reads the variables of "
                    f"{outer.launcher} itself.",
                )
    return inner or outer


class _Variables:
    """Environment variables, an empty one as if it were not set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def __contains__(self, name: str) -> bool:
        return bool(self._environ.get(name))

    def text(self, *names: str) -> str:
        """The first of these variables that is set; empty if none is."""
        return next((self._environ[name] for name in names if name in self), "")

    def required(self, name: str, other: str) -> str:
        """Its text; `other` is a variable that comes with it."""
        if name not in self:
            raise UserError(
                f"{name} is not set, but {other}={self.text(other)} is.",
                "A launcher sets them all: start with torchrun or srun, or unset the others.",
            )
        return self._environ[name]

    def number(self, name: str, other: str = "") -> int:
        """Its whole number; see `required`."""
        given = self.required(name, other)
        if not given.isdecimal():
            raise UserError(f"{name}={given} is set, which is not a number from 0 on.")
        return int(given)

    def share(self, rank: str, size: str) -> tuple[int, int]:
        """A number and how many there are, as RANK and WORLD_SIZE."""
        number, count = self.number(rank, size), self.number(size, rank)
        if number >= count:
            raise UserError(
                f"{rank}={number} and {size}={count} contradict each other.",
                f"{rank} counts from 0 to {size} - 1.",
            )
        return number, count

    def port(self, otherwise: int) -> int:
        given = self.text("MASTER_PORT", "PET_MASTER_PORT") or str(otherwise)
        if not given.isdecimal() or not 0 < int(given) < 1 << 16:
            raise UserError(f"MASTER_PORT={given} is set, which is not a port: 1 to 65535.")
        return int(given)


def _torchrun(variables: _Variables) -> Launched:
    rank, world_size = variables.share("RANK", "WORLD_SIZE")
    local_rank, local_world_size = variables.share("LOCAL_RANK", "LOCAL_WORLD_SIZE")
    address = variables.required("MASTER_ADDR", "TORCHELASTIC_RUN_ID")
    return Launched(
        "torchrun",
        rank,
        world_size,
        local_rank,
        address,
        variables.port(_PORT),
        variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True",
        is_on_one_machine=local_world_size == world_size or _is_loopback(address),
    )


def _is_loopback(address: str) -> bool:
    """Whether somebody has chosen the loopback interface: then all are on one machine."""
    return address in ("localhost", "::1") or address.startswith("127.")


def _torchs_variables(variables: _Variables, outer: Launched | None) -> Launched | None:
    """RANK and WORLD_SIZE, as torch reads them: by PyTorchJob, submitit, or a user's script."""
    if "RANK" not in variables and ("WORLD_SIZE" not in variables or outer is not None):
        return None
    rank, world_size = variables.share("RANK", "WORLD_SIZE")
    if world_size == 1:
        return None
    local_rank: int | None = None
    if "LOCAL_WORLD_SIZE" in variables:
        local_rank, _ = variables.share("LOCAL_RANK", "LOCAL_WORLD_SIZE")
    elif "LOCAL_RANK" in variables:
        local_rank = variables.number("LOCAL_RANK")
    if local_rank is not None and local_rank > rank:
        raise UserError(
            f"LOCAL_RANK={local_rank} and RANK={rank} contradict each other.",
            "The number of a rank on its machine is not larger than its number in all.",
        )
    address, port = variables.required("MASTER_ADDR", "WORLD_SIZE"), variables.port(_PORT)
    is_on_one = local_rank is not None and _is_loopback(address)
    return Launched(
        "the launcher", rank, world_size, local_rank, address, port, is_on_one_machine=is_on_one
    )


def _kubeflow(variables: _Variables) -> Launched | None:
    """PET_*, which Kubeflow's TrainJob and PyTorchJob set for torchrun: one process a machine."""
    if "PET_NNODES" not in variables:
        return None
    nodes = variables.text("PET_NNODES")
    if ":" in nodes:
        raise UserError(
            f"PET_NNODES={nodes} is set: a number of machines that changes needs torchrun.",
            "Let the container's command be `torchrun -m gnntrain …`, or fix the number.",
        )
    if nodes == "1":
        return None
    machine, machines = variables.share("PET_NODE_RANK", "PET_NNODES")
    ranks = variables.text("PET_NPROC_PER_NODE")
    num_ranks = int(ranks) if ranks.isdecimal() else None
    if "RANK" in variables:
        rank, world_size = variables.share("RANK", "WORLD_SIZE")
        if rank != machine or world_size not in (machines, machines * (num_ranks or 1)):
            raise UserError(
                f"RANK={rank} and WORLD_SIZE={world_size} contradict PET_NODE_RANK={machine} and "
                f"PET_NNODES={machines}.",
                "Leave out those that were set by hand.",
            )
    address = variables.text("PET_MASTER_ADDR") or variables.required("MASTER_ADDR", "PET_NNODES")
    port = variables.port(_PORT)
    return Launched("Kubernetes", machine, machines, None, address, port, num_ranks=num_ranks)


def _skypilot(variables: _Variables) -> Launched | None:
    """One process a machine."""
    hosts = variables.text("SKYPILOT_NODE_IPS").split()
    if len(hosts) < 2:
        return None
    machine = variables.number("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS")
    if machine >= len(hosts):
        raise UserError(
            f"SKYPILOT_NODE_RANK={machine} contradicts SKYPILOT_NODE_IPS, which has {len(hosts)}."
        )
    address = variables.text("MASTER_ADDR") or hosts[0]
    return Launched("SkyPilot", machine, len(hosts), None, address, variables.port(_PORT))


def _slurm(variables: _Variables) -> Launched | None:
    """A task that srun has started; not a shell, nor the batch script itself."""
    if "SLURM_STEP_ID" not in variables or "SLURM_PROCID" not in variables:
        return None
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in variables else "SLURM_NTASKS"
    # A person types in the shell that is the task; what `srun` starts there has no terminal.
    is_interactive = variables.text("SLURM_JOB_NAME") in INTERACTIVE and os.isatty(0)
    if variables.text(size) in ("", "1") or is_interactive:
        return None
    task, num_tasks = variables.share("SLURM_PROCID", size)
    nodes = variables.text("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    job = variables.text("SLURM_JOB_ID", "SLURM_JOBID")
    counts = variables.text("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    repeated = re.findall(_REPEATED, counts)
    local_rank, tasks = None, [int(n) for n, times in repeated for _ in range(int(times or 1))]
    if tasks:
        if sum(tasks) != num_tasks:
            raise UserError(f"{size}={num_tasks} contradicts SLURM_TASKS_PER_NODE={counts}.")
        if max(tasks) > 1:
            local_rank, task = _in_order(variables, tasks)
    address = variables.text("MASTER_ADDR") or first_host(nodes)
    port = variables.port(_SLURM_PORT + int("0" + job[-4:]))
    name = "submitit" if "SUBMITIT_EXECUTOR" in variables else "srun"
    is_on_one = len(tasks) == 1
    return Launched(name, task, num_tasks, local_rank, address, port, is_on_one_machine=is_on_one)


def _in_order(variables: _Variables, tasks: list[int]) -> tuple[int, int]:
    """The local and the global number of this task, where those of a machine are consecutive.

    SLURM's own numbers are not with `--distribution=cyclic`.
    """
    node = variables.number("SLURM_NODEID", "SLURM_PROCID")
    local = variables.number("SLURM_LOCALID", "SLURM_PROCID")
    if node >= len(tasks) or local >= tasks[node]:
        raise UserError(
            f"SLURM_NODEID={node} and SLURM_LOCALID={local} contradict the tasks a node that SLURM "
            f"gives, {tasks}."
        )
    return local, sum(tasks[:node]) + local


def _submitit_local(variables: _Variables) -> Launched | None:
    """Tasks of submitit's executor for one machine."""
    if variables.text("SUBMITIT_LOCAL_NTASKS") in ("", "1"):
        return None
    task, num_tasks = variables.share("SUBMITIT_LOCAL_GLOBALID", "SUBMITIT_LOCAL_NTASKS")
    job = "".join(filter(str.isdigit, variables.text("SUBMITIT_LOCAL_JOB_ID")))
    port = variables.port(_SLURM_PORT + int("0" + job[-4:]))
    host = "127.0.0.1"
    return Launched("submitit", task, num_tasks, task, host, port, is_on_one_machine=True)


def first_host(nodes: str) -> str:
    """The first host of SLURM's list: `n1` of `n[1-4,7],m1`, `a1b3` of `a[1-2]b[3-4]`."""
    found = re.match(_HOST, nodes)
    if found is None:
        raise UserError(
            f"SLURM_JOB_NODELIST={nodes} names no host.", "Set MASTER_ADDR to that of task 0."
        )
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", found[0])
