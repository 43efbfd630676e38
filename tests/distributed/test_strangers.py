"""Strangers at every port of a run: the stores and gloo's. The exchange's are closed by then."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.exchange import open_exchange
from gnntrain.distributed.launch import LaunchPlan, launch
from tests.distributed.test_exchange import gather, rows_of

HOST = "127.0.0.1"
# With these bytes a client of torch's store begins; the next is the kind of its question.
STORE_BEGINS = b"\0" + struct.pack("<I", 0x3C85F7CE)
RUBBISH = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\0" * 100,
    b"\xff" * 100,
    b"\x80\x04\x95" + b"." * 64,  # a pickle
    np.random.default_rng(0).bytes(100_000),
    *(STORE_BEGINS + bytes([kind]) + b"\xff" * 32 for kind in range(20)),
    *(STORE_BEGINS + bytes([kind]) + struct.pack("<Q", 4) + b"x" for kind in range(20)),
]


def listened_ports() -> dict[int, str]:
    """The ports of this rank, the others and their parent, with the addresses."""
    parent = psutil.Process(os.getppid()).parent()
    assert parent is not None
    family = [parent, *parent.children(recursive=True)]
    connections = [one for process in family for one in process.net_connections("tcp")]
    listening = [one.laddr for one in connections if one.status == psutil.CONN_LISTEN]
    return {address.port: address.ip for address in listening}


def attack(port: int, strangers: contextlib.ExitStack) -> None:
    for rubbish in RUBBISH:
        for stays in (True, False):
            with contextlib.suppress(ConnectionError):
                stranger = socket.create_connection((HOST, port), timeout=10)
                strangers.enter_context(stranger)
                stranger.sendall(rubbish)
                if not stays:
                    stranger.close()
    for _ in range(100):
        strangers.enter_context(socket.create_connection((HOST, port), timeout=10))


def work_among_strangers(context: DistributedContext, directory: str) -> None:
    with (
        contextlib.ExitStack() as strangers,
        open_exchange(context, owners=[[0], [1]], timeout=60) as exchange,
    ):
        assert exchange.owner is not None
        exchange.serve("rows", partial(gather, rows_of(exchange.owner)))
        context.barrier()
        if context.is_main:
            ports = listened_ports()
            Path(directory, "ports").write_text(json.dumps(ports))
            for port in ports:
                attack(port, strangers)
        context.barrier()
        for step in range(20):
            total = context.sum(torch.tensor([1.0 + context.rank])).item()
            told = context.broadcast(step)
            rows = exchange.call("rows", {0: [np.array([step % 10])], 1: [np.array([0])]})
            context.control.commit(step)
            context.barrier()
            signal = context.control.agreed(step)
            found = [total, told, rows[0][0][0, 0], rows[1][0][0, 0], signal]
            assert found == [3.0, step, 2.0 * (step % 10), 100.0, 0], found
        context.among(range(1), 60)  # new connections
    Path(directory, str(context.rank)).write_text("done")


@pytest.mark.slow
def test_strangers_at_every_port_neither_stop_the_ranks_nor_change_their_numbers(
    tmp_path: Path,
) -> None:
    plan = LaunchPlan(2, "cpu", threads=1, timeout=60, machines=(0, 1))
    launch(work_among_strangers, str(tmp_path), plan, tmp_path)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["done"] * 2
    ports: dict[str, str] = json.loads((tmp_path / "ports").read_text())
    assert len(ports) >= 3  # two stores, gloo's of each rank
    assert set(ports.values()) == {HOST}
