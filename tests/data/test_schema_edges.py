from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.read import edges as schema_edges
from gnntrain.data.read.edges import IdCollector
from tests.examples import examples

BATCHES = st.lists(
    st.one_of(
        st.lists(st.integers(-5, 5).map(str) | st.just(""), max_size=6),
        st.lists(st.sampled_from(["a", "7", "007", " 1", ""]), max_size=6),
        st.lists(st.integers(-5, 5) | st.none(), max_size=6),
    ),
    max_size=6,
)


def slow(batches: list[list[Any]]) -> list[Any]:
    """All different ids: numbers if all are, else as they are written, as 007 is."""
    known = [
        value.strip() if isinstance(value, str) else value
        for batch in batches
        for value in batch
        if value not in (None, "")
    ]
    if {"a", "007"}.isdisjoint(known):
        return sorted({int(value) for value in known})
    return sorted({str(value) for value in known}, key=str.encode)


@given(BATCHES, st.integers(1, 8))
@examples(200)
def test_ids_of_edges_are_collected_once_and_in_order(batches: list[list[Any]], few: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema_edges, "_FEW_IDS", few)
        collector = IdCollector()
        for batch in batches:
            is_written = any(isinstance(value, str) for value in batch)
            kind = pa.large_string() if is_written else pa.int64()
            collector.add("node", pa.array(batch, kind), is_written=is_written)
        assert collector.ids("node").to_pylist() == slow(batches)


def test_an_id_of_a_column_with_gaps_is_the_whole_number_of_another_column() -> None:
    collector = IdCollector()
    collector.add("node", pa.array(["7.0", "", "9.0", "NA"], pa.large_string()), is_written=True)
    collector.add("node", pa.array(["7", "8"], pa.large_string()), is_written=True)
    assert collector.ids("node").to_pylist() == [7, 8, 9]


def test_numbers_and_texts_of_several_files_become_texts() -> None:
    collector = IdCollector()
    collector.add("node", pa.array([3, 1]), is_written=False)
    collector.add("node", pa.array(["x", "1"], pa.large_string()), is_written=True)
    collector.add("node", pa.array([2.0, None]), is_written=False)
    assert collector.ids("node").to_pylist() == ["1", "2", "3", "x"]
    assert len(collector.ids("other")) == 0
