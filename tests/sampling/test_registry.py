"""A sampler is one class behind a name; its fan-outs are by edge type."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from gnntrain import plugins
from gnntrain.config.types import AnyFanOuts
from gnntrain.data.graph import GraphSchema
from gnntrain.errors import UserError
from gnntrain.sampling.base import resolved_fan_outs, sampler_class
from gnntrain.sampling.cpu import CPUSampler


def test_a_packages_object_replaces_no_sampler_of_ours_and_must_be_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered = EntryPoint("numba", f"{__name__}:SCHEMA", plugins.SAMPLERS)
    monkeypatch.setattr(plugins, "entry_points", lambda **_: [offered])
    assert sampler_class("numba") is CPUSampler
    with pytest.raises(UserError, match="no subclass of Sampler"):
        sampler_class("odd")


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
