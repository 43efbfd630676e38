"""The meeting of the processes that a launcher has started: over one store, in plain JSON.

(Not by collectives of a process group: a signal could not interrupt a process that waits in one,
and process 0 may take hours before it passes on the job, to build a graph's store.)
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import logging
import math
import multiprocessing
import os
import socket
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch.distributed as dist

from gnntrain import __version__
from gnntrain.config import DistributedConfig
from gnntrain.distributed.launchers import Launched, launched
from gnntrain.distributed.liveness import Roster, Watch
from gnntrain.distributed.run_control import RunControl
from gnntrain.distributed.signals import prepare_forced_exit
from gnntrain.distributed.tcp_store import (
    BoundedStore,
    StoreAddress,
    address_of,
    own_address,
    serve_store,
)
from gnntrain.errors import (
    GnntrainError,
    Interrupted,
    RankLost,
    RunError,
    UserError,
    may_mend,
    signal_of,
)
from gnntrain.limits import container, core_numbers

_log = logging.getLogger("gnntrain")

_TIMEOUT = "distributed.timeout"
# A pod or a task may begin minutes after another one.
_JOIN_SECONDS = DistributedConfig().timeout
# ... but its name is known earlier.
_NAME_SECONDS = 30.0
# Whoever waits for longer says for whom.
_PATIENCE_SECONDS = 10.0
# A process that gives no sign of life for so long is lost; from the configuration on, it is
# distributed.timeout.
_START_SECONDS = 60.0
_LEAVE_SECONDS = 8.0
_CONNECT_SECONDS = 20.0
_LOOK_SECONDS = 0.1
# Of no machine (RFC 5737, RFC 3849): only the route to them is looked up.
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One of the processes, and the machine that it is on.

    Attributes:
        name: The host name of its machine.
        host: The address from which its machine reaches the others.
        local_rank: Its number on its machine.
        cores: The cores that it may run on.
        version: Of gnntrain.
        command: Its command line; None: it is a program of the user's.
    """

    name: str
    host: str
    local_rank: int
    cores: Sequence[int]
    version: str
    command: Sequence[str] | None


