"""What happens to a run: processes killed, stopped and told to end, a full disk, damaged files."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Target:
    """A run that is going on.

    Attributes:
        parent: The process that was started.
        run: Its run directory, on a small disk that nobody else uses.
        dice: Decides which process, for how long, which byte.
    """

    parent: psutil.Process
    run: Path
    dice: random.Random

    def ranks(self) -> list[psutil.Process]:
        """The processes that train: those of the ranks, or the parent where it trains alone."""
        with suppress(psutil.NoSuchProcess):
            return rank_processes(self.parent) or [self.parent]
        return [self.parent]


def rank_processes(command: psutil.Process) -> list[psutil.Process]:
    """The ranks that a command has started: forked from its server, which forks nothing else."""
    family = command.children(recursive=True)
    return [
        process
        for process in family
        if process.ppid() != command.pid and "forkserver" in " ".join(process.cmdline())
    ]


# A fault returns whether the run should have ended of it.
Fault = Callable[[Target], bool]


def kill_rank(target: Target) -> bool:
    """`kill -9` of one rank."""
    return _send(target.dice.choice(target.ranks()), signal.SIGKILL)


def kill_parent(target: Target) -> bool:
    """`kill -9` of the command: the ranks have nobody who could end them."""
    return _send(target.parent, signal.SIGKILL)


def terminate(target: Target) -> bool:
    """SIGTERM, as batch systems send it."""
    return _send(target.parent, signal.SIGTERM)


def interrupt(target: Target) -> bool:
    """Ctrl-C."""
    return _send(target.parent, signal.SIGINT)


def stop_and_continue(target: Target) -> bool:
    """One process stands still for some seconds."""
    process = target.dice.choice([target.parent, *target.ranks()])
    _send(process, signal.SIGSTOP)
    time.sleep(target.dice.uniform(0.5, 5.0))
    _send(process, signal.SIGCONT)
    return False


def fill_disk(target: Target) -> bool:
    """No room on the disk for some seconds, and then again."""
    with _filled(target):
        time.sleep(target.dice.uniform(1.0, 8.0))
    return False


def fill_disk_and_kill(target: Target) -> bool:
    """A rank is killed while the disk is full."""
    with _filled(target):
        time.sleep(target.dice.uniform(0.5, 6.0))
        return kill_rank(target)


def damage_last(target: Target) -> bool:
    """`kill -9` of the command, and `last.pt` is not what was written.

    A run that had completed before the signal came does not go on, so its file is left alone.
    """
    kill_parent(target)
    if target.parent.wait() != 0:
        damage(target.run / "checkpoints" / "last.pt", target.dice)
    return True


# The exit codes that a fault may lead to. 0: the run completed before the fault could end it;
# negative: before it answered signals itself.
FAULTS: dict[Fault, tuple[int, ...]] = {
    kill_rank: (0, 138, -9),
    kill_parent: (0, -9),
    terminate: (0, 143, -15),
    interrupt: (0, 130, -2),
    stop_and_continue: (0,),
    fill_disk: (0, 138),
    fill_disk_and_kill: (0, 138, -9),
    damage_last: (0, -9),
}


def damage(path: Path, dice: random.Random) -> None:
    """Cut the file off, flip one of its bits, or put something else in its place."""
    if not path.is_file():
        return
    content = bytearray(path.read_bytes())
    kind = dice.choice(["cut", "flip", "foreign", "empty"])
    if kind == "flip":
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    pieces: dict[str, bytes] = {
        "cut": bytes(content[: dice.randrange(len(content))]),
        "flip": bytes(content),
        "foreign": dice.randbytes(5_000),
        "empty": b"",
    }
    path.write_bytes(pieces[kind])


def _send(process: psutil.Process, number: signal.Signals) -> bool:
    """Send a signal; whether the process was there to get it."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


@contextmanager
def _filled(target: Target) -> Iterator[None]:
    filling = target.run.parent / "filling"
    handle = os.open(filling, os.O_WRONLY | os.O_CREAT)
    size = 1 << 16
    try:
        while size:
            try:
                os.write(handle, bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2
        yield
    finally:
        os.close(handle)
        filling.unlink()
