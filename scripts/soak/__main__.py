"""`python -m scripts.soak --minutes N --seed S`: disturb runs, and compare how they end.

It works in a mount namespace of its own, with a small disk for the runs and an empty /dev/shm, so
that the disk can be filled and leftovers are its own. With `--epochs N` it trains one run of so
many epochs instead and watches memory and open files.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.soak.disturbed import KEYS, Soak
from scripts.soak.faults import FAULTS, Fault
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
        told = watch_growth(arguments.epochs, arguments.seed)
    elif _INSIDE not in os.environ:
        user = ["--user", "--map-root-user"] if os.geteuid() else []
        command = ["unshare", "--mount", *user, sys.executable, "-m", "scripts.soak"]
        os.execvpe("unshare", [*command, *sys.argv[1:]], os.environ | {_INSIDE: "1"})
    else:
        told = _disturb(arguments.minutes, arguments.seed, arguments.ranks)
    print(json.dumps(told, indent=1))
    return 0 if told["clean"] else 1


def _disturb(minutes: float, seed: int, num_ranks: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="gnntrain-soak-") as directory:
        runs = Path(directory, "runs")
        runs.mkdir()
        for path, size in ((runs, "8m"), (Path("/dev/shm"), "64m")):
            mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
            subprocess.run(mount, check=True)
        keys = [*KEYS, f"distributed.num_processes={num_ranks}"]
        begin = time.monotonic()

        def tell(text: str) -> None:
            print(f"{time.monotonic() - begin:7.1f} s  {text}", flush=True)

        soak = Soak(runs, keys, seed=seed, tell=tell)
        soak.prepare()
        faults = _at_random(seed)
        while time.monotonic() - begin < 60 * minutes:
            soak.disturb_one(itertools.islice(faults, _MOST_FAULTS_A_RUN))
        subprocess.run(["umount", str(runs)], check=True)
    return {"minutes": minutes, "seed": seed, **soak.report.to_dict()}


def _at_random(seed: int) -> Iterator[Fault]:
    """Every fault in turn, in a new order each time."""
    dice = random.Random(seed + 1)
    while True:
        yield from dice.sample([*FAULTS], len(FAULTS))


if __name__ == "__main__":
    sys.exit(main())
