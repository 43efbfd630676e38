"""`python -m scripts.soak --minutes N --seed S`: disturb runs, and compare how they end.

Where it may, it works in a mount namespace of its own, with a small disk for the runs and an empty
/dev/shm, so that the disk can be filled and leftovers are its own. With `--epochs N` it trains one
run of so many epochs instead and watches memory and open files.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.soak.disturbed import KEYS, Soak
from scripts.soak.faults import FAULTS
from scripts.soak.growth import watch_growth

_INSIDE = "GNNTRAIN_SOAK_MOUNTED"
_MOST_FAULTS_A_RUN = 6


def main() -> int:
    """Run the soak; 0 if nothing was lost, left or unequal."""
    parser = argparse.ArgumentParser(prog="python -m scripts.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, help="watch the growth of one run of N epochs")
    arguments = parser.parse_args()
    # A shell has what runs in the background ignore Ctrl-C, and what it starts would too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if arguments.epochs is not None:
        growth = watch_growth(arguments.epochs, arguments.seed)
        print(json.dumps(growth, indent=1))
        return 0 if growth["clean"] else 1
    if _INSIDE not in os.environ and _may_mount():
        os.execvpe("unshare", ["unshare", "--mount", *_itself()], os.environ | {_INSIDE: "1"})
    return _disturb(arguments.minutes, arguments.seed, arguments.ranks)


def _itself() -> list[str]:
    return [sys.executable, "-m", "scripts.soak", *sys.argv[1:]]


def _may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", tempfile.gettempdir()]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def _disturb(minutes: float, seed: int, num_ranks: int) -> int:
    has_own_disk = _INSIDE in os.environ
    with tempfile.TemporaryDirectory(prefix="gnntrain-soak-") as directory:
        runs = Path(directory, "runs")
        runs.mkdir()
        if has_own_disk:
            for path, size in ((runs, "8m"), (Path("/dev/shm"), "64m")):
                mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
                subprocess.run(mount, check=True)
        keys = [*KEYS, f"distributed.num_processes={num_ranks}"]
        begin = time.monotonic()

        def tell(text: str) -> None:
            print(f"{time.monotonic() - begin:7.1f} s  {text}", flush=True)

        soak = Soak(runs, keys, seed=seed, has_own_disk=has_own_disk, tell=tell)
        soak.prepare()
        faults = _at_random(seed)
        while time.monotonic() - begin < 60 * minutes:
            soak.disturb_one(itertools.islice(faults, _MOST_FAULTS_A_RUN))
        if has_own_disk:
            subprocess.run(["umount", str(runs)], check=True)
    told = {"minutes": minutes, "seed": seed, "own_disk": has_own_disk, **soak.report.to_dict()}
    print(json.dumps(told, indent=1))
    return 0 if soak.report.is_clean else 1


def _at_random(seed: int) -> Iterator[str]:
    """Every fault in turn, in a new order each time."""
    dice = random.Random(seed + 1)
    while True:
        yield from dice.sample(sorted(FAULTS), len(FAULTS))


if __name__ == "__main__":
    sys.exit(main())
