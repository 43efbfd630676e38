"""Which node goes to which part: every part has nodes, and about as much work as the others."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.partitioning.assign import MAX_PARTS, assign
from gnntrain.errors import UserError
from tests.data.oracles import graphs, small_graph
from tests.data.partitioning.oracles import stored
from tests.examples import examples


@examples(40)
@given(st.data())
def test_every_part_has_a_node(data: st.DataObject) -> None:
    drawn = data.draw(graphs())
    num_parts = data.draw(st.integers(1, drawn.num_nodes))
    with tempfile.TemporaryDirectory() as folder:
        store = stored(Path(folder) / "store", drawn)
        part_of = assign(store, num_parts, "random")
    assert set(part_of.tolist()) == set(range(num_parts))


def test_random_parts_differ_by_one_node_and_one_training_node(tmp_path: Path) -> None:
    store = stored(tmp_path, small_graph(1003, 3000))
    part_of = assign(store, 7, "random")
    for sizes in (np.bincount(part_of), np.bincount(part_of[store.split("train")])):
        assert sizes.max() - sizes.min() <= 1
    # About a seventh of each node's neighbours has its part, as under independent draws.
    same = np.mean(part_of[:-1] == part_of[1:])
    assert 0.05 < same < 0.2


@pytest.mark.parametrize("num_parts", [0, -1, 13])
def test_a_number_of_parts_that_cannot_be(tmp_path: Path, num_parts: int) -> None:
    with pytest.raises(UserError, match="from 1 to 12"):
        assign(stored(tmp_path, small_graph()), num_parts, "random")


def test_no_more_parts_than_a_byte_counts(tmp_path: Path) -> None:
    store = stored(tmp_path, small_graph(1000))
    assert len(set(assign(store, MAX_PARTS, "random").tolist())) == MAX_PARTS
    with pytest.raises(UserError):
        assign(store, MAX_PARTS + 1, "random")
