"""A sampler is one class behind an entry point; the package's own are no exception."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from gnntrain import plugins
from gnntrain.config.names import SAMPLER_NAMES
from gnntrain.errors import UserError
from gnntrain.sampling.base import Sampler, sampler_class


class Offered(Sampler):
    """A package's sampler; docs/extending.md has one that draws."""


NOT_A_SAMPLER = object()


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if an installed package offered samplers."""
    offers = {
        "mine": "Offered",
        "numba": "Offered",
        "missing": "NoSuchThing",
        "odd": "NOT_A_SAMPLER",
    }
    points = [EntryPoint(name, f"{__name__}:{at}", plugins.SAMPLERS) for name, at in offers.items()]

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        return [p for p in points if p.group == group and name in (None, p.name)]

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    monkeypatch.setattr(plugins, "_plugin_names", plugins._plugin_names.__wrapped__)  # no cache


def test_every_name_stands_for_a_sampler_that_knows_where_it_runs() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    classes = {name: sampler_class(name) for name in SAMPLER_NAMES}
    assert {name for name, sampler in classes.items() if sampler.on_gpu} == {"triton"}
    assert {name for name, sampler in classes.items() if not sampler.thread_safe} == {"pyg"}


def test_samplers_of_other_packages_are_found_and_replace_none_of_ours() -> None:
    assert sampler_class("mine") is Offered
    assert sampler_class("numba") is not Offered


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("other", "no installed package offers 'other'"),
        ("missing", "NoSuchThing.* cannot be imported"),
        ("odd", "no subclass of Sampler"),
    ],
)
def test_what_is_no_sampler_is_refused(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        sampler_class(name)
