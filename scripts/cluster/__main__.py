"""Type the commands of docs/machines.md on two machines, and compare with one machine.

    python -m scripts.cluster                       # all
    python -m scripts.cluster torchrun partitioned  # these

A launcher that is not installed here (Kubernetes, SkyPilot) is replaced by what it does: its
variables are set, and the command of its YAML is run on each machine. Slurm is a real one.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

from scripts.cluster.machines import Failed, Machines, Unavailable
from scripts.cluster.pages import block, commands
from scripts.cluster.slurm import Job, start_slurm

_NUM_MACHINES = 2
_SECONDS = 120.0
_TOLERANCE = 1e-4
_REQUEUE_SECONDS = 180.0  # until Slurm starts a requeued job
_PORT = "29500"

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Trial:
    """Machines, and the folder of one trial, which they share.

    Attributes:
        machines: The machines.
        folder: The current directory on each of them.
    """

    machines: Machines
    folder: Path

    def type(
        self,
        lines: Mapping[int, str],
        env: Callable[[int], Mapping[str, str]] = lambda machine: {},  # noqa: ARG005
    ) -> None:
        """Run shell commands, by machine, at once; wait for all.

        Raises:
            Failed: One ended with another exit code than 0, or does not end.
        """
        self.machines.run(
            {machine: ["bash", "-euo", "pipefail", "-c", text] for machine, text in lines.items()},
            folder=self.folder,
            env={machine: {**self.variables(machine), **env(machine)} for machine in lines},
            seconds=_SECONDS,
        )

    def variables(self, machine: int) -> dict[str, str]:
        """Each machine has caches and stores of its own."""
        own = self.folder / f"disk{machine}"
        own.mkdir(exist_ok=True)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {"PATH": path, "PYTHONPATH": str(_ROOT), "XDG_CACHE_HOME": str(own)}

    def losses(self, run: str) -> list[float]:
        """The loss of each epoch of a run.

        Raises:
            Failed: It is not complete, or had another number of ranks.
        """
        summary = json.loads((self.folder / run / "summary.json").read_text())
        if (summary["status"], summary["world_size"]) != ("completed", _NUM_MACHINES):
            raise Failed(f"{run}: {summary['status']}, {summary['world_size']} ranks")
        losses: list[float] = summary["train_loss"]
        return losses


def slurm(trial: Trial) -> str:
    _job(trial).wait(_SECONDS)
    return "runs/slurm"


def requeue(trial: Trial) -> str:
    """Slurm's signal before the time limit comes in the middle of the run."""
    job = _job(trial)
    table = trial.folder / "runs" / "slurm" / "metrics.jsonl"
    ends_by = time.monotonic() + _SECONDS
    while not (table.exists() and table.read_text().count("\n") > 2):
        if time.monotonic() > ends_by:
            raise Failed(f"three epochs take more than {_SECONDS:g} s")
        time.sleep(0.1)
    job.command("scancel", "--signal=USR1", str(job.number))
    job.wait(_SECONDS + _REQUEUE_SECONDS)
    shown = job.command("scontrol", "show", "job", str(job.number))
    if "Restarts=1" not in shown:
        raise Failed(f"the job was not requeued:\n{shown}")
    return "runs/slurm"


def _job(trial: Trial) -> Job:
    env = start_slurm(trial.machines, _NUM_MACHINES, trial.folder / "slurm")
    variables = {**trial.variables(0), **env}
    return Job(trial.machines, block("slurm"), trial.folder, variables)


