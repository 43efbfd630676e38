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
_INTERACTIVE = ("bash", "interactive")
STARTED_BY = "GNNTRAIN_LAUNCHER"
"""The launcher's name, for ranks that the one process of a machine has started."""


@dataclass(frozen=True, slots=True)
class Launched:
    """One of the processes that a launcher has started for one run."""

    launcher: str  # its name, for messages
    process: int  # from 0
    num_processes: int  # on all machines
    local_rank: int | None  # on its machine; None: it starts that machine's ranks
    address: str  # where all processes meet: an address of process 0's machine, or its host name
    port: int
    has_store: bool = False  # the launcher serves a `TCPStore` there; otherwise process 0 does
    num_ranks: int | None = None  # a machine, where the launcher says so
    is_on_one_machine: bool = False  # certainly, all processes

    @property
    def is_main(self) -> bool:
        """Whether this process leads the run: it reads the command line and prints."""
        return self.process == 0


def launched(environ: Mapping[str, str] = os.environ) -> Launched | None:
    """How this process was started; None: by no launcher, or as the only process.

    Raises:
        UserError: The variables contradict each other, or some are missing.
    """

    def text(*names: str) -> str:
        """The first of these variables that is set: an empty one is not."""
        return next((environ[name] for name in names if environ.get(name)), "")

    def number(name: str) -> int:
        if not text(name).isdecimal():
            raise UserError(
                f"{name}={text(name)} is no number from 0 on, which a launcher would set.",
                "Start with torchrun or srun, which set all of them, or unset the others.",
            )
        return int(text(name))

    def share(rank: str, size: str) -> tuple[int, int]:
        if number(size) <= number(rank):  # the size first: elastic jobs have a range
            raise _contradiction(f"{rank}={text(rank)}", f"{size}={text(size)}")
        return number(rank), number(size)

    launcher, process, size, is_on_one, has_store = "", 0, 1, False, False
    local_rank: int | None = None
    num_ranks: int | None = None
    address, port = text("MASTER_ADDR"), _PORT
    hosts, tasks = text("SKYPILOT_NODE_IPS").split(), "SLURM_STEP_NUM_TASKS"
    tasks = tasks if text(tasks) else "SLURM_NTASKS"
    # A task that srun has started; not a shell, nor the batch script itself. A person types in the
    # shell that is the task; what `srun` starts there has no terminal.
    is_shell = text("SLURM_JOB_NAME") in _INTERACTIVE and os.isatty(0)
    is_task = bool(text("SLURM_STEP_ID") and text("SLURM_PROCID") and not is_shell)
    # torchrun's variables come first: it is started by the others, and sets all of its own. Then
    # Kubeflow's, which sets RANK and WORLD_SIZE, too.
    if text("TORCHELASTIC_RUN_ID", STARTED_BY):
        launcher = text(STARTED_BY) or "torchrun"
        process, size = share("RANK", "WORLD_SIZE")
        local_rank, local_size = share("LOCAL_RANK", "LOCAL_WORLD_SIZE")
        has_store = text("TORCHELASTIC_USE_AGENT_STORE") == "True"
        is_on_one = local_size == size
    elif text("PET_NNODES") not in ("", "1"):
        # PET_*, which Kubeflow's TrainJob and PyTorchJob set for torchrun: one process a machine.
        launcher, ranks = "Kubernetes", text("PET_NPROC_PER_NODE")
        process, size = share("PET_NODE_RANK", "PET_NNODES")
        num_ranks = int(ranks) if ranks.isdecimal() else None
        address = text("PET_MASTER_ADDR") or address
    else:
        if is_task and text(tasks) not in ("", "1"):
            launcher = "submitit" if text("SUBMITIT_EXECUTOR") else "srun"
            process, size = share("SLURM_PROCID", tasks)
            counts = text("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
            found = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)  # 2(x3),1: three times 2, then 1
            by_node = [int(n) for n, times in found for _ in range(int(times or 1))]
            is_on_one = len(by_node) == 1
            if max(by_node, default=1) > 1:
                # Consecutive on a machine: SLURM's numbers are not with --distribution=cyclic.
                local_rank = number("SLURM_LOCALID")
                process = sum(by_node[: number("SLURM_NODEID")]) + local_rank
            nodes = text("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
            # The first host: `n1` of `n[1-4,7],m1`, `a1b3` of `a[1-2]b[3-4]`.
            first = re.split(r",(?![^\[]*\])", nodes)[0]  # up to a comma in no bracket
            address = address or re.sub(r"\[([^],-]*)[^]]*\]", r"\1", first)
            port = _SLURM_PORT + int("0" + text("SLURM_JOB_ID", "SLURM_JOBID")[-4:])
        elif len(hosts) > 1:
            launcher, process, size = "SkyPilot", number("SKYPILOT_NODE_RANK"), len(hosts)
            address = address or hosts[0]
        elif text("SUBMITIT_LOCAL_NTASKS") not in ("", "1"):  # submitit's executor for one machine
            launcher, is_on_one, address = "submitit", True, "127.0.0.1"
            process, size = share("SUBMITIT_LOCAL_GLOBALID", "SUBMITIT_LOCAL_NTASKS")
            local_rank = process
            job = "".join(filter(str.isdigit, text("SUBMITIT_LOCAL_JOB_ID")))
            port = _SLURM_PORT + int("0" + job[-4:])
        if launcher:  # also WORLD_SIZE without RANK, as scripts export it for all tasks
            for name, value in (("RANK", process), ("WORLD_SIZE", size)):
                if text(name) and number(name) != value:
                    raise _contradiction(
                        f"{name}={text(name)}",
                        f"{launcher}, which has started number {process} of {size}",
                    )
        if text("RANK") or (not launcher and text("WORLD_SIZE")):
            # As torch reads them: by PyTorchJob, submitit, or a user's script.
            launcher, address, port = "the launcher", text("MASTER_ADDR"), _PORT
            process, size = share("RANK", "WORLD_SIZE")
            is_on_one, local_rank = False, None
            if size > 1 and text("LOCAL_RANK"):
                local_rank = number("LOCAL_RANK")
    if process >= size:
        raise _contradiction(f"Process {process} (from 0)", f"{launcher}'s {size} processes")
    if size == 1 and not has_store:
        return None
    if not address:
        raise UserError(
            "MASTER_ADDR is not set, and the launcher's variables name no host.",
            "Set it to the address of process 0's machine, or start with torchrun or srun.",
        )
    typed = text("MASTER_PORT", "PET_MASTER_PORT") or str(port)
    if not typed.isdecimal() or not 0 < int(typed) < 1 << 16:
        raise UserError(f"MASTER_PORT={typed} is set, which is not a port: 1 to 65535.")
    # Somebody has chosen the loopback interface: then all are on one machine.
    is_loopback = address in ("localhost", "::1") or address.startswith("127.")
    is_on_one |= is_loopback and local_rank is not None
    place = address, int(typed)
    return Launched(launcher, process, size, local_rank, *place, has_store, num_ranks, is_on_one)


def _contradiction(one: str, other: str) -> UserError:
    return UserError(
        f"{one} contradicts {other}.",
        "Unset those that were set by hand: a launcher sets them all.",
    )


def slurm_job(environ: Mapping[str, str] = os.environ) -> str | None:
    """The number of the SLURM job, of a job array with its task's; None: there is none."""
    if array := environ.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{environ.get('SLURM_ARRAY_TASK_ID', '0')}"
    return environ.get("SLURM_JOB_ID") or None


def requeues_itself(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a SLURM batch job that gnntrain requeues: submitit does so for its own."""
    is_others = environ.get("SLURM_JOB_NAME") in _INTERACTIVE or environ.get("SUBMITIT_EXECUTOR")
    return slurm_job(environ) is not None and not is_others
