"""Which keys a run may change when it goes on."""

from __future__ import annotations

import pytest

from gnntrain.config import Config, SamplerConfig, changed_meaning


@pytest.mark.parametrize("begun", ["auto", "numba", "triton"])
@pytest.mark.parametrize("asked", ["auto", "numba", "triton"])
def test_samplers_that_draw_the_same_take_each_others_place(begun: str, asked: str) -> None:
    assert not changed_meaning(*map(_with_backend, (begun, asked)))


@pytest.mark.parametrize("other", ["auto", "numba", "triton"])
def test_pygs_sampler_draws_others(other: str) -> None:
    for pair in (("pyg", other), (other, "pyg")):
        (problem,) = changed_meaning(*map(_with_backend, pair))
        assert problem.key == "sampler.backend"


def _with_backend(name: str) -> Config:
    return Config(sampler=SamplerConfig.model_validate({"backend": name}))
