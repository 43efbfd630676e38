from __future__ import annotations

import pytest

from gnntrain.data.neo4j_header import neo4j_header


def test_names_roles_and_spaces() -> None:
    line = "personId:ID(Person-ID){id-type: long},name,age:int,emb:float[],born:date,tags:string[]"
    header = neo4j_header([*line.split(","), ":LABEL", "note:IGNORE"])
    assert header is not None
    assert header.names == ("personId", "name", "age", "emb", "born", "tags", ":LABEL", "note")
    assert header.roles == {"ID": 0, "LABEL": 6}
    assert header.spaces["ID"] == "Person-ID"
    assert header.lists == {3}
    assert header.texts == {
        1: "string",
        4: "date",
        5: "string[]",
        7: "IGNORE",
    }


def test_relationships() -> None:
    header = neo4j_header([":START_ID(Person)", "since:int", ":END_ID", ":TYPE"])
    assert header is not None
    assert header.roles == {"START_ID": 0, "END_ID": 2, "TYPE": 3}
    assert (header.spaces["START_ID"], header.spaces["END_ID"]) == ("Person", "")
    assert header.names == (":START_ID", "since", ":END_ID", ":TYPE")


@pytest.mark.parametrize(
    "names", [["id", "label"], ["source", "target"], ["a:b", "c:int"], ["12:30", "x"], ["", ":"]]
)
def test_other_headers_are_none_of_neo4j(names: list[str]) -> None:
    assert neo4j_header(names) is None
