"""Fan-outs by edge type."""

from __future__ import annotations

import pytest

from gnntrain.config.types import AnyFanOuts
from gnntrain.data.graph import GraphSchema
from gnntrain.errors import UserError
from gnntrain.sampling.base import resolved_fan_outs

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
EDITS, REVIEWS = ("author", "reviews", "paper"), ("author", "reviews", "book")
SCHEMA = GraphSchema(
    num_nodes={"author": 3, "paper": 4, "book": 2},
    num_features={"author": 0, "paper": 0, "book": 0},
    edge_types=(WRITES, CITES, EDITS, REVIEWS),
    target="paper",
)


def test_one_list_is_for_each_edge_type() -> None:
    assert resolved_fan_outs([3, 2], SCHEMA, 2) == dict.fromkeys(SCHEMA.edge_types, (3, 2))


def test_some_edge_types_have_their_own_and_default_is_for_the_others() -> None:
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
