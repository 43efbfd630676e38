"""bfloat16 on a processor that does not multiply it: products in float32, rows in bfloat16."""

from __future__ import annotations

import pytest
import torch

from gnntrain.compute import linear
from gnntrain.compute.examples import awkward_inputs
from tests.processes import python

_SCRIPT = """
import torch
from torch import nn
from gnntrain.compute import products

products.multiplies_bf16 = lambda: False
torch.manual_seed(0)
layer, x, other = nn.Linear(64, 32), torch.randn(9, 64), torch.randn(3, 9, 9)
x.requires_grad_()

def run():
    out = layer(x)
    blocks = torch.einsum("hij,jf->hif", other, out)
    grads = torch.autograd.grad(blocks.float().square().sum(), [x, *layer.parameters()])
    return out.detach(), blocks.detach(), grads

exact = run()
for _ in range(2):
    products.prepare_autocast()
with torch.autocast("cpu", torch.bfloat16):
    out, blocks, grads = run()
assert out.dtype == torch.bfloat16 and blocks.dtype == torch.float32
torch.testing.assert_close(out.float(), exact[0], atol=2e-2, rtol=1e-2)
for got, expected in zip(grads, exact[2], strict=True):
    assert got.dtype == expected.dtype
    assert (got - expected).norm() < 2e-2 * expected.norm()
assert torch.equal(run()[0], exact[0])  # without autocast nothing changes
"""


def test_autocast_computes_in_float32_and_keeps_rows_in_bfloat16() -> None:
    done = python("-c", _SCRIPT)
    assert done.returncode == 0, done.stderr


def test_a_layer_in_one_pass_is_computed_in_float32_and_kept_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[torch.dtype] = []

    def product_type(dtype: torch.dtype) -> torch.dtype:
        asked.append(dtype)
        return torch.float32

    monkeypatch.setattr(linear, "product_type", product_type)
    for operator in (linear.AggregateLinear, linear.AggregateLinearBackward):
        *_, padded = awkward_inputs(torch.bfloat16)
        for call in operator.examples(padded).values():
            exact = call.map(lambda v: v.double() if _is_float(v) else v).reference()
            for got, best in zip(call.cpu(), exact, strict=True):
                assert got.dtype == torch.bfloat16
                torch.testing.assert_close(got.double(), best.double(), atol=0.1, rtol=2e-2)
    assert set(asked) == {torch.bfloat16}


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
