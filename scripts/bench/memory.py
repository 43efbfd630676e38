"""Memory of a run with several CPU ranks, against one copy of the graph and idle workers.

    python -m scripts.bench.memory --ranks 4 -- dataset=synthetic_reddit trainer.max_steps=20

The proportional set size (PSS) counts a page that several processes map once, shared out among
them. It is summed over the run's processes a few times a second; the largest sum is reported, next
to what a frugal run may take: 1.3 × (the store + an idle worker a rank), where an idle worker is a
process that has imported all that a rank imports. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

_IDLE = "import gnntrain.worker, sys; print('ready', flush=True); sys.stdin.read()"


KINDS = ("Pss:", "Pss_Anon:", "Pss_File:", "Pss_Shmem:")


def pss(pids: Sequence[int]) -> dict[str, int]:
    """Proportional set size of processes together, bytes: all, own, of files, of shared memory."""
    sums = dict.fromkeys(KINDS, 0)
    for pid in pids:
        with contextlib.suppress(OSError):  # it has just ended
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                kind, *size = line.split()
                if kind in sums:
                    sums[kind] += int(size[0]) * 1024
    return sums


def family(process: psutil.Process) -> list[int]:
    """The process and all that it started."""
    try:
        return [process.pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def idle_worker(num_workers: int) -> float:
    """Mean PSS of `num_workers` processes that have imported what a rank imports."""
    command = [sys.executable, "-c", _IDLE]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(num_workers)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    total = pss([worker.pid for worker in workers])["Pss:"]
    for worker in workers:
        worker.communicate()
    return total / num_workers


def watch(command: Sequence[str]) -> tuple[int, dict[str, int]]:
    """The command's exit code and the largest PSS of its processes together, with its parts."""
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = dict.fromkeys(KINDS, 0)
    while run.poll() is None:
        peak = max(peak, pss(family(psutil.Process(run.pid))), key=lambda sums: sums["Pss:"])
        time.sleep(0.2)
    return run.returncode, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    gnntrain = [sys.executable, "-m", "gnntrain"]
    described = subprocess.run(
        [*gnntrain, "prepare", *(o for o in options.overrides if o.startswith("dataset"))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    path = Path(next(line.split()[1] for line in described.splitlines() if line[:4] == "path"))
    store = sum(file.stat().st_size for file in path.iterdir())
    idle = idle_worker(options.ranks)
    with tempfile.TemporaryDirectory() as directory:
        code, peak = watch(
            [
                *gnntrain,
                *options.overrides,
                "trainer.gpus=0",
                f"distributed.num_processes={options.ranks}",
                f"run.dir={directory}/run",
            ]
        )
    result = {
        "ranks": options.ranks,
        "overrides": options.overrides,
        "exit_code": code,
        "store_bytes": store,
        "idle_worker_bytes": round(idle),
        "peak_pss_bytes": peak["Pss:"],
        "of_which": {kind[4:-1].lower(): peak[kind] for kind in KINDS[1:]},
        "ratio": peak["Pss:"] / (store + options.ranks * idle),
    }
    for name, value in result.items():
        print(f"{name:18} {value}")
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
