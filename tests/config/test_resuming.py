"""Which keys a run may change when it goes on."""

from __future__ import annotations

from itertools import product

from gnntrain.config import Config, SamplerConfig, changed_meaning

BACKENDS = ("auto", "numba", "triton", "pyg")


def test_samplers_that_draw_the_same_take_each_others_place() -> None:
    for names in product(BACKENDS, BACKENDS):
        configs = (Config(sampler=SamplerConfig(backend=name)) for name in names)
        changed = [problem.key for problem in changed_meaning(*configs)]
        is_other = names[0] != names[1] and "pyg" in names
        assert changed == ["sampler.backend"] * is_other, names
