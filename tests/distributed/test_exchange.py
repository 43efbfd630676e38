from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.exchange import Exchange, open_exchange
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.owners import AnyArray as Array
from gnntrain.distributed.owners import answers_of
from gnntrain.errors import RunError
from tests.distributed.exchanges import TOKEN, exchanges

HOST = "127.0.0.1"
TWO = [[0], [1]]

any_array = (npst.boolean_dtypes() | npst.integer_dtypes() | npst.floating_dtypes()).flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=4, min_side=0))
)


def rows_of(owner: int) -> Array:
    return np.arange(20, dtype=np.float32).reshape(10, 2) + np.float32(100 * owner)


def gather(rows: Array, arguments: list[Array]) -> list[Array]:
    return [rows[arguments[0]]]


def echo(arguments: list[Array]) -> list[Array]:
    return arguments


def serve_rows(ranks: list[Exchange]) -> None:
    for exchange in ranks:
        if exchange.owner is not None:
            exchange.serve("rows", partial(gather, rows_of(exchange.owner)))


def equal(one: Array, other: Array) -> bool:
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


@pytest.fixture(scope="module")
def echoing() -> Iterator[Exchange]:
    with exchanges([0, 1], TWO) as ranks:
        ranks[1].serve("echo", echo)
        yield ranks[0]


@given(arrays=st.lists(any_array | any_array.map(np.transpose), max_size=5))
def test_arrays_arrive_as_they_were_sent(echoing: Exchange, arrays: list[Array]) -> None:
    answer = echoing.call("echo", {1: arrays})[1]
    assert len(answer) == len(arrays)
    assert all(map(equal, answer, arrays))
    for array in answer:
        array[...] = 0  # may be written to


def test_large_arrays_cross_each_other() -> None:
    """Far more than sockets buffer, in both directions at once, from all to all."""
    with exchanges([0, 1, 2], [[0], [1], [2]]) as ranks, ThreadPoolExecutor(6) as pool:
        for exchange in ranks:
            exchange.serve("echo", echo)
        large = np.arange(2_000_000)

        def call(exchange: Exchange) -> bool:
            answers = exchange.call("echo", {owner: [large + owner] for owner in range(3)})
            return all(equal(answers[owner][0], large + owner) for owner in range(3))

        assert all(pool.map(call, ranks * 2))


@given(
    calls=st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.integers(0, 9), max_size=30)), min_size=1
    )
)
def test_many_calls_at_once_get_their_own_answers(calls: list[tuple[int, list[int]]]) -> None:
    with exchanges([0, 0, 1, 1], [[0, 1], [2, 3]]) as ranks, ThreadPoolExecutor(6) as pool:
        serve_rows(ranks)

        def call(asked: tuple[int, list[int]]) -> None:
            caller, ids = asked
            wanted = np.array(ids, np.int64)
            answers = ranks[caller].call("rows", {owner: [wanted] for owner in (1, 0)})
            assert list(answers) == [1, 0]
            for owner in answers:
                assert equal(answers[owner][0], rows_of(owner)[wanted])

        list(pool.map(call, calls))


def test_an_error_of_the_owner_reaches_the_caller_and_the_next_call_is_answered() -> None:
    def fail(arguments: list[Array]) -> list[Array]:
        raise IndexError(f"row {int(arguments[0])} is out of range")

    with exchanges([0, 1], TWO) as ranks:
        serve_rows(ranks)
        ranks[1].serve("fail", fail)
        with pytest.raises(RunError, match=r"Rank 1 on machine 1.*row 7 is out of range"):
            ranks[0].call("fail", {1: [np.array(7)]})
        assert ranks[0].call("rows", {1: [np.array([0])]})[1][0][0, 0] == 100


def test_a_call_waits_until_its_name_is_served() -> None:
    with exchanges([0, 1], TWO) as ranks, ThreadPoolExecutor(1) as pool:
        called = pool.submit(ranks[0].call, "rows", {1: [np.array([0])]})
        time.sleep(0.1)
        serve_rows(ranks)
        assert called.result(20)[1][0][0, 0] == 100


def test_a_name_that_was_withdrawn_can_be_served_anew() -> None:
    with exchanges([0, 1], TWO) as ranks:
        for value in (1, 2):
            ranks[1].serve("value", answers_of([np.array([value])]))
            assert ranks[0].call("value", {1: [np.array([0])]})[1][0] == value
            ranks[1].withdraw(["value"])


# What goes wrong


def test_an_owner_that_does_not_answer_in_time_is_named() -> None:
    is_over = threading.Event()

    def hang(arguments: list[Array]) -> list[Array]:
        is_over.wait(20)
        return arguments

    with exchanges([0, 0, 1], [[0, 1], [2]], timeout=0.5) as ranks:
        ranks[2].serve("hang", hang)
        with pytest.raises(RunError, match=r"Rank 2 on machine 1 \(127\.0\.0\.1"):
            ranks[0].call("hang", {1: []})
        is_over.set()


