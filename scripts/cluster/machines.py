"""Machines to try several machines on: network namespaces with names and addresses of their own.

with Machines(2) as machines:
    server = machines.start(0, ["python", "-m", "http.server"])
    print(machines.start(1, ["curl", "http://machine0:8000"]).communicate()[0])

The machines share the memory and the files of this one. Linux only; root is not needed where the
kernel allows user namespaces.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

_UNSHARE = ["unshare", "--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]

# Process 1 of a new PID namespace: when it ends, the kernel kills all processes of the machines and
# removes the namespaces. It ends with its standard input, hence also when its parent is killed.
_SETUP = """
set -e
mount -t tmpfs tmpfs /run
mkdir /run/netns
ip link add hub type bridge
ip link set hub up
echo "127.0.0.1 localhost" >/run/hosts
for i in $(seq 0 $(($1 - 1))); do
  ip netns add "machine$i"
  ip link add "port$i" type veth peer name eth0 netns "machine$i"
  ip link set "port$i" master hub up
  ip -n "machine$i" addr add "10.0.0.$((i + 1))/24" dev eth0
  ip -n "machine$i" link set eth0 up
  ip -n "machine$i" link set lo up
  echo "10.0.0.$((i + 1)) machine$i" >>/run/hosts
done
mount --bind /run/hosts /etc/hosts
echo ready
cat >/dev/null
"""


class Unavailable(Exception):
    """This machine does not allow network namespaces; the text says why."""


class Failed(Exception):
    """A command has not done what it should; the text says what was printed."""


class Machines:
    """The machines `machine0`, `machine1`, … at 10.0.0.1, 10.0.0.2, …

    Nothing outside sees them, so that several programs may each have their own.

    Args:
        count: Number of machines, at most 200.

    Raises:
        Unavailable: Network namespaces are not allowed here.
    """

    def __init__(self, count: int) -> None:
        as_user = ["--user", "--map-root-user"] if os.geteuid() else []
        try:
            self._init = subprocess.Popen(
                [*_UNSHARE, *as_user, "bash", "-c", _SETUP, "bash", str(count)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except FileNotFoundError as error:
            raise Unavailable("the command `unshare` is not installed") from error
        assert self._init.stdout is not None
        if self._init.stdout.readline() != "ready\n":
            raise Unavailable(self._init.communicate()[1].strip())
        inside = psutil.Process(self._init.pid).children()[0].pid
        user = ["--user", "--preserve-credentials"] if as_user else []
        self._enter = ["nsenter", f"--target={inside}", *user, "--mount", "--net", "--pid"]

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes of the machines and remove these."""
        self._init.communicate()

    def start(
        self,
        machine: int,
        command: Sequence[str | Path],
        *,
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> subprocess.Popen[str]:
        """Start a command on a machine, with its standard error in its standard output.

        Args:
            machine: Number of the machine.
            command: Program and arguments.
            folder: Where it runs; None: the current directory.
            env: Variables beside those of this process.
            log: File for its output; None: a pipe.
        """
        name = f"machine{machine}"
        named = ["unshare", "--uts", "bash", "-c", 'hostname "$0" && exec "$@"', name]
        wanted = f"--wd={(folder or Path()).absolute()}"
        with contextlib.ExitStack() as stack:
            return subprocess.Popen(
                [*self._enter, wanted, "ip", "netns", "exec", name, *named, *command],
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=stack.enter_context(log.open("wb")) if log else subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def run(
        self,
        commands: Mapping[int, Sequence[str | Path]],
        *,
        folder: Path,
        env: Mapping[int, Mapping[str, str]],
        seconds: float,
    ) -> dict[int, str]:
        """Run a command on each of some machines, all at once, and wait for all.

        Args:
            commands: By machine.
            folder: Where they run; their output is there too, as `machine0.log` and so on.
            env: By machine, where there are some, see `start`.
            seconds: How long they may take.

        Returns:
            What each printed.

        Raises:
            Failed: A command has failed, or goes on after `seconds`.
        """
        logs = {machine: folder / f"machine{machine}.log" for machine in commands}
        processes = {
            machine: self.start(
                machine, command, folder=folder, env=env.get(machine), log=logs[machine]
            )
            for machine, command in commands.items()
        }
        ends_by = time.monotonic() + seconds
        for machine, process in processes.items():
            try:
                code: int | str = process.wait(max(0.0, ends_by - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = f"none after {seconds:g} s"
            if code:
                printed = "".join(log.read_text() for log in logs.values())
                raise Failed(f"machine{machine}: exit code {code}\n{printed}")
        return {machine: log.read_text() for machine, log in logs.items()}

    def bytes_sent(self, machine: int) -> int:
        """Bytes that a machine has sent to others since it was made, headers included."""
        counter = "/sys/class/net/eth0/statistics/tx_bytes"
        return int(self.start(machine, ["cat", counter]).communicate()[0])
