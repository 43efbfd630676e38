from __future__ import annotations

import torch
from torch import nn

from gnntrain.models.embedding import EmbeddingTable, embedding_tables


def table() -> EmbeddingTable:
    torch.manual_seed(0)
    return EmbeddingTable(7, 4)


def test_the_gradient_of_a_batchs_rows_is_that_of_the_whole_weight() -> None:
    made, nodes = table(), torch.tensor([5, 0, 3])
    factors = torch.randn(3, 4)
    whole = made.weight.detach().clone().requires_grad_()
    torch.autograd.backward((whole[nodes].sin() * factors).sum())
    torch.autograd.backward((made(nodes).sin() * factors).sum())
    taken = made.take_gradient()
    assert taken is not None
    assert taken.nodes is not None
    assert taken.nodes.tolist() == nodes.tolist()
    assert whole.grad is not None
    torch.testing.assert_close(taken.gradient, whole.grad[nodes])
    assert made.weight.grad is None


def test_all_rows_share_the_memory_of_the_weight() -> None:
    made = table()
    rows = made(None)
    assert rows.data_ptr() == made.weight.data_ptr()
    torch.autograd.backward(rows.sum())
    taken = made.take_gradient()
    assert taken is not None
    assert taken.nodes is None
    assert taken.gradient.shape == (7, 4)


def test_a_gradient_of_rows_in_place_has_their_shape() -> None:
    made, nodes = table(), torch.tensor([5, 0, 3])
    features, leaf = made.in_place(nodes)
    assert features.rows.data_ptr() == made.weight.data_ptr()
    torch.testing.assert_close(features.whole(), made.weight[nodes])
    gradient = torch.randn(3, 4)
    torch.autograd.backward(leaf, gradient)
    taken = made.take_gradient()
    assert taken is not None
    assert taken.nodes is not None
    assert taken.nodes.tolist() == nodes.tolist()
    torch.testing.assert_close(taken.gradient, gradient)


def test_the_weight_is_in_the_state_dict_and_other_optimisers_leave_it_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 2), table())
    assert list(dict(embedding_tables(model))) == ["1"]
    assert model.state_dict()["1.weight"].shape == (7, 4)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == [
        "0.weight",
        "0.bias",
    ]
