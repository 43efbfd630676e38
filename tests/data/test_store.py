"""Opening a store: what it holds, what it costs, and every way in which it may be damaged."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnntrain.data import array_folder, file_digests
from gnntrain.data.array_folder import ArrayWriter, StoreError, digest_of, write_header
from gnntrain.data.build import write_store
from gnntrain.data.graph import PrepareOptions
from gnntrain.data.store import StoredGraph
from gnntrain.errors import RunError
from tests.data.oracles import small_graph


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = small_graph(
        edge_weight=np.arange(40, dtype=np.float32), node_ids=np.arange(12) + 100, metric="f1_micro"
    )
    options = PrepareOptions(add_self_loops=True)
    identity: dict[str, Any] = {"dataset": "small", "files": [{"bytes": 7}], "scale": 0.1}
    return write_store(tmp_path_factory.mktemp("stores") / "small", data, options, identity).path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    """A copy of the store, opened long enough after it was written for its seal to hold."""
    copy = shutil.copytree(original, tmp_path / "small")
    time.sleep(0.05)
    StoredGraph.open(copy)
    return copy


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of files whenever checksums are computed."""
    calls: list[int] = []
    real = file_digests.checksums

    def counted(files: list[Path]) -> list[str]:
        calls.extend([len(files)] if files else [])
        return real(files)

    monkeypatch.setattr(file_digests, "checksums", counted)
    return calls


def reason(path: Path) -> str:
    """Why the store does not open."""
    with pytest.raises(StoreError) as caught:
        StoredGraph.open(path)
    assert isinstance(caught.value, RunError)
    assert str(path) in caught.value.message
    assert caught.value.hint is not None
    return caught.value.reason


def edit_meta(path: Path, change: Callable[[Any], None], *, sign: bool = False) -> None:
    """Change `meta.json`, with `sign` in such a way that its digest is right again."""
    content = json.loads((path / "meta.json").read_text())
    change(content)
    if sign:
        content.pop("digest")
        content["digest"] = digest_of(content)
    (path / "meta.json").write_text(json.dumps(content))


# What it holds


def test_rows_of_any_size_stand_in_a_file_one_after_the_other(tmp_path: Path) -> None:
    rows = np.arange(1_000_000, dtype=np.float32).reshape(-1, 5)
    with ArrayWriter(tmp_path / "rows.npy", rows.dtype, rows.shape[1:]) as writer:
        for part in np.split(rows, [1, 3, 3, 70_000, 199_990]):
            writer.append(part)
        meta = writer.close()
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), rows)
    assert meta.shape == rows.shape
    assert meta.bytes == (tmp_path / "rows.npy").stat().st_size


def test_arrays_are_plain_npy_files_mapped_read_only_and_a_pickled_store_is_its_path(
    path: Path,
) -> None:
    content = pickle.dumps(StoredGraph.open(path))
    assert len(content) < 1000
    store = pickle.loads(content)
    arrays = {
        "features_0": store.target_nodes.features,
        "indices": store.only_edges.indices,
        "split_val": store.split("val"),
    }
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, np.load(path / f"{name}.npy"))
        assert isinstance(array.base, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_a_store_of_more_than_two_billion_edges_opens(path: Path) -> None:
    num_edges = 2**31 + 5
    with (path / "indices.npy").open("wb") as file:
        write_header(file, np.dtype(np.int32), (num_edges,))
        file.truncate(128 + 4 * num_edges)  # a hole: no disk is used
        file.seek(-4, os.SEEK_END)
        file.write(np.int32(7).tobytes())

    def enlarge(meta: Any) -> None:
        del meta["arrays"]["edge_weight"]
        meta["edge_types"][0]["num_edges"] = num_edges
        meta["arrays"]["indices"].update(shape=[num_edges], bytes=128 + 4 * num_edges)

    edit_meta(path, enlarge, sign=True)
    store = StoredGraph.open(path, check=False)
    assert store.num_edges == num_edges
    assert store.only_edges.indices[2**31 + 4] == 7


# What opening costs


def test_a_store_is_verified_once_after_a_file_was_touched(path: Path, hashed: list[int]) -> None:
    StoredGraph.open(path)
    assert hashed == []
    os.utime(path / "features_0.npy")
    StoredGraph.open(path, check=False)  # as a worker does
    assert hashed == []
    time.sleep(0.05)
    StoredGraph.open(path)
    StoredGraph.open(path)
    assert hashed == [1]


def test_a_file_that_may_have_changed_within_a_tick_of_the_clock_is_verified_again(
    path: Path, hashed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_folder, "_CLOCK_STEP_NS", 3600 * 10**9)
    StoredGraph.open(path)
    StoredGraph.open(path)
    assert len(hashed) == 2


def test_a_piece_of_a_large_file_has_its_part_in_the_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_digests, "_HASH_CHUNK", 10)
    file = tmp_path / "file"
    found = set()
    for content in (bytes(25), bytes(24) + b"\1", b"\1" + bytes(24), bytes(26), b""):
        file.write_bytes(content)
        found.add(file_digests.checksums([file])[0])
    assert len(found) == 5


# Damage


@pytest.mark.parametrize("name", ["indices", "split_test"])
def test_a_changed_byte_is_found_though_the_files_time_was_put_back(path: Path, name: str) -> None:
    store = StoredGraph.open(path)
    store.verify()
    before = (path / f"{name}.npy").stat()
    content = np.load(path / f"{name}.npy", mmap_mode="r+")
    content.reshape(-1).view(np.uint8)[-1] ^= 1
    del content
    os.utime(path / f"{name}.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        assert reason(path).startswith(f"{name}.npy has checksum ")
    with pytest.raises(StoreError, match=f"{name}.npy has checksum"):
        store.verify()


def _link(file: Path) -> None:
    file.rename(file.parent.parent / "elsewhere")
    file.symlink_to(file.parent.parent / "elsewhere")


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)  # who opens it waits for ever


def _other_type(file: Path) -> None:
    np.save(file, np.load(file).view(np.float32))


@pytest.mark.parametrize(
    ("name", "damage", "expected"),
    [
        ("labels.npy", lambda file: os.truncate(file, 150), r" .*150 .*176"),
        ("labels.npy", Path.unlink, " is missing"),
        ("labels.npy", _other_type, " has checksum "),
        ("labels.npy", _pipe, " is no regular file"),
        ("meta.json", _link, ": it is no regular file"),
        *(
            ("meta.json", lambda file, text=text: file.write_text(text), "")
            for text in ("", "[" * 10**5, "[]", '{"format": "other"}')
        ),
    ],
)
def test_what_is_no_array_or_no_metadata_is_found(
    path: Path, name: str, damage: Callable[[Path], object], expected: str
) -> None:
    damage(path / name)
    assert re.match(re.escape(name) + expected, reason(path))


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", tmp_path):
        assert reason(folder) == "meta.json: it cannot be read (No such file or directory)"


def test_an_edited_meta_is_found_and_another_version_is_named(path: Path) -> None:
    edit_meta(path, lambda meta: meta.update(num_classes=4))
    assert reason(path).startswith("meta.json: it was changed")
    edit_meta(path, lambda meta: meta.update(version=1), sign=True)
    assert reason(path) == "meta.json: it has format version 1, this gnntrain reads 3"


@pytest.mark.parametrize("file", ["../small/labels.npy", "labels.npy\n"])
def test_a_meta_names_files_of_its_folder_alone(path: Path, file: str) -> None:
    edit_meta(path, lambda meta: meta["arrays"]["labels"].update(file=file), sign=True)
    assert "arrays.labels.file" in reason(path)
