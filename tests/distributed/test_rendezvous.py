from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnntrain.distributed import rendezvous as module
from gnntrain.distributed.launchers import Launched
from gnntrain.distributed.rendezvous import ProcessInfo, Rendezvous
from gnntrain.distributed.tcp_store import LOOPBACK, StoreAddress, serve_store
from gnntrain.errors import GnntrainError, Interrupted, RankLost, UserError
from tests.processes import free_port, started


class Group:
    """Processes that have met, each a thread here."""

    def __init__(self, local_ranks: Sequence[int | None]) -> None:
        self._server: Any = serve_store(4 * len(local_ranks), 30)
        address = StoreAddress(LOOPBACK, self._server.port, "test")
        started = Launched("test", 0, len(local_ranks), None, LOOPBACK, self._server.port)
        self.members = [
            Rendezvous(replace(started, process=i, local_rank=local), address, f"10.0.0.{i}")
            for i, local in enumerate(local_ranks)
        ]

    def do(self, call: Callable[[Rendezvous], Any]) -> list[Any]:
        """What `call` returns, or raises, in each process."""

        def result(member: Rendezvous) -> Any:
            try:
                return call(member)
            except (GnntrainError, KeyboardInterrupt) as error:
                return error

        with ThreadPoolExecutor(len(self.members)) as pool:
            return list(pool.map(result, self.members))

    def close(self) -> None:
        for member in self.members:
            member.control.close()


Make = Callable[[Sequence[int | None]], Group]


@pytest.fixture
def group() -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda local_ranks: stack.enter_context(closing(Group(local_ranks)))


@pytest.mark.parametrize(
    ("local_ranks", "machines"),
    [([0, 1, 0, 1, 2], (0, 0, 1, 1, 1)), ([None, None, None], (0, 1, 2))],
)
def test_a_machine_begins_with_its_local_rank_0(
    group: Make, local_ranks: Sequence[int | None], machines: tuple[int, ...]
) -> None:
    met = group(local_ranks)
    met.do(lambda one: one.join(None, time.monotonic() + 60))
    assert {one.machines for one in met.members} == {machines}
    firsts = [one.is_machine_main for one in met.members]
    assert firsts == [i == machines.index(m) for i, m in enumerate(machines)]
    assert len(met.members[0].hosts) == machines[-1] + 1


def test_other_command_lines_end_all_processes(group: Make) -> None:
    met = group([0, 0])

    def join(one: Rendezvous) -> None:
        try:
            one.join([f"trainer.epochs={1 + one.launched.process}"], time.monotonic() + 60)
            one.wait_for("config")
        except Exception as error:
            one.end_others(error)
            raise

    first, second = met.do(join)
    assert isinstance(first, UserError)
    assert "trainer.epochs=2" in first.message
    assert isinstance(second, UserError)
    assert getattr(second, "is_told", False)


@pytest.mark.parametrize("error", [UserError("no raw files here"), Interrupted(15)])
def test_the_end_of_another_process_is_raised(group: Make, error: BaseException) -> None:
    met = group([0, 0])

    def work(one: Rendezvous) -> None:
        if not one.is_main:
            one.end_others(error)
        one.wait_for("never told")

    for raised in met.do(work):
        assert type(raised) is type(error)
        assert raised.args == error.args


def test_processes_that_do_not_come_are_awaited_aloud_and_then_counted(
    group: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    met = group([0, 0, 0])
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.1)
    with pytest.raises(RankLost, match=r"1, 2\.") as caught:
        met.members[0].join(None, time.monotonic() + 0.5)
    assert caught.value.ranks == (1, 2)
    assert "for process 1, 2 of 3" in caplog.text


