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


class _Variables:
    """Environment variables, an empty one as if it were not set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, *names: str) -> str:
        """The first of these variables that is set; empty if none is."""
        return next((self._environ[name] for name in names if self._environ.get(name)), "")

    def number(self, name: str) -> int:
        """Its whole number."""
        text = self.text(name)
        if not text.isdecimal():
            raise UserError(
                f"{name}={text} is no number from 0 on; the launcher's other variables are set.",
                "Start with torchrun or srun, which set all of them, or unset the others.",
            )
        return int(text)

    def share(self, rank: str, size: str) -> tuple[int, int]:
        """A number and how many there are, as RANK and WORLD_SIZE."""
        number, count = self.number(rank), self.number(size)
        if number >= count:
            raise _contradiction(f"{rank}={number}", f"{size}={count}")
        return number, count

    def place(self, *addresses: str, otherwise: str = "", port: int = _PORT) -> tuple[str, int]:
        """The address and the port at which all processes meet."""
        address = self.text(*addresses, "MASTER_ADDR") or otherwise
        given = self.text("MASTER_PORT", "PET_MASTER_PORT") or str(port)
        if not address:
            raise UserError(
                "MASTER_ADDR is not set, and the launcher's variables name no host.",
                "Set it to the address of process 0's machine, or start with torchrun or srun.",
            )
        if not given.isdecimal() or not 0 < int(given) < 1 << 16:
            raise UserError(f"MASTER_PORT={given} is set, which is not a port: 1 to 65535.")
        return address, int(given)


def _contradiction(one: str, other: str) -> UserError:
    return UserError(
        f"{one} contradicts {other}.",
        "Unset those that were set by hand: a launcher sets them all.",
    )


def launched(environ: Mapping[str, str] = os.environ) -> Launched | None:
    """How this process was started; None: by no launcher, or as the only process.

    Raises:
        UserError: The variables contradict each other, or some are missing.
    """
    variables = _Variables(environ)
    # torchrun's come first: it is started by the others, and sets all of its own. Then Kubeflow's,
    # which sets RANK and WORLD_SIZE, too.
    if variables.text("TORCHELASTIC_RUN_ID"):
        rank, world_size = variables.share("RANK", "WORLD_SIZE")
        local_rank, local_size = variables.share("LOCAL_RANK", "LOCAL_WORLD_SIZE")
        address, port = variables.place()
        found: Launched | None = Launched(
            "torchrun",
            rank,
            world_size,
            local_rank,
            address,
            port,
            has_store=variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True",
            is_on_one_machine=local_size == world_size or _is_loopback(address),
        )
    elif variables.text("PET_NNODES") not in ("", "1"):
        found = _kubeflow(variables)
    else:
        found = _slurm(variables) or _skypilot(variables) or _submitit_local(variables)
        if found is not None:  # also WORLD_SIZE without RANK, as scripts export it for all tasks
            for name, number in (("RANK", found.process), ("WORLD_SIZE", found.num_processes)):
                if variables.text(name) and variables.number(name) != number:
                    raise _contradiction(
                        f"{name}={variables.text(name)}",
                        f"{found.launcher}, which has started number {found.process} of "
                        f"{found.num_processes}",
                    )
        if variables.text("RANK") or (found is None and variables.text("WORLD_SIZE")):
            found = _torchs_variables(variables) or found
    if found is None or (found.num_processes == 1 and not found.has_store):
        return None
    return found


def _is_loopback(address: str) -> bool:
    """Whether somebody has chosen the loopback interface: then all are on one machine."""
    return address in ("localhost", "::1") or address.startswith("127.")


def _torchs_variables(variables: _Variables) -> Launched | None:
    """RANK and WORLD_SIZE, as torch reads them: by PyTorchJob, submitit, or a user's script."""
    rank, world_size = variables.share("RANK", "WORLD_SIZE")
    if world_size == 1:
        return None
    local_rank: int | None = None
    if variables.text("LOCAL_WORLD_SIZE"):
        local_rank, _ = variables.share("LOCAL_RANK", "LOCAL_WORLD_SIZE")
    elif variables.text("LOCAL_RANK"):
        local_rank = variables.number("LOCAL_RANK")
    if local_rank is not None and local_rank > rank:
        raise _contradiction(f"LOCAL_RANK={local_rank}", f"RANK={rank}")
    address, port = variables.place()
    is_on_one = local_rank is not None and _is_loopback(address)
    return Launched(
        "the launcher", rank, world_size, local_rank, address, port, is_on_one_machine=is_on_one
    )


