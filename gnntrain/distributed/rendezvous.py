"""The meeting of the processes that a launcher has started: over one store, in plain JSON."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import math
import multiprocessing
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
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
    addresses_of,
    own_address,
    serve_store,
)
from gnntrain.distributed.torchrun import record_for_torchrun
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

_TIMEOUT = "distributed.timeout"
# A pod or a task may begin minutes after another one.
_JOIN_SECONDS = DistributedConfig().timeout
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
        local_rank: See `Launched`.
        cores: The cores that it may run on.
        version: Of gnntrain.
        command: Its command line; None: it is a program of the user's.
    """

    name: str
    host: str
    local_rank: int | None
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
        control: Stop, failures and progress, over a client of its own.
        processes: Of all processes, in their order.
    """

    def __init__(self, launched: Launched, address: StoreAddress, host: str) -> None:
        self.launched = launched
        self.address = address
        self.host = host
        is_rank = launched.local_rank is not None
        store = _bounded_store(address, _START_SECONDS)
        rank = launched.process if is_rank else None
        self.control = RunControl(store, rank, launched.process)
        self._store = _bounded_store(address, _START_SECONDS)
        self._bounded = [store, self._store]
        self._watch: Watch | None = None
        self.processes: list[ProcessInfo] = []
        # Where other processes ask process 0 for the name of this start, until all have come.
        self._newcomers: BoundedStore | None = None
        if self.is_main:
            self._newcomers = _bounded_store(
                StoreAddress(address.host, address.port), _START_SECONDS
            )
            self._bounded.append(self._newcomers)
        self._answered: set[bytes] = set()

    @property
    def is_main(self) -> bool:
        """Whether this process leads the run."""
        return self.launched.is_main

    @property
    def machines(self) -> tuple[int, ...]:
        """The number of each process's machine: a new one begins with each local rank 0."""
        firsts = [not info.local_rank for info in self.processes]
        return tuple(count - 1 for count in itertools.accumulate(firsts))

    @property
    def hosts(self) -> tuple[str, ...]:
        """Name and address of each machine."""
        processes = dict(zip(self.machines, self.processes, strict=True))
        return tuple(f"{info.name}, {info.host}" for info in processes.values())

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
        local_rank, cores = self.launched.local_rank, core_numbers()
        name = socket.gethostname()
        info = ProcessInfo(name, self.host, local_rank, cores, __version__, command)
        self.processes = [ProcessInfo(**one) for one in self.gather("info", asdict(info), deadline)]
        self._newcomers = None
        if self.is_main:
            _check_equal(self.processes)
            if self.launched.has_store:
                self._fail_again()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notice here which other rank fails, or gives no sign of life any more."""
        of_machines = self.launched.local_rank is None
        roster = Roster(self.machines, self.hosts, of_machines)
        self._watch = Watch(self.control, roster, _START_SECONDS, self._end_by_force)
        with self._watch.running(), self.control.reporting_failure():
            yield

    def wait_at_most(self, timeout: float) -> None:
        """Set how long the others may give no sign of life."""
        for store in self._bounded:
            store.timeout = timeout
        if self._watch is not None:
            self._watch.timeout = timeout

    def note_ranks(self, counts: Sequence[int]) -> None:
        """Note how many ranks each process is or starts, to name them if one is lost."""
        if self._watch is not None and self._watch.roster is not None:
            ends = itertools.accumulate(counts)
            ranks = tuple(range(end - n, end) for end, n in zip(ends, counts, strict=True))
            self._watch.roster = replace(self._watch.roster, ranks=ranks)

    def mark_told(self, error: BaseException) -> None:
        """Mark an error that another process tells the user: process 0 tells those of all."""
        is_alone = isinstance(error, RankLost) and 0 in error.ranks and self.is_machine_main
        if not (self.is_main or is_alone):
            error.is_told = True  # type: ignore[attr-defined]

    def _end_by_force(self, failure: GnntrainError | None) -> None:
        if failure is not None:
            self.mark_told(failure)
            record_for_torchrun(failure)
            prepare_forced_exit(failure)

    def publish(self, key: str, value: Any) -> None:
        """Give plain data to all processes that `wait_for` the key."""
        with self._reached():
            self._store.set(key, json.dumps(value))

    def wait_for(self, key: str, deadline: float | None = None) -> Any:
        """Wait for what a process tells.

        Raises:
            GnntrainError: The failure of another process.
            Interrupted: The run was asked to end.
            TimeoutError: It is later than `deadline`, of `time.monotonic`.
        """
        while True:
            with self._reached():
                text = self._store.compare_set(key, "", "")
            if text:
                return json.loads(text)
            self._check_others()
            self._answer_newcomers()
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(_LOOK_SECONDS)

    def gather(self, key: str, value: Any, deadline: float | None = None) -> list[Any]:
        """Every process's plain `value` on all, in their order.

        Raises:
            RunError: Some process has given none until `deadline`.
        """
        self.publish(f"{key}/{self.launched.process}", value)
        if self.is_main:
            self.publish(key, self._gathered(key, deadline))
        values: list[Any] = self.wait_for(key)
        return values

    def share(self, key: str, value: Any) -> Any:
        """Process 0's plain `value` on all."""
        if self.is_main:
            self.publish(key, value)
        return self.wait_for(key)

    @property
    def cores(self) -> int:
        """Cores for this process: its share of those that others of its machine may use too."""
        processes = zip(self.processes, self.machines, strict=True)
        users = Counter(c for info, m in processes if m == self.machine for c in info.cores)
        share = sum(Fraction(1, users[core]) for core in core_numbers())
        quota = container().cores or math.inf  # of all processes here together
        return max(1, int(min(share, quota / self.machines.count(self.machine))))

    def _gathered(self, key: str, deadline: float | None) -> list[Any]:
        values: dict[int, Any] = {}
        for process in range(self.launched.num_processes):
            with contextlib.suppress(TimeoutError):
                values[process] = self.wait_for(f"{key}/{process}", deadline)
        missing = [p for p in range(self.launched.num_processes) if p not in values]
        if missing:
            raise RankLost(
                f"Of {self.launched.num_processes} processes that {self.launched.launcher} "
                f"starts, {len(missing)} have not come to {self.address.host} port "
                f"{self.address.port}: {', '.join(map(str, missing[:8]))}.",
                "Look at their output, and whether a firewall is between the machines.",
                missing,
            )
        return list(values.values())

    def _answer_newcomers(self) -> None:
        """See `_called`."""
        if self._newcomers is None:
            return
        with self._reached():
            for process in range(1, self.launched.num_processes):
                request = self._newcomers.compare_set(_ask_key(process), "", "")
                if request and request not in self._answered:
                    self._newcomers.set(_answer_key(request.decode()), _start or "")
                    self._answered.add(request)

    def _check_others(self) -> None:
        self.control.sync()
        if (failure := self.control.first_failure()) is not None:
            raise failure
        if self.control.stop_requested:
            raise Interrupted(self.control.stop_requested)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except dist.DistError as error:
            raise RankLost(
                f"Process 0, which leads the run, can no longer be reached at {self.address.host} "
                f"port {self.address.port}.",
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
            name: bytes = self._agents_store().compare_set("gnntrain/job", "", uuid.uuid4().hex)
        return name.decode()

    def keep_failure(self) -> None:
        """Keep what would only happen again: torchrun starts the ranks again after any failure, and
        they then end with this one at once."""
        first = self.control.first_failure()
        if self.launched.has_store and first is not None and not may_mend(first):
            with contextlib.suppress(dist.DistError):
                self._agents_store().compare_set(_failed_key(), "", self.control.failure())

    def _fail_again(self) -> None:
        with self._reached():
            text = self._agents_store().compare_set(_failed_key(), "", "").decode()
            if text and self.control.failure(text):
                raise self.control.first_failure() or RunError(text)

    def _agents_store(self) -> Any:
        return StoreAddress(self.address.host, self.address.port).connect(_CONNECT_SECONDS)

    def leave(self) -> None:
        """Let go of the store. Process 0, if it serves it, waits for the others to do so."""
        with contextlib.suppress(dist.DistError):
            if self.control.lost_store is not None:
                raise self.control.lost_store
            number = self._store.add("left", 1)
            failure = self.control.first_failure()
            lost = failure.ranks if isinstance(failure, RankLost) else ()
            deadline = time.monotonic() + _LEAVE_SECONDS
            serves = self.is_main and not self.launched.has_store
            while serves and number < self.launched.num_processes - len(lost):
                if time.monotonic() > deadline:
                    break
                time.sleep(_LOOK_SECONDS)
                number = self._store.add("left", 0)
        self.control.close()
        for store in self._bounded:
            store.close()


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
                f"Process {number} ({info.host}) was started with {_line(info)}, process 0 with "
                f"{_line(first)}.",
                "Start all processes with the same command line.",
            )