def die(arguments: list[Array]) -> list[Array]:
    os.kill(os.getpid(), signal.SIGKILL)
    return arguments


def kill_owner(context: DistributedContext, directory: str) -> None:
    with open_exchange(context, owners=TWO, timeout=60) as exchange:
        if context.rank == 1:
            exchange.serve("die", die)
            time.sleep(60)
        start = time.monotonic()
        try:
            exchange.call("die", {1: []})
        except RunError as error:
            Path(directory, "told").write_text(f"{time.monotonic() - start} {error}")
            raise


def test_a_killed_owner_is_noticed_at_once_and_named(tmp_path: Path) -> None:
    plan = LaunchPlan(2, "cpu", threads=1, timeout=60, machines=(0, 1))
    with pytest.raises(RunError, match=r"[Rr]ank 1"):
        launch(kill_owner, str(tmp_path), plan, tmp_path)
    seconds, told = (tmp_path / "told").read_text().split(maxsplit=1)
    assert float(seconds) < 10
    assert told.startswith(f"Rank 1 on machine 1 ({HOST}")


def fail_while_others_ask(context: DistributedContext, _: None) -> None:
    with open_exchange(context, owners=TWO, timeout=60) as exchange:
        if context.rank == 1:
            time.sleep(0.5)
            raise ZeroDivisionError("it broke")
        exchange.call("nothing", {1: []})


def test_the_failure_of_an_owner_is_reported_before_the_loss_of_its_connections(
    tmp_path: Path,
) -> None:
    plan = LaunchPlan(2, "cpu", threads=1, timeout=60, machines=(0, 1))
    with pytest.raises(RunError, match="it broke"):
        launch(fail_while_others_ask, None, plan, tmp_path)


def test_an_owner_out_of_reach_is_told_at_the_start() -> None:
    with socket.create_server((HOST, 0)) as closed:
        port = closed.getsockname()[1]
    with closing(Exchange(DistributedContext(0, 2), [[1]], TOKEN, 5.0)) as exchange:
        words = rf"Rank 1 on machine 0 \({HOST}, port {port}\) is out of reach of rank 0"
        with pytest.raises(RunError, match=words):
            exchange.connect([(HOST, 0), (HOST, port)], 1)


# The end


def test_closing_ends_calls_under_way() -> None:
    with exchanges([0, 1], TWO) as ranks, ThreadPoolExecutor(1) as pool:
        called = pool.submit(ranks[0].call, "nothing", {1: []})
        time.sleep(0.1)
        ranks[0].close()
        with pytest.raises(RunError, match="closed"):
            called.result(10)


def test_nothing_is_left_after_closing() -> None:
    gc.collect()  # files that earlier tests have left to it
    before, files = threading.active_count(), psutil.Process().num_fds()
    with exchanges([0, 1], TWO) as ranks:
        serve_rows(ranks)
        ports = [address[1] for address in ranks[0]._addresses]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: ranks[0].call("rows", {1: [np.array([0])]}), range(20)))
        for port in ports:
            with pytest.raises(ConnectionRefusedError):  # since all ranks have connected
                socket.create_connection((HOST, port))
    assert threading.active_count() == before
    assert psutil.Process().num_fds() == files


# Strangers


RUBBISH = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10,
    os.urandom(1_000_000),
    b"\0" * 64,
    b"\x80\x04\x95" + b"." * 100,  # a pickle
]


def test_strangers_at_an_open_port_neither_enter_nor_keep_ranks_out() -> None:
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(closing(Exchange(DistributedContext(r, 2), TWO, TOKEN, 20.0)))
            for r in range(2)
        ]
        addresses = [exchange.listen() for exchange in ranks]
        opened = [one.laddr for one in psutil.Process().net_connections("tcp")]
        assert {ip for ip, port in opened if port == addresses[1][1]} == {HOST}  # no other address
        for rubbish in [*RUBBISH, *[b""] * 100]:
            stranger = stack.enter_context(socket.create_connection(addresses[1], timeout=10))
            with contextlib.suppress(ConnectionError):
                stranger.sendall(rubbish)
        serve_rows(ranks)
        for exchange in ranks:
            exchange.connect(addresses, 2)
        answers = [ranks[0].call("rows", {1: [np.array([0])]}) for _ in range(4)]
        assert [answer[1][0][0, 0] for answer in answers] == [100] * 4


def test_an_end_that_does_not_know_the_token_is_refused() -> None:
    def pretend() -> None:
        caller, _ = impostor.accept()
        with caller:
            caller.sendall(b"t" * len(caller.recv(32, socket.MSG_WAITALL)))

    with (
        socket.create_server((HOST, 0)) as impostor,
        closing(Exchange(DistributedContext(0, 2), [[1]], TOKEN, 20.0)) as rank,
    ):
        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(RunError, match="token"):
            rank.connect([(HOST, 0), impostor.getsockname()], 1)
        thread.join()