def _kubeflow(variables: _Variables) -> Launched | None:
    """PET_*, which Kubeflow's TrainJob and PyTorchJob set for torchrun: one process a machine."""
    nodes, ranks = variables.text("PET_NNODES"), variables.text("PET_NPROC_PER_NODE")
    if ":" in nodes:
        raise UserError(
            f"PET_NNODES={nodes} is set: a number of machines that changes needs torchrun.",
            "Let the container's command be `torchrun -m gnntrain …`, or fix the number.",
        )
    machine, machines = variables.share("PET_NODE_RANK", "PET_NNODES")
    num_ranks = int(ranks) if ranks.isdecimal() else None
    address, port = variables.place("PET_MASTER_ADDR")
    return Launched("Kubernetes", machine, machines, None, address, port, num_ranks=num_ranks)


def _skypilot(variables: _Variables) -> Launched | None:
    """One process a machine."""
    hosts = variables.text("SKYPILOT_NODE_IPS").split()
    if len(hosts) < 2:
        return None
    machine = variables.number("SKYPILOT_NODE_RANK")
    if machine >= len(hosts):
        raise _contradiction(f"SKYPILOT_NODE_RANK={machine}", f"{len(hosts)} SKYPILOT_NODE_IPS")
    return Launched("SkyPilot", machine, len(hosts), None, *variables.place(otherwise=hosts[0]))


def _slurm(variables: _Variables) -> Launched | None:
    """A task that srun has started; not a shell, nor the batch script itself."""
    if not variables.text("SLURM_STEP_ID") or not variables.text("SLURM_PROCID"):
        return None
    size = "SLURM_STEP_NUM_TASKS" if variables.text("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    # A person types in the shell that is the task; what `srun` starts there has no terminal.
    is_interactive = variables.text("SLURM_JOB_NAME") in INTERACTIVE and os.isatty(0)
    if variables.text(size) in ("", "1") or is_interactive:
        return None
    task, num_tasks = variables.share("SLURM_PROCID", size)
    counts = variables.text("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    tasks = [int(n) for n, k in re.findall(_REPEATED, counts) for _ in range(int(k or 1))]
    local_rank = None
    if tasks and max(tasks) > 1:
        # Numbers that are consecutive on a machine: SLURM's are not with --distribution=cyclic.
        node, local_rank = variables.number("SLURM_NODEID"), variables.number("SLURM_LOCALID")
        task = sum(tasks[:node]) + local_rank
    nodes = variables.text("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    job = variables.text("SLURM_JOB_ID", "SLURM_JOBID")
    address, port = variables.place(
        otherwise=first_host(nodes), port=_SLURM_PORT + int("0" + job[-4:])
    )
    name = "submitit" if variables.text("SUBMITIT_EXECUTOR") else "srun"
    is_on_one = len(tasks) == 1
    return Launched(name, task, num_tasks, local_rank, address, port, is_on_one_machine=is_on_one)


def _submitit_local(variables: _Variables) -> Launched | None:
    """Tasks of submitit's executor for one machine."""
    if variables.text("SUBMITIT_LOCAL_NTASKS") in ("", "1"):
        return None
    task, num_tasks = variables.share("SUBMITIT_LOCAL_GLOBALID", "SUBMITIT_LOCAL_NTASKS")
    job = "".join(filter(str.isdigit, variables.text("SUBMITIT_LOCAL_JOB_ID")))
    host = "127.0.0.1"
    _, port = variables.place(otherwise=host, port=_SLURM_PORT + int("0" + job[-4:]))
    return Launched("submitit", task, num_tasks, task, host, port, is_on_one_machine=True)


def first_host(nodes: str) -> str:
    """The first host of SLURM's list: `n1` of `n[1-4,7],m1`, `a1b3` of `a[1-2]b[3-4]`."""
    found = re.match(_HOST, nodes)
    if found is None:
        return ""
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", found[0])