class Rendezvous:
    """One process's view of the meeting.

    A process publishes plain data under a key, as JSON, and others wait for the key.

    Args:
        launched: How this process was started.
        address: The store.
        host: The address from which this machine reaches the others.

    Attributes:
        control: Stop, failures and progress.
        watch: Notices, once the processes have met, which other one fails or goes silent.
        processes: Of all processes, in their order.
        machines: The number of each process's machine: a new one begins with each local rank 0.
        hosts: Name and address of each machine.
    """

    def __init__(self, launched: Launched, address: StoreAddress, host: str) -> None:
        self.launched, self.address, self.host = launched, address, host
        self._store = _client(address)
        # Beside the keys of this start: torchrun's store outlives it. There other processes ask
        # process 0 for the name of this start.
        self._common = _client(replace(address, prefix="gnntrain"))
        self.control = RunControl(self._store, launched.process)
        self.watch = Watch(self.control)
        self.processes: list[ProcessInfo] = []
        self.machines: tuple[int, ...] = ()
        self.hosts: tuple[str, ...] = ()
        self._answered: set[bytes] = set()

    @property
    def is_main(self) -> bool:
        """Whether this process leads the run."""
        return self.launched.is_main

    @property
    def machine(self) -> int:
        """The number of this process's machine."""
        return self.machines[self.launched.process]

    @property
    def is_machine_main(self) -> bool:
        """Whether this is the first process of its machine."""
        return not self.launched.local_rank

    def join(self, command: Sequence[str] | None, deadline: float) -> None:
        """Meet the other processes.

        Args:
            command: See `ProcessInfo`.
            deadline: Until when they may come, of `time.monotonic`.

        Raises:
            UserError: The processes were started with different command lines or versions.
            RankLost: Some have not come in time.
            GnntrainError: torchrun has started the ranks again, and they would fail again.
        """
        local_rank, cores = self.launched.local_rank or 0, core_numbers()
        name = socket.gethostname()
        info = ProcessInfo(name, self.host, local_rank, cores, __version__, command)
        self.processes = [ProcessInfo(**one) for one in self.gather("info", asdict(info), deadline)]
        firsts = itertools.accumulate(not one.local_rank for one in self.processes)
        self.machines = tuple(count - 1 for count in firsts)
        by_machine = dict(zip(self.machines, self.processes, strict=True))
        self.hosts = tuple(f"{one.name}, {one.host}" for one in by_machine.values())
        roster = Roster(self.machines, self.hosts)
        self.watch = Watch(self.control, roster, _START_SECONDS, self._end_by_force)
        if self.is_main:
            _check_equal(self.processes)
            with self._reached():
                text = self._common.compare_set(f"failed/{_num_meetings}", "", "").decode()
                if text and self.control.failure(text):  # see `end_others`
                    raise self.control.first_failure() or RunError(text)

    def wait_at_most(self, timeout: float) -> None:
        """Set how long the others may give no sign of life."""
        self._store.timeout = self._common.timeout = self.watch.timeout = timeout

    def mark_told(self, error: BaseException) -> None:
        """Mark an error that another process tells the user: process 0 tells those of all."""
        is_alone = isinstance(error, RankLost) and 0 in error.ranks and self.is_machine_main
        if not (self.is_main or is_alone):
            error.is_told = True  # type: ignore[attr-defined]

    def _end_by_force(self, failure: GnntrainError | None) -> None:
        if failure is not None:
            self.mark_told(failure)
            _record_for_torchrun(failure)
            prepare_forced_exit(failure)

    def publish(self, key: str, value: Any) -> None:
        """Give plain data to all processes that `wait_for` the key."""
        with self._reached():
            self._store.set(key, json.dumps(value))

    def wait_for(self, key: str, deadline: float = math.inf) -> Any:
        """Wait for what a process tells.

        Raises:
            GnntrainError: The failure of another process.
            Interrupted: The run was asked to end.
            TimeoutError: It is later than `deadline`, of `time.monotonic`.
        """
        return self._wait_for([key], deadline)[0]

    def _wait_for(self, keys: Sequence[str], deadline: float = math.inf) -> list[Any]:
        values: dict[str, Any] = {}
        says_at = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with self._reached():
                for key in keys:
                    if key not in values and (text := self._store.compare_set(key, "", "")):
                        values[key] = json.loads(text)
            if len(values) == len(keys):
                return [values[key] for key in keys]
            self.control.sync()
            if (failure := self.control.first_failure()) is not None:
                raise failure
            if self.control.stop_requested:
                raise Interrupted(self.control.stop_requested)
            now = time.monotonic()
            missing = [i for i, key in enumerate(keys) if key not in values]
            if now > deadline:
                raise RankLost(
                    f"Of {len(keys)} processes that {self.launched.launcher} starts, "
                    f"{len(missing)} have not come to {self._place}: {_listed(missing)}.",
                    "Look at their output, and whether a firewall is between the machines.",
                    missing,
                )
            if self.is_main and deadline < math.inf:
                self._answer_newcomers()
                if now > says_at:
                    says_at = math.inf
                    _log.warning(
                        "Waiting at %s for process %s of %d, for at most %.0f s more (%s).",
                        *(self._place, _listed(missing), len(keys), deadline - now, _TIMEOUT),
                    )
            time.sleep(_LOOK_SECONDS)

    def gather(self, key: str, value: Any, deadline: float = math.inf) -> list[Any]:
        """Every process's plain `value` on all, in their order.

        Raises:
            RankLost: Process 0 has not got those of all until `deadline`.
        """
        self.publish(f"{key}/{self.launched.process}", value)
        keys = [f"{key}/{process}" for process in range(self.launched.num_processes)]
        return self._wait_for(keys, deadline if self.is_main else math.inf)

    @property
    def cores(self) -> int:
        """Cores for this process: its share of those that others of its machine may use too."""
        processes = zip(self.processes, self.machines, strict=True)
        here = [one.cores for one, machine in processes if machine == self.machine]
        return core_share(here, core_numbers(), container().cores)

    def _answer_newcomers(self) -> None:
        """See `_called`."""
        with self._reached():
            count = self.launched.num_processes
            for process in range(1, count):
                request = self._common.compare_set(f"ask/{count}/{process}", "", "")
                if request and request not in self._answered:
                    self._common.set(f"answer/{request.decode()}", _start or "")
                    self._answered.add(request)

    @property
    def _place(self) -> str:
        return f"{self.address.host} port {self.address.port}"

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except dist.DistError as error:
            raise RankLost(
                f"Process 0, which leads the run, can no longer be reached at {self._place}.",
                "Look at its output for the cause.",
                ranks=[0],
            ) from error

    def job_name(self) -> str | None:
        """A name for what torchrun has started, which it keeps when it starts the ranks again.

        Process 0 calls this. None: torchrun serves no store that would outlive them.
        """
        if not self.launched.has_store:
            return None
        with self._reached():
            return self._common.compare_set("job", "", uuid.uuid4().hex).decode()

    def end_others(self, error: BaseException) -> None:
        """Have all processes end with this error, which process 0 tells the user."""
        control = self.control
        if isinstance(error, Exception):
            control.report_failure(error)
            _record_for_torchrun(error)
            # torchrun starts the ranks again after any failure. After what would only happen again
            # they then end with this one at once.
            first = control.first_failure()
            if self.launched.has_store and first is not None and not may_mend(first):
                with contextlib.suppress(dist.DistError):
                    self._common.compare_set(f"failed/{_num_meetings}", "", control.failure())
        elif isinstance(error, KeyboardInterrupt):
            control.request_stop(signal_of(error))
        control.is_abandoned = True
        control.sync()
        self.mark_told(error)

    def leave(self) -> None:
        """Let go of the store. Process 0, if it serves it, waits for the others to do so."""
        with contextlib.suppress(dist.DistError):
            if self.control.lost_store is not None:
                raise self.control.lost_store
            failure = self.control.first_failure()
            lost = failure.ranks if isinstance(failure, RankLost) else ()
            serves = self.is_main and not self.launched.has_store
            awaited = self.launched.num_processes - len(lost) if serves else 0
            deadline = time.monotonic() + _LEAVE_SECONDS
            number = self._store.add("left", 1)
            while number < awaited and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
                number = self._store.add("left", 0)
        self.control.close()
        self._store.close()
        self._common.close()


