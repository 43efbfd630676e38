"""A part of an evaluation, beside the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gnntrain.distributed.context import DistributedContext
from gnntrain.planning import partial
from gnntrain.training.buffers import SharedBuffers
from tests.planning.plans import GIB, opened
from tests.trainers import trainer_of


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=sage", "model.num_layers=3", "sampler.fan_outs=[2,2,2]"],
        ["model=gat", "model.heads=4"],
        ["model=gcn", "model.jk=cat"],
        ["model=mlp"],
    ],
    ids=" ".join,
)
def test_layers_are_allocated_as_in_a_whole_evaluation(
    overrides: list[str], small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, graph = opened([*small, *overrides, "evaluation.memory_limit=1e-9"])
    trainer = trainer_of(config, graph, tmp_path)
    held: list[int] = []
    original = SharedBuffers.matrix

    def noted(self: SharedBuffers, *shape: Any) -> torch.Tensor:
        matrix = original(self, *shape)
        held.append(sum(one.nbytes for one in self._matrices.values()))
        return matrix

    monkeypatch.setattr(SharedBuffers, "matrix", noted)
    trainer.evaluator.evaluate(trainer.model)
    whole, held[:] = list(held), []
    context = DistributedContext()
    cost = partial.evaluate_in_part(trainer.evaluator, trainer.model, context, tmp_path)
    assert held == 2 * whole
    assert cost.disk_bytes == max(whole)
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_an_evaluation_leaves_the_model_alone(small: list[str], tmp_path: Path) -> None:
    config, graph = opened([*small, "model.norm=batch"])
    trainer = trainer_of(config, graph, tmp_path)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    partial.evaluate_in_part(trainer.evaluator, trainer.model, DistributedContext(), tmp_path)
    assert trainer.model.training
    assert all(torch.equal(before[name], v) for name, v in trainer.model.state_dict().items())


def test_a_loop_is_scaled_by_the_work_that_was_done() -> None:
    clock = partial._Clock(torch.device("cpu"))
    clock.end(clock.now(), [(1.0, 10.0), (3.0, 10.0)], 100.0)
    assert clock.loops[0] == pytest.approx((20.0, 12.0, 28.0))
    clock.end(clock.now(), [], 0.0)
    assert clock.loops[1] == (0.0, 0.0, 0.0)


def test_written_layers_are_resident(tmp_path: Path) -> None:
    buffers = partial._WrittenBuffers(DistributedContext(), tmp_path, GIB)
    status = Path("/proc/self/statm")
    before = int(status.read_text().split()[1])
    matrix = buffers.matrix("h0", 1 << 16, 256)
    grown = 4096 * (int(status.read_text().split()[1]) - before)
    assert grown > 0.9 * matrix.nbytes
