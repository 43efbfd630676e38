from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gnntrain.compute.selection import KernelChoice, select, selected
from gnntrain.config import TrainerConfig
from gnntrain.distributed.context import DistributedContext
from gnntrain.models.embedding import EmbeddingTable
from gnntrain.training.row_optimizer import RowOptimizer
from tests.examples import examples

KINDS: list[dict[str, Any]] = [
    {"optimizer": "adam"},
    {"optimizer": "adam", "weight_decay": 0.1},
    {"optimizer": "adamw", "weight_decay": 0.1},
    {"optimizer": "sgd", "weight_decay": 0.1},
    {"optimizer": "sgd", "momentum": 0.0},
]
each_kind = pytest.mark.parametrize(
    "keys", KINDS, ids=lambda keys: "-".join(map(str, keys.values()))
)


@pytest.fixture(params=["numba", "torch"], autouse=True)
def _kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Who updates the rows."""
    before = selected("cpu")
    select(KernelChoice(request.param), "cpu")
    yield
    select(before, "cpu")


def made(num_nodes: int = 7, seed: int = 0, **keys: Any) -> tuple[EmbeddingTable, RowOptimizer]:
    torch.manual_seed(seed)
    table = EmbeddingTable(num_nodes, 3)
    config = TrainerConfig(**{"lr": 0.1, **keys})
    return table, RowOptimizer([table], config, DistributedContext())


def take_step(
    table: EmbeddingTable, ours: RowOptimizer, nodes: Tensor | None, rows: Tensor
) -> None:
    """A step whose gradient of the rows is `rows`."""
    torch.autograd.backward((table(nodes) * rows).sum())
    ours.collect()
    ours.step()


@each_kind
@examples(40)
@given(
    steps=st.lists(
        st.lists(st.integers(0, 6), unique=True, max_size=7) | st.just([*range(7)]), max_size=6
    ),
    seed=st.integers(0, 99),
)
def test_a_row_changes_only_when_it_is_read_and_then_as_by_the_formula(
    keys: dict[str, Any], steps: list[list[int]], seed: int
) -> None:
    table, ours = made(seed=seed, **keys)
    weight = table.weight.detach().double()
    first, second = torch.zeros(2, 7, 3, dtype=torch.float64)
    decay, momentum, count = keys.get("weight_decay", 0.0), keys.get("momentum", 0.9), 0
    for nodes in steps:
        before, gradient = table.weight.detach().clone(), torch.randn(len(nodes), 3)
        read = torch.tensor(nodes, dtype=torch.int64)
        take_step(table, ours, None if nodes == [*range(7)] else read, gradient)
        count += len(nodes) > 0
        for node, given_rows in zip(nodes, gradient.double(), strict=True):
            if keys["optimizer"] == "adamw":
                weight[node] *= 1 - 0.1 * decay
            else:
                given_rows = given_rows + decay * weight[node]
            if keys["optimizer"] == "sgd":
                first[node] = momentum * first[node] + given_rows
                weight[node] -= 0.1 * first[node]
                continue
            first[node] = 0.9 * first[node] + 0.1 * given_rows
            second[node] = 0.999 * second[node] + 0.001 * given_rows**2
            mean, scale = first[node] / (1 - 0.9**count), second[node] / (1 - 0.999**count)
            weight[node] -= 0.1 * mean / (scale.sqrt() + 1e-8)
        others = [node for node in range(7) if node not in nodes]
        assert torch.equal(table.weight[others], before[others])
    torch.testing.assert_close(table.weight.double(), weight, rtol=1e-4, atol=1e-5)
