from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from gnntrain.distributed.launchers import Launched, launched
from gnntrain.errors import UserError


def variables(text: str) -> dict[str, str]:
    """Variables as `env` shows them."""
    return dict(word.split("=", 1) for word in text.split())


TORCHRUN = variables(
    """RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1
    MASTER_ADDR=10.0.0.1 MASTER_PORT=29501 TORCHELASTIC_RUN_ID=none
    TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_USE_AGENT_STORE=True"""
)
TORCHRUNS = Launched("torchrun", 3, 4, 1, "10.0.0.1", 29501, has_store=True)
# As Slurm 22.05 sets them.
SALLOC = variables(
    """SLURM_JOB_ID=1234567 SLURM_NTASKS=4 SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=2(x2)
    SLURM_JOB_NAME=interactive"""
)
BATCH_SCRIPT = SALLOC | variables(
    "SLURM_JOB_NAME=gnntrain SLURM_PROCID=3 SLURM_NODEID=1 SLURM_LOCALID=1"
)
SRUN = BATCH_SCRIPT | variables(
    """SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_TASKS=4
    SLURM_STEP_TASKS_PER_NODE=2(x2)"""
)
SRUNS = Launched("srun", 3, 4, 1, "n1", 19567)
ONE_A_NODE = SRUN | variables(
    """SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_PROCID=1 SLURM_LOCALID=0"""
)
POD = variables("RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-master-0 MASTER_PORT=23456")
TRAINJOB = variables(
    """PET_NNODES=2 PET_NPROC_PER_NODE=8 PET_NODE_RANK=1 PET_MASTER_ADDR=job-node-0-0.job
    PET_MASTER_PORT=29400"""
)
SKYPILOT = variables(
    "SKYPILOT_NODE_RANK=2 SKYPILOT_NUM_NODES=3 SKYPILOT_NUM_GPUS_PER_NODE=8 SKYPILOT_TASK_ID=sky-1"
) | {"SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8\n10.0.0.9"}
# submitit's TorchDistributedEnvironment, beside SLURM's variables.
EXPORTED = variables(
    "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=31234"
)
SUBMITIT_LOCAL = variables(
    """SUBMITIT_EXECUTOR=local SUBMITIT_LOCAL_JOB_ID=4321 SUBMITIT_LOCAL_NTASKS=2
    SUBMITIT_LOCAL_GLOBALID=1 SUBMITIT_LOCAL_LOCALID=1"""
)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"MASTER_ADDR": "somewhere", "MASTER_PORT": "1"}, None),
        (TORCHRUN, TORCHRUNS),
        (TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
         Launched("torchrun", 0, 1, 0, "10.0.0.1", 29501, has_store=True,
                  is_on_one_machine=True)),
        (TORCHRUN | {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"},
         Launched("torchrun", 3, 4, 3, "10.0.0.1", 29501, has_store=True,
                  is_on_one_machine=True)),
        # torchrun is what srun, a pod or SkyPilot has started.
        (TORCHRUN | SRUN | TRAINJOB | SKYPILOT, TORCHRUNS),
        (SRUN, SRUNS),
        (SRUN | {"MASTER_ADDR": "n1-ib", "MASTER_PORT": "7"},
         Launched("srun", 3, 4, 1, "n1-ib", 7)),
        (SRUN | {"WORLD_SIZE": "4"}, SRUNS),
        (SRUN | {"SUBMITIT_EXECUTOR": "slurm"}, Launched("submitit", 3, 4, 1, "n1", 19567)),
        (ONE_A_NODE, Launched("srun", 1, 2, None, "n1", 19567)),
        # --distribution=cyclic: task 1 is the first of the second machine, rank 2.
        (SRUN | {"SLURM_PROCID": "1", "SLURM_NODEID": "1", "SLURM_LOCALID": "0"},
         Launched("srun", 2, 4, 0, "n1", 19567)),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4"} | {"SLURM_NODEID": "0", "SLURM_LOCALID": "3"},
         Launched("srun", 3, 4, 3, "n1", 19567, is_on_one_machine=True)),
        # One task of a step, the batch script itself, the shell of salloc.
        (SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}, None),
        (BATCH_SCRIPT, None),
        (SALLOC, None),
        (SRUN | EXPORTED, Launched("the launcher", 3, 4, 1, "n1", 31234)),
        (SUBMITIT_LOCAL, Launched("submitit", 1, 2, 1, "127.0.0.1", 19321, is_on_one_machine=True)),
        (POD, Launched("the launcher", 1, 2, None, "job-master-0", 23456)),
        (POD | {"RANK": "0", "WORLD_SIZE": "1"}, None),
        (POD | {"LOCAL_RANK": "0"}, Launched("the launcher", 1, 2, 0, "job-master-0", 23456)),
        (POD | {"LOCAL_RANK": "1", "MASTER_ADDR": "localhost"},
         Launched("the launcher", 1, 2, 1, "localhost", 23456, is_on_one_machine=True)),
        (TRAINJOB, Launched("Kubernetes", 1, 2, None, "job-node-0-0.job", 29400, num_ranks=8)),
        (TRAINJOB | {"PET_NNODES": "1", "PET_NODE_RANK": "0"}, None),
        (TRAINJOB | {"PET_NPROC_PER_NODE": "auto"},
         Launched("Kubernetes", 1, 2, None, "job-node-0-0.job", 29400)),
        # A PyTorchJob sets both; its WORLD_SIZE counts ranks, its RANK machines.
        (TRAINJOB | POD | {"WORLD_SIZE": "16"},
         Launched("Kubernetes", 1, 2, None, "job-node-0-0.job", 23456, num_ranks=8)),
        (SKYPILOT, Launched("SkyPilot", 2, 3, None, "10.0.0.7", 29500)),
        (SKYPILOT | {"SKYPILOT_NODE_IPS": "10.0.0.7", "SKYPILOT_NODE_RANK": "0"}, None),
    ],
)  # fmt: skip
def test_how_a_process_was_started(environ: Mapping[str, str], expected: Launched | None) -> None:
    assert launched(environ) == expected


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RANK": "0"}, ["WORLD_SIZE"]),
        ({"WORLD_SIZE": "2"}, ["RANK"]),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ["MASTER_ADDR"]),
        (POD | {"RANK": "2"}, ["RANK=2", "WORLD_SIZE=2"]),
        (POD | {"RANK": "-1"}, ["RANK=-1"]),
        (POD | {"MASTER_PORT": "66000"}, ["MASTER_PORT=66000"]),
        (TORCHRUN | {"LOCAL_RANK": "2"}, ["LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"]),
        ({k: v for k, v in TORCHRUN.items() if k != "RANK"}, ["RANK"]),
        (SRUN | EXPORTED | {"RANK": "2"}, ["RANK=2", "srun"]),
        (SRUN | EXPORTED | {"WORLD_SIZE": "8"}, ["WORLD_SIZE=8", "srun"]),
        (SRUN | {"SLURM_PROCID": "4"}, ["SLURM_PROCID=4"]),
        (SKYPILOT | POD, ["SkyPilot", "RANK=1"]),
        (SKYPILOT | {"SKYPILOT_NODE_RANK": "3"}, ["SkyPilot", "Process 3"]),
        (TRAINJOB | {"PET_NNODES": "1:4", "PET_NODE_RANK": ""}, ["PET_NNODES=1:4"]),
        (TRAINJOB | {"PET_NODE_RANK": "2"}, ["PET_NODE_RANK=2"]),
    ],
)
def test_variables_that_contradict_each_other_are_named(
    environ: Mapping[str, str], named: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        launched(environ)
    assert all(name in caught.value.message for name in named)


def test_a_shell_that_srun_has_started_for_a_person_is_no_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    shell = SRUN | {"SLURM_JOB_NAME": "bash"}
    assert launched(shell) is None
    # What srun starts in that shell has the job's name, and no terminal.
    monkeypatch.setattr(os, "isatty", lambda _: False)
    assert launched(shell) == SRUNS


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("n1", "n1"),
        ("n[1-4]", "n1"),
        ("n[001-004,9],m1", "n001"),
        ("n[3,7]-ib", "n3-ib"),
        ("a[1-2]b[3-4]", "a1b3"),
        ("r[01-02,4]n[007-9]-ib,x", "r01n007-ib"),
        ("gpu-a.example.org,gpu-b.example.org", "gpu-a.example.org"),
    ],
)
def test_the_first_host_of_a_list(nodes: str, host: str) -> None:
    found = launched(SRUN | {"SLURM_STEP_NODELIST": nodes})
    assert found is not None
    assert found.address == host