def _record_for_torchrun(error: Exception) -> None:
    """Have torchrun's summary show the sentence of an error, as its own `@record` does with an
    exception that leaves `main`."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        told, trace = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
        if isinstance(error, GnntrainError):
            told, trace = error.message, str(error)
        details = {"py_callstack": trace, "timestamp": str(int(time.time()))}
        with contextlib.suppress(OSError):  # the same is on stderr
            Path(path).write_text(json.dumps({"message": {"message": told, "extraInfo": details}}))


def core_share(
    processes: Sequence[Sequence[int]], cores: Sequence[int], quota: float | None
) -> int:
    """Cores for one of a machine's processes.

    Args:
        processes: The cores that each of them may run on.
        cores: Those of this one.
        quota: Of cores' time that all of them together may use; None: no limit.
    """
    users = Counter(core for those in processes for core in those)
    share = sum(Fraction(1, users[core]) for core in cores)
    return max(1, int(min(share, (quota or math.inf) / len(processes))))


def _client(address: StoreAddress) -> BoundedStore:
    return BoundedStore(lambda: address.connect(_CONNECT_SECONDS), _START_SECONDS)


def _listed(processes: Sequence[int]) -> str:
    return ", ".join(map(str, processes[:8])) + ", …" * (len(processes) > 8)


def _check_equal(processes: Sequence[ProcessInfo]) -> None:
    first = processes[0]
    for number, info in enumerate(processes):
        if info.version != first.version:
            raise UserError(
                f"Process {number} ({info.host}) runs gnntrain {info.version}, process 0 "
                f"{first.version}.",
                "Install the same version on all machines.",
            )
        if info.command != first.command:
            raise UserError(
                f"Process {number} ({info.host}) was started with `{' '.join(info.command or ())}`,"
                f" process 0 with `{' '.join(first.command or ())}`.",
                "Start all processes with the same command line.",
            )


_meeting: Rendezvous | None = None
_num_meetings = 0
_start: str | None = None
_served: Any = None


@contextmanager
def meeting(command: Sequence[str] | None = None) -> Iterator[Rendezvous | None]:
    """Meet the other processes that a launcher has started; None: there are none.

    Within a meeting it yields that meeting. An exception inside ends all processes.

    Args:
        command: See `ProcessInfo`.

    Raises:
        UserError: As of `launched` and `Rendezvous.join`.
        RunError: The others cannot be reached.
    """
    global _meeting
    if _meeting is not None:
        yield _meeting
        return
    # A child of ours, as a sweep's worker, has inherited the variables.
    found = launched() if multiprocessing.parent_process() is None else None
    if found is None:
        yield None
        return
    deadline = time.monotonic() + _join_seconds(command or ())
    _meeting = rendezvous = _open(found, deadline)
    try:
        rendezvous.join(command, deadline)
        with rendezvous.watch.running(), rendezvous.control.reporting_failure():
            yield rendezvous
    except BaseException as error:
        cause = rendezvous.control.cause_of(error)
        rendezvous.end_others(cause)
        if cause is error:
            raise
        cause.run_dir = getattr(error, "run_dir", None)  # type: ignore[attr-defined]
        raise cause from error
    finally:
        _meeting = None
        rendezvous.leave()


def _join_seconds(command: Sequence[str]) -> float:
    """`distributed.timeout` as typed: no process has composed a configuration yet."""
    typed = [text.partition("=")[2] for text in command if text.startswith(f"{_TIMEOUT}=")]
    try:
        seconds = float(typed[-1])
    except (IndexError, ValueError):  # left to the default; or told with the configuration
        return _JOIN_SECONDS
    return seconds if seconds > 0 else _JOIN_SECONDS


def _open(found: Launched, deadline: float) -> Rendezvous:
    global _num_meetings, _served, _start
    _num_meetings += 1
    if found.is_main and not found.has_store:
        host = _own_meeting_address(found)
        _served = _served or _serve(found, host)
    else:
        host = _reachable(found, deadline)
    if _start is None:
        host, _start = (host, uuid.uuid4().hex) if found.is_main else _called(found, deadline)
    address = StoreAddress(host, found.port, f"gnntrain/{_start}/{_num_meetings}")
    return Rendezvous(found, address, _on_the_way(found, own_address(host)))


def _called(found: Launched, deadline: float) -> tuple[str, str]:
    """Where process 0 is, and the name that it gives to this start of all processes.

    A launcher may start them again while the store of the start before is there: torchrun's
    outlives them, and process 0 may end later than others. So each process stores a request under
    a new random key; only a process 0 that still waits for the others answers it. (torchrun's count
    of restarts differs between machines.)
    """
    request = uuid.uuid4().hex
    while True:
        host = _reachable(found, deadline)
        # An error: that store has ended, as that of an earlier start does; or the port is another
        # program's.
        address = StoreAddress(host, found.port, "gnntrain")
        with contextlib.suppress(dist.DistError), contextlib.closing(_client(address)) as store:
            store.set(f"ask/{found.num_processes}/{found.process}", request)
            while time.monotonic() < deadline:
                if answer := store.compare_set(f"answer/{request}", "", ""):
                    return host, answer.decode()
                time.sleep(_LOOK_SECONDS)
        if time.monotonic() > deadline:
            raise RankLost(
                f"Process 0 has not come to {host} port {found.port}.",
                "Look at its output, and whether another program listens at this port.",
                ranks=[0],
            )
        time.sleep(_LOOK_SECONDS)


def _own_meeting_address(found: Launched) -> str:
    """The address of this machine at which the others look for process 0."""
    try:
        host = _resolved(found)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family):
            return host
    except OSError as error:  # a load balancer's address, or a name that only others know
        if (outward := _outward_address()) is not None:
            return outward
        raise UserError(
            f"MASTER_ADDR={found.address} is not an address of this machine, which leads the run.",
            "Set MASTER_ADDR to the address of process 0's machine.",
        ) from error


def _serve(found: Launched, host: str) -> Any:
    try:
        return serve_store(2 * found.num_processes, _CONNECT_SECONDS, host, found.port)
    except OSError as error:
        raise UserError(
            f"MASTER_PORT={found.port} of {host} cannot be used: {error.strerror or error}.",
            "Set MASTER_PORT to a free port, the same for all processes.",
        ) from error


def _reachable(found: Launched, deadline: float) -> str:
    """The address of process 0, once it answers."""
    begin = time.monotonic()
    says_at = begin + _PATIENCE_SECONDS
    while True:
        try:
            host = _resolved(found)
            socket.create_connection((host, found.port), _CONNECT_SECONDS).close()
            return host
        except OSError as error:
            now, is_unnamed = time.monotonic(), isinstance(error, socket.gaierror)
            ends = min(deadline, begin + _NAME_SECONDS) if is_unnamed else deadline
            text = (
                f"Process {found.process} cannot reach process 0 at {found.address} port "
                f"{found.port}: {error.strerror or error}"
            )
            if now > ends:
                raise RankLost(
                    f"{text}.",
                    "Look whether process 0 was started, whether this machine knows the name, and "
                    "whether a firewall is between the machines.",
                ) from error
            if now > says_at:
                says_at = math.inf
                _log.warning("%s; it tries for %.0f s more.", text, ends - now)
            time.sleep(_LOOK_SECONDS)


def _resolved(found: Launched) -> str:
    return _on_the_way(found, address_of(found.address))


def _on_the_way(found: Launched, host: str) -> str:
    """The address, or where it is a loopback address that other machines cannot reach, another one
    of this machine: some systems give their own name a loopback address. One that the launcher gave
    as a number is meant."""
    is_meant = found.is_on_one_machine or host == found.address
    if is_meant or not ipaddress.ip_address(host).is_loopback:
        return host
    return _outward_address() or host


def _outward_address() -> str | None:
    """The address from which this machine reaches others; None: it has no route to any."""
    for elsewhere in _ELSEWHERE:
        with contextlib.suppress(OSError):
            return own_address(elsewhere)
    return None