def _line(info: ProcessInfo) -> str:
    return f"`gnntrain {' '.join(info.command)}`" if info.command else "no argument"


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
        with rendezvous.watched():
            yield rendezvous
    except BaseException as error:
        cause = rendezvous.control.cause_of(error)
        _end_others(rendezvous, cause)
        if cause is error:
            raise
        cause.run_dir = getattr(error, "run_dir", None)  # type: ignore[attr-defined]
        raise cause from error
    finally:
        _meeting = None
        rendezvous.leave()


def _end_others(rendezvous: Rendezvous, error: BaseException) -> None:
    """Have all processes end with this error, which process 0 tells the user."""
    control = rendezvous.control
    if isinstance(error, Exception):
        control.report_failure(error)
        record_for_torchrun(error)
        rendezvous.keep_failure()
    elif isinstance(error, KeyboardInterrupt):
        control.request_stop(signal_of(error))
    control.is_abandoned = True
    control.sync()
    rendezvous.mark_told(error)


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
        with contextlib.suppress(dist.DistError), _asking(StoreAddress(host, found.port)) as store:
            store.set(_ask_key(found.process), request)
            while time.monotonic() < deadline:
                if answer := store.compare_set(_answer_key(request), "", ""):
                    return host, answer.decode()
                time.sleep(_LOOK_SECONDS)
        if time.monotonic() > deadline:
            raise RankLost(
                f"Process 0 has not come to {host} port {found.port}.",
                "Look at its output, and whether another program listens at this port.",
                ranks=[0],
            )
        time.sleep(_LOOK_SECONDS)