@pytest.mark.parametrize(
    ("process", "words"),
    [
        (0, r"Process 0 cannot reach itself at no-such-machine"),
        (1, r"process 0 at no-such-machine\.invalid port 29500"),
    ],
)
def test_a_name_that_nobody_knows_ends_the_wait_early(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, process: int, words: str
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(module, "_NAME_SECONDS", 0.5)
    found = Launched("test", process, 2, None, "no-such-machine.invalid", 29500)
    with pytest.raises(RankLost, match=words):
        module._reach(found, time.monotonic() + 600)
    assert process == 0 or "no-such-machine.invalid" in caplog.text


@pytest.mark.parametrize(
    ("cores", "quota", "expected"),
    [
        ([[0, 1, 2, 3], [0, 1, 2, 3]], None, 2),  # both may use all
        ([[0, 1, 2, 3], [4, 5]], None, 4),  # a batch system gave each its own
        ([[0], [0], [0]], None, 1),
        ([list(range(64))] * 2, 6.0, 3),  # a container gives both six cores' time
        ([list(range(64))] * 2, 0.5, 1),
    ],
)
def test_ranks_of_a_machine_share_its_cores(
    group: Make,
    monkeypatch: pytest.MonkeyPatch,
    cores: list[list[int]],
    quota: float | None,
    expected: int,
) -> None:
    monkeypatch.setattr(module, "container", lambda: SimpleNamespace(cores=quota))
    (one,) = group([0]).members
    one.processes = [ProcessInfo("", "", i, own, "") for i, own in enumerate(cores)]
    one.machines = (0,) * len(cores)
    assert one.cores == expected


LISTEN = """
import json, sys
from pathlib import Path
from gnntrain.config import Config
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.rendezvous import meeting

def note(context, directory):
    import psutil
    context.barrier()
    connections = psutil.Process().net_connections("inet")
    found = [c.laddr.ip for c in connections if c.status == "LISTEN"]
    Path(directory, f"{context.rank}.json").write_text(json.dumps(found))
    context.barrier()

with meeting() as met:
    launch(note, sys.argv[1], LaunchPlan.of(Config(), met), rendezvous=met)
"""


def test_launched_ranks_listen_on_the_launchers_address_alone(tmp_path: Path) -> None:
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    ranks = [
        started("-c", LISTEN, tmp_path, env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], printed
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert all(found), "gloo's own sockets are seen"
    assert len(found[0]) > len(found[1]), "rank 0 serves the stores"
    assert {ip for ips in found for ip in ips} == {LOOPBACK}


@pytest.mark.parametrize(
    ("address", "one_machine", "expected"),
    [
        ("127.0.0.1", False, "127.0.0.1"),
        ("localhost", True, "127.0.0.1"),
        ("localhost", False, "10.9.8.7"),  # as a machine may call itself
        ("10.9.8.1", False, "10.9.8.1"),
        ("node0", False, "10.9.8.1"),  # its name may stand for one of several addresses
        ("localhost", False, "fd00::7"),  # of a machine that has only IPv6
    ],
)
def test_other_machines_are_not_told_a_loopback_address(
    monkeypatch: pytest.MonkeyPatch, address: str, one_machine: bool, expected: str
) -> None:
    def own(towards: str) -> str:
        if ":" in expected and ":" not in towards:
            raise OSError("Network is unreachable")
        return expected if ":" in expected else "10.9.8.7"

    host = {"localhost": LOOPBACK, "node0": "10.9.8.1"}.get(address, address)
    found = [(socket.AF_INET, 0, 0, "", (host, 0))]
    monkeypatch.setattr(module, "own_address", own)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    process_0 = Launched("test", 0, 2, None, address, 29500, is_on_one_machine=one_machine)
    assert module._reach(process_0, math.inf).host == expected


def test_process_0_needs_an_address_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Launched("test", 0, 2, None, "192.0.2.1", 29500)
    monkeypatch.setattr(module, "launched", lambda: found)
    with pytest.raises(UserError, match=r"MASTER_ADDR=192\.0\.2\.1"), module.meeting():
        pass


def test_another_program_at_the_port_does_not_keep_a_process_waiting_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_START_SECONDS", 0.5)
    with socket.create_server((LOOPBACK, 0)) as other:  # takes connections and is silent
        port = int(other.getsockname()[1])
        with pytest.raises(RankLost):
            module._reach(Launched("test", 1, 2, None, LOOPBACK, port), time.monotonic() + 1)
