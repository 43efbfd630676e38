"""Opening a graph in parts: what is mapped, what it costs, and every way it may be damaged."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnntrain.data import store_meta
from gnntrain.data.graph import NODE
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.partitioning.writing import write_parts
from gnntrain.data.parts import PartitionError, Parts
from gnntrain.data.store_meta import digest_of
from tests.data.oracles import small_graph
from tests.data.partitioning.oracles import stored


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parts, of 5, 4 and 3 nodes."""
    folder = tmp_path_factory.mktemp("partition")
    store = stored(folder / "store", small_graph(edge_weight=np.arange(40, dtype=np.float32)))
    part_of = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 0], np.uint8)
    return write_parts(folder / "parts", store, part_of, 3, "random").path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    """A copy of the parts, opened long enough after they were written for their seals to hold."""
    copy = shutil.copytree(original, tmp_path / "parts")
    time.sleep(0.05)
    Parts.open(copy)
    return copy


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by the name of each folder whose checksums are computed."""
    folders: list[str] = []
    real = store_meta.checksums

    def noted(files: list[Path]) -> list[str]:
        folders.append(files[0].parent.name)
        return real(files)

    monkeypatch.setattr(store_meta, "checksums", noted)
    return folders


def reason(path: Path, parts: range | None = None) -> str:
    with pytest.raises(PartitionError) as caught:
        Parts.open(path, parts)
    assert caught.value.exit_code == 2
    assert str(path) in caught.value.message
    return caught.value.reason


def edit(path: Path, change: Callable[[Any], object], *, sign: bool = True) -> None:
    file = path / "partition.json"
    content = json.loads(file.read_text())
    change(content)
    if sign:
        del content["digest"]
        content["digest"] = digest_of(content)
    file.write_text(json.dumps(content))


def flip_last_byte(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_END)
        opened.write(bytes([byte ^ 1]))


def test_a_machine_opens_its_own_parts_and_needs_no_others(path: Path) -> None:
    shutil.rmtree(path / "part0")
    parts = Parts.open(path, range(1, 3))
    assert [part.number for part in parts.opened] == [1, 2]
    assert [part.ranges[NODE] for part in parts.opened] == [range(5, 9), range(9, 12)]
    assert parts.ranges == {NODE: range(5, 12)}
    assert (parts.num_parts, parts.meta.num_nodes, parts.meta.num_edges) == (3, 12, 40)
    assert parts.starts[NODE].tolist() == [0, 5, 9, 12]
    assert sorted(np.concatenate([*parts.splits.values()])) == [*range(12)]
    assert reason(path) == "part0: indptr.npy is missing"


def test_nodes_are_called_by_their_numbers_in_the_graph_that_was_partitioned(path: Path) -> None:
    nodes = np.array([11, 5, 0])
    assert PartitionedGraph.of(Parts.open(path)).in_words(nodes) == "nodes 0, 1, 8"
    assert PartitionedGraph.of(Parts.open(path, range(1, 2))).in_words(nodes) == "nodes 1"
    assert PartitionedGraph.of(Parts.open(path, range(0))).in_words(nodes) == (
        "nodes of other machines"
    )


def test_without_parts_all_is_known_of_the_whole_graph(path: Path) -> None:
    for number in range(3):
        shutil.rmtree(path / f"part{number}")
    parts = Parts.open(path, range(0))
    assert (parts.opened, parts.ranges) == ((), {NODE: range(0)})
    graph = PartitionedGraph.of(parts)
    assert (graph.num_nodes, graph.num_features, graph.feature_dtype) == (12, 5, "float32")
    assert graph.edge_weight is not None


def test_arrays_are_mapped_read_only(path: Path) -> None:
    part = Parts.open(path, range(1)).opened[0]
    for array in (part.graph.features, part.graph.indices, part.originals[NODE]):
        assert isinstance(array.base, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_pickled_parts_are_a_path(path: Path) -> None:
    parts = Parts.open(path, range(1, 3))
    content = pickle.dumps(parts)
    assert len(content) < 1000
    again = pickle.loads(content)
    assert again.ranges == parts.ranges
    np.testing.assert_array_equal(again.opened[0].graph.indices, parts.opened[0].graph.indices)
    assert pickle.loads(pickle.dumps(Parts.open(path, range(0)))).opened == ()


def test_untouched_parts_open_without_reading_their_arrays(path: Path, hashed: list[str]) -> None:
    Parts.open(path)
    assert hashed == []


def test_only_touched_parts_that_are_opened_are_verified_and_once(
    path: Path, hashed: list[str]
) -> None:
    os.utime(path / "part1" / "features_0.npy")
    time.sleep(0.05)
    Parts.open(path, range(1))
    assert hashed == []
    Parts.open(path)
    Parts.open(path)
    assert hashed == ["part1"]


def test_a_copy_on_another_machine_is_verified(path: Path, hashed: list[str]) -> None:
    copy = shutil.copytree(path, path.parent / "copy")
    Parts.open(copy, range(2, 3), check=False)
    assert hashed == []
    Parts.open(copy, range(2, 3))
    assert hashed == ["copy", "part2"]


@pytest.mark.parametrize("file", ["part0/indices.npy", "part2/original_0.npy", "split_train.npy"])
def test_a_flipped_byte_is_found(path: Path, file: str) -> None:
    flip_last_byte(path / file)
    assert f"{Path(file).name} has checksum " in reason(path)


def test_a_part_of_another_partition_is_found(path: Path, tmp_path: Path) -> None:
    other = stored(tmp_path / "store", small_graph(seed=1, edge_weight=np.ones(40, np.float32)))
    part_of = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 0], np.uint8)
    write_parts(tmp_path / "other", other, part_of, 3, "random")
    shutil.rmtree(path / "part1")
    shutil.copytree(tmp_path / "other" / "part1", path / "part1")
    assert reason(path).startswith("part1: ")


def test_what_is_not_there_is_said(path: Path, tmp_path: Path) -> None:
    assert reason(tmp_path / "nowhere") == "it does not exist"
    assert reason(path / "part0") == "it has no partition.json"
    (path / "part1" / "labels.npy").unlink()
    assert reason(path) == "part1: labels.npy is missing"
    assert reason(path, range(2, 4)) == "it has 3 parts, not part 3"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "gnntrain-store"}'])
def test_a_description_of_something_else_is_found(path: Path, text: str) -> None:
    (path / "partition.json").write_text(text)
    assert reason(path).startswith("partition.json")


def test_another_format_version_is_named(path: Path) -> None:
    edit(path, lambda meta: meta.update(version=1))
    assert reason(path) == "it has format version 1, this gnntrain reads 3"


def test_an_edited_description_is_found(path: Path) -> None:
    edit(path, lambda meta: meta.update(num_classes=4), sign=False)
    assert reason(path).startswith("partition.json was changed")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda m: m["parts"][1]["arrays"].pop("labels"), "part 1 does not list labels"),
        (lambda m: m["parts"][1].update(node_counts=[10**6]), "part 1 gives indptr as int64 [5]"),
        (lambda m: m["parts"][1].update(edge_counts=[3]), "part 1 gives indices as int32"),
        (lambda m: m["parts"][2]["arrays"].pop("edge_weight"), "part 2 has other arrays"),
        (
            lambda m: m["parts"][0]["arrays"]["labels"].update(file="../labels.npy"),
            "parts.0.arrays.labels.file: ",
        ),
        (lambda m: m["arrays"].pop("split_val"), "does not list split_val"),
        (lambda m: m.update(parts=[]), "parts: "),
        (lambda m: m.update(method="magic"), "method: "),
    ],
)
def test_a_description_that_contradicts_itself_is_refused(
    path: Path, change: Callable[[Any], None], found: str
) -> None:
    edit(path, change)
    assert found in reason(path)
