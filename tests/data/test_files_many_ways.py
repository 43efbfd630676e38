"""One small graph, written in many ways: each is read as this graph, or refused with a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from tests.data.ways import Text, Way, read, ways
from tests.examples import share

TSV = Text(suffix=".tsv", delimiter="\t")
GERMAN = Text(delimiter=";", decimal=",", encoding="utf-8-sig", line_end="\r\n")
NO_HEADER = Text(header=False)
UTF_16 = Text(encoding="utf-16")
MAC = Text(line_end="\r")
LIST = Text(suffix=".txt", delimiter=" ", header=False)

PLAIN_WAYS = {
    "a table of nodes and one of edges": Way(),
    "no ids": Way(ids=None),
    "ids as text": Way(ids="text"),
    "ids that pandas made fractions": Way(ids="float"),
    "ids of labels that pandas made fractions": Way(
        nodes=".npz", labels=Text(), ids="float", id_name="user"
    ),
    "labels and splits of their own": Way(labels=Text(), split="file table"),
    "labels as whole numbers": Way(label="ints", missing="-1"),
    "labels that a word says are missing": Way(label="sparse", missing="NA"),
    "labels as truth values": Way(label="bools"),
    "masks": Way(split="masks"),
    "masks of 0 and 1": Way(split="masks 0/1"),
    "no split": Way(split="none"),
    "pandas' index": Way(nodes=Text(index=""), row_seed=1),
    "pandas' index, read and written again": Way(nodes=Text(index="Unnamed: 0"), row_seed=1),
    "any order of rows and columns": Way(labels=Text(), row_seed=1, column_seed=1),
    "no header": Way(nodes=NO_HEADER, edges=NO_HEADER, keys=True),
    "edges with weights and numbers": Way(weight=True, edge_id=True),
    "targets first": Way(swapped=True),
    "columns of other names": Way(id_name="user", ends=("user_a", "user_b"), keys=True),
    "tabs": Way(nodes=TSV, edges=TSV),
    "spaces": Way(edges=LIST, ids="sparse", keys=True),
    "Excel's own in Europe": Way(nodes=GERMAN, edges=GERMAN),
    "UTF-16": Way(nodes=UTF_16, edges=UTF_16),
    "Latin-1": Way(nodes=Text(encoding="latin-1")),
    "old Macs' lines": Way(nodes=MAC, edges=MAC),
    "packed": Way(nodes=Text(packed=".gz"), edges=Text(packed=".bz2"), labels=Text(packed=".zst")),
    "Parquet": Way(nodes=".parquet", edges=".parquet"),
    "Feather": Way(nodes=".feather", edges=".feather", labels=".feather"),
    "npy": Way(nodes=".npy", edges=".npy", labels=".npy", split="none", ids=None, label="ints"),
    "npz": Way(nodes=".npz", edges=".npz", labels=".npz", split="file masks", label="ints"),
    "pt": Way(nodes=".pt", edges=".pt", labels=".pt", split="masks", label="ints"),
}


@pytest.mark.parametrize("way", PLAIN_WAYS.values(), ids=PLAIN_WAYS.keys())
def test_a_plain_way_is_read(way: Way) -> None:
    assert read(way) is None


def test_a_second_column_that_counts_the_nodes_is_asked_about() -> None:
    way = Way(nodes=Text(index=""), ids="plain", id_name="user", row_seed=1)
    assert "dataset.id_column=user" in (read(way) or "")
    assert read(replace(way, keys=True)) is None


@pytest.mark.hypothesis
def test_every_way_is_read_as_the_same_graph_or_refused_with_a_hint() -> None:
    refusals: list[str] = []
    num_read = 0

    @settings(
        max_examples=share(500),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(ways())
    def try_one(way: Way) -> None:
        nonlocal num_read
        refused = read(way)
        if refused is None:
            num_read += 1
        else:
            refusals.append(refused)

    try_one()
    assert num_read + len(refusals) >= 0.75 * share(500)
    assert num_read > len(refusals), refusals