def kubernetes(trial: Trial) -> str:
    """As the Job controller does: the index of a completion is an annotation of its pod."""
    service, job = yaml.safe_load_all(block("kubernetes"))
    name = job["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    (container,) = job["spec"]["template"]["spec"]["containers"]

    def variables(machine: int) -> dict[str, str]:
        # A variable without a value takes the pod's index.
        found = {entry["name"]: entry.get("value", str(machine)) for entry in container["env"]}
        assert found["MASTER_ADDR"] == f"{name}-0.{service['metadata']['name']}"
        return found | {"MASTER_ADDR": "machine0"}

    return _pods(trial, container, variables)


def pytorchjob(trial: Trial) -> str:
    """As the training operator does: its own variables, and those that torchrun would read."""
    own = {"WORLD_SIZE": str(_NUM_MACHINES), "MASTER_ADDR": "machine0", "MASTER_PORT": _PORT}
    return _pods(
        trial, _worker(), lambda machine: {**own, "RANK": str(machine), **_pet("auto", machine)}
    )


def trainjob(trial: Trial) -> str:
    """As Kubeflow's trainer does: torchrun reads the variables."""
    container = {"command": ["torchrun", "-m", *_worker()["command"]]}
    return _pods(trial, container, lambda machine: _pet("1", machine))


def skypilot(trial: Trial) -> str:
    task = yaml.safe_load(block("skypilot"))
    common = {
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "0",
        "SKYPILOT_TASK_ID": "sky-2026-11-22-gnntrain-1",
    }
    text = _on_cpus(task["run"], trial)
    trial.type(
        dict.fromkeys(range(_NUM_MACHINES), text),
        lambda machine: common | {"SKYPILOT_NODE_RANK": str(machine)},
    )
    return "runs/sky-2026-11-22-gnntrain-1"


def _worker() -> dict[str, Any]:
    replicas = yaml.safe_load(block("pytorchjob"))["spec"]["pytorchReplicaSpecs"]
    assert sum(replica["replicas"] for replica in replicas.values()) == _NUM_MACHINES
    (container,) = replicas["Worker"]["template"]["spec"]["containers"]
    return dict(container)


def _pet(ranks: str, machine: int) -> dict[str, str]:
    return {
        "PET_NNODES": str(_NUM_MACHINES),
        "PET_NPROC_PER_NODE": ranks,
        "PET_NODE_RANK": str(machine),
        "PET_MASTER_ADDR": "machine0",
        "PET_MASTER_PORT": _PORT,
    }


def _pods(
    trial: Trial, container: Mapping[str, Any], env: Callable[[int], Mapping[str, str]]
) -> str:
    text = _on_cpus(shlex.join(container["command"]), trial)
    trial.type(dict.fromkeys(range(_NUM_MACHINES), text), env)
    return "runs/products"


def _on_cpus(command: str, trial: Trial) -> str:
    """The command for the synthetic graph and CPU ranks, with the volumes in the trial's folder."""
    command = command.replace("dataset=ogbn-products", "trainer.gpus=0")
    command = command.replace("dataset.root=/data", "dataset=synthetic")
    return command.replace("/data", str(trial.folder)).replace("/results", f"{trial.folder}/runs")


LAUNCHERS: Mapping[str, Callable[[Trial], str]] = {
    trial.__name__: trial for trial in (slurm, requeue, kubernetes, pytorchjob, trainjob, skypilot)
}
"""Each does what a launcher does with a block of the page, and returns the run's directory."""

BLOCKS = {
    "torchrun": ("runs/two", "torchrun"),
    "rendezvous": ("runs/restarting", "rendezvous"),
    "sharded": ("runs/sharded", "sharded"),
    "partitioned": ("runs/parts", "partition", "partitioned"),
    "servers": ("runs/served", "partition", "servers"),
}
"""The run's directory, and the blocks of the page that are typed for it."""

TRIALS = [*BLOCKS, *LAUNCHERS]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=", ".join(TRIALS))
    names = parser.parse_args(arguments).trials or TRIALS
    if unknown := set(names) - set(TRIALS):
        parser.error(f"{', '.join(sorted(unknown))}: give some of {', '.join(TRIALS)}")
    with tempfile.TemporaryDirectory(prefix="gnntrain-") as folder:
        alone = Path(folder) / "alone"
        alone.mkdir()
        with Machines(1) as machines:
            trial = Trial(machines, alone)
            options = f"trainer.gpus=0 distributed.num_processes={_NUM_MACHINES}"
            trial.type({0: f"gnntrain {options} run.dir=runs/one"})
            expected = trial.losses("runs/one")
        failures = [name for name in names if not tried(name, Path(folder) / name, expected)]
    return 1 if failures else 0


def tried(name: str, folder: Path, expected: Sequence[float]) -> bool:
    """Make a trial, print a line about it, and return whether it went well."""
    folder.mkdir()
    began = time.monotonic()
    try:
        with Machines(_NUM_MACHINES) as machines:
            trial = Trial(machines, folder)
            if name in BLOCKS:
                run, *blocks = BLOCKS[name]
                for one in blocks:
                    trial.type(commands(one, _NUM_MACHINES))
            else:
                run = LAUNCHERS[name](trial)
            found = trial.losses(run)
            furthest = max(abs(a - b) for a, b in zip(found, expected, strict=True))
            if furthest > _TOLERANCE:
                raise Failed(f"a loss differs by {furthest:g} from one machine's")
    except Unavailable as reason:
        print(f"{name:12} not tried: {reason}", flush=True)
        return True
    except Exception as error:
        print(f"{name:12} FAILED: {error}", flush=True)
        return False
    seconds = time.monotonic() - began
    print(f"{name:12} {seconds:5.1f} s, losses within {furthest:.1g} of one machine's", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