def _asking(address: StoreAddress) -> contextlib.closing[BoundedStore]:
    return contextlib.closing(_bounded_store(address, _START_SECONDS))


def _bounded_store(address: StoreAddress, timeout: float) -> BoundedStore:
    return BoundedStore(lambda: address.connect(_CONNECT_SECONDS), timeout)


def _ask_key(process: int) -> str:
    return f"gnntrain/ask/{process}"


def _failed_key() -> str:
    return f"gnntrain/failed/{_num_meetings}"


def _answer_key(request: str) -> str:
    return f"gnntrain/answer/{request}"


def _own_meeting_address(found: Launched) -> str:
    """The address of this machine at which the others look for process 0."""
    try:
        host = _resolved(found)
        with socket.create_server((host, 0), family=_family(host)):
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
    while True:
        try:
            host = _resolved(found)
            socket.create_connection((host, found.port), _CONNECT_SECONDS).close()
            return host
        except OSError as error:
            if time.monotonic() > deadline:
                raise RankLost(
                    f"Process {found.process} cannot reach process 0 at {found.address} port "
                    f"{found.port}: {error.strerror or error}.",
                    "Look whether it was started, and whether a firewall is between the machines.",
                ) from error
            time.sleep(_LOOK_SECONDS)


def _resolved(found: Launched) -> str:
    return _on_the_way(found, addresses_of(found.address)[0])


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


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
