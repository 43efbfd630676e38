"""A sampler is one class behind an entry point, the package's own are no exception; and its
fan-outs by edge type."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from gnntrain import plugins
from gnntrain.config.names import SAMPLER_NAMES
from gnntrain.config.types import AnyFanOuts
from gnntrain.data.graph import GraphSchema
from gnntrain.errors import UserError
from gnntrain.sampling.base import Sampler, resolved_fan_outs, sampler_class


class Offered(Sampler):
    """A package's sampler; docs/extending.md has one that draws."""


NOT_A_SAMPLER = object()


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if an installed package offered samplers."""
    offers = {"mine": "Offered", "numba": "Offered", "missing": "NoThing", "odd": "NOT_A_SAMPLER"}
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
        ("missing", "NoThing.* cannot be imported"),
        ("odd", "no subclass of Sampler"),
    ],
)
def test_what_is_no_sampler_is_refused(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        sampler_class(name)


# Fan-outs


WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
EDITS, REVIEWS = ("author", "reviews", "paper"), ("author", "reviews", "book")
SCHEMA = GraphSchema(
    num_nodes={"author": 3, "paper": 4, "book": 2},
    num_features={"author": 0, "paper": 0, "book": 0},
    edge_types=(WRITES, CITES, EDITS, REVIEWS),
    target="paper",
)


def test_one_list_is_for_each_edge_type_or_for_those_without_their_own() -> None:
    assert resolved_fan_outs([3, 2], SCHEMA, 2) == dict.fromkeys(SCHEMA.edge_types, (3, 2))
    given = {"default": [3, 2], "writes": [5, 4], "author/reviews/book": [-1, 1]}
    assert resolved_fan_outs(given, SCHEMA, 2) == {
        WRITES: (5, 4),
        CITES: (3, 2),
        EDITS: (3, 2),
        REVIEWS: (-1, 1),
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"default": [1], "wrotes": [2]}, "writes"),
        ({"default": [1], "author/writes/papers": [2]}, "author/writes/paper"),
        ({"default": [1], "reviews": [2]}, "author/reviews/paper, author/reviews/book"),
        ({"default": [1], "writes": [2], "author/writes/paper": [3]}, "author/writes/paper"),
        ({"author/reviews/paper": [1], "writes": [2], "cites": [3]}, "author/reviews/book"),
        ({"default": [1], "cites": [3, 3]}, "cites"),
        ({"defualt": [1]}, "default"),
    ],
)
def test_a_mistake_is_told_with_the_edge_types_that_are_meant(given: AnyFanOuts, told: str) -> None:
    with pytest.raises(UserError) as caught:
        resolved_fan_outs(given, SCHEMA, 1, "evaluation.fan_outs")
    assert told in str(caught.value)
    assert caught.value.message.startswith("evaluation.fan_outs")
