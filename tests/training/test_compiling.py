"""`trainer.compile` changes how a step is computed, not what."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gnntrain.config import TrainerConfig
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.loading.loader import SeedPlan
from gnntrain.models import GAT, GCN, SAGE
from gnntrain.tasks import NodeClassification
from gnntrain.training.trainer import Trainer
from gnntrain.training.update import compiled
from tests.graphs import random_graph, stored
from tests.loading.graphs import cpu_loader
from tests.training.test_trainer import Scripted


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SAGE, GCN, GAT])
def test_a_compiled_model_trains_as_the_eager_one(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is traced and differentiated is all the same; only no code is generated of it.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    store = stored(tmp_path / "store", random_graph())
    losses = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = kind(store.num_features, store.num_outputs, hidden_channels=8, dropout=0.2)
        needs = model.needs
        assert needs.rows == (kind is not GAT)
        loader = cpu_loader(store, SeedPlan(store.split("train"), 8), needs=needs, threads=1)
        trainer = Trainer(
            model,
            loader,
            Scripted(),
            task=NodeClassification(store),
            config=TrainerConfig(lr=0.05, epochs=2, compile=is_compiled),
            context=DistributedContext(),
        )
        losses.append([record.train_loss for record in trainer.fit().records])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_without_a_compiler_there_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++ -O3")
    with pytest.raises(UserError, match="/nowhere/c"):
        compiled(torch.nn.Linear(2, 2), torch.device("cpu"))


def test_a_python_that_torch_cannot_compile_with_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("torch.compile is not supported on Python 3.99")

    monkeypatch.setenv("CXX", "true")
    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.raises(UserError, match=r"trainer\.compile=true"):
        compiled(torch.nn.Linear(2, 2), torch.device("cpu"))
