from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.exchange import Exchange, open_exchange
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.messages import Array
from tests.distributed.exchanges import exchanges

TWO = [[0], [1]]


def rows_of(owner: int) -> Array:
    return np.arange(20, dtype=np.float32).reshape(10, 2) + np.float32(100 * owner)


def gather(rows: Array, arguments: list[Array]) -> list[Array]:
    return [rows[arguments[0]]]


def serve_rows(ranks: list[Exchange]) -> None:
    for exchange in ranks:
        if exchange.owner is not None:
            exchange.serve("rows", partial(gather, rows_of(exchange.owner)))


def test_owners_answer_with_their_own_rows() -> None:
    with exchanges([0, 0, 1, 1], [[0, 1], [2, 3]]) as ranks:
        serve_rows(ranks)
        for exchange in ranks:
            answers = exchange.call("rows", {1: [np.array([3, 1])], 0: [np.array([0])]})
            assert list(answers) == [1, 0]
            assert answers[1][0].tolist() == [[106, 107], [102, 103]]
            assert answers[0][0].tolist() == [[0, 1]]


def ask_others(context: DistributedContext, directory: str) -> None:
    owners = [list(context.ranks_of(machine)) for machine in range(context.num_machines)]
    with open_exchange(context, owners=owners, host="127.0.0.1", timeout=60) as exchange:
        serve_rows([exchange])
        answers = exchange.call("rows", {owner: [np.array([1])] for owner in range(len(owners))})
        told = [float(answers[owner][0][0, 0]) for owner in range(len(owners))]
    Path(directory, str(context.rank)).write_text(repr(told))


def test_ranks_that_are_processes_ask_each_other(tmp_path: Path) -> None:
    plan = LaunchPlan(3, False, threads=1, timeout=60, machines=(0, 0, 1))
    launch(ask_others, str(tmp_path), plan, tmp_path)
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["[2.0, 102.0]"] * 3
