"""Which folders are stores, when they were used, and what removing one may touch."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gnntrain.data import array_folder
from gnntrain.data.store import StoredGraph
from gnntrain.data.stores import StoreInUse, find_stores, locked, remove_store
from tests.graphs import random_graph, stored

LONG_AGO = 1_500_000_000.0


def build(path: Path) -> Path:
    """A store that nobody uses, last used long ago."""
    stored(path)
    gc.collect()
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def test_stores_are_found_with_size_name_and_time_the_last_used_first(tmp_path: Path) -> None:
    old, new = build(tmp_path / "old"), build(tmp_path / "new")
    os.utime(new, (LONG_AGO + 60, LONG_AGO + 60))
    first, second = find_stores(tmp_path)
    assert (first.path, second.path) == (new, old)
    assert (second.dataset, second.last_used) == ("random", LONG_AGO)
    assert second.num_bytes == sum(file.stat().st_size for file in old.iterdir())
    assert find_stores(tmp_path / "nowhere") == []


def test_opening_a_store_is_a_use_and_listing_it_is_none(tmp_path: Path) -> None:
    path = build(tmp_path / "store")
    find_stores(tmp_path)
    StoredGraph.open(path, check=False)
    assert find_stores(tmp_path)[0].last_used == LONG_AGO
    StoredGraph.open(path)
    assert find_stores(tmp_path)[0].last_used > time.time() - 60


def test_a_store_that_cannot_be_written_is_opened_all_the_same(tmp_path: Path) -> None:
    path = build(tmp_path / "store")
    path.chmod(0o500)
    try:
        assert StoredGraph.open(path).num_nodes == 60
    finally:
        path.chmod(0o700)


def test_what_is_no_store_is_not_found(tmp_path: Path) -> None:
    (build(tmp_path / "with_notes") / "notes.txt").write_text("mine")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "meta.json").write_text('{"format": "another"}')
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "meta.json").write_text("[")
    (tmp_path / "empty").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(build(tmp_path / "elsewhere" / "store"))
    (tmp_path / "meta.json").write_text('{"format": "gnntrain-store"}')
    assert find_stores(tmp_path) == []


def test_a_damaged_store_and_one_of_another_version_can_be_removed(tmp_path: Path) -> None:
    path = build(tmp_path / "store")
    (path / "indices.npy").unlink()
    (path / "meta.json").write_text('{"format": "gnntrain-store", "version": 99}')
    (found,) = find_stores(tmp_path)
    remove_store(found)
    assert not path.exists()


def test_a_removed_store_leaves_no_other_file(tmp_path: Path) -> None:
    other = build(tmp_path / "other")
    build(tmp_path / "store")
    before = sorted(other.iterdir())
    remove_store(next(store for store in find_stores(tmp_path) if store.name == "store"))
    assert {path.name for path in tmp_path.iterdir()} - {".store.lock", ".other.lock"} == {"other"}
    assert sorted(other.iterdir()) == before


def test_a_store_that_a_graph_is_open_on_is_kept_until_the_graph_goes(tmp_path: Path) -> None:
    path = build(tmp_path / "store")
    (found,) = find_stores(tmp_path)
    graph = StoredGraph.open(path, check=False)
    with pytest.raises(StoreInUse):
        remove_store(found)
    assert graph.num_edges == len(graph.indices)
    del graph
    gc.collect()
    remove_store(found)
    assert not path.exists()


def test_a_store_is_kept_while_it_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build(tmp_path / "store")
    (path / "indices.npy").touch()  # so that it is verified again
    (found,) = find_stores(tmp_path)

    real = array_folder.verify

    def verify_while_cleaning(*arguments: Any) -> None:
        with pytest.raises(StoreInUse):
            remove_store(found)
        real(*arguments)

    monkeypatch.setattr("gnntrain.data.array_folder.verify", verify_while_cleaning)
    assert StoredGraph.open(path).num_nodes == 60


def test_a_store_that_another_process_reads_is_kept(tmp_path: Path) -> None:
    path = build(tmp_path / "store")
    code = (
        "import sys; from pathlib import Path; from gnntrain.data.store import StoredGraph\n"
        "graph = StoredGraph.open(Path(sys.argv[1])); print('open', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
        (found,) = find_stores(tmp_path)
        with pytest.raises(StoreInUse):
            remove_store(found)
        reader.communicate("\n")
    remove_store(found)
    assert not path.exists()


def test_what_a_killed_build_left_is_found_and_what_is_being_built_is_kept(tmp_path: Path) -> None:
    left = tmp_path / ".name-1.building-123-00ff00ff"
    left.mkdir()
    (left / "indices.npy").write_bytes(bytes(100))
    (found,) = find_stores(tmp_path)
    assert (found.is_leftover, found.num_bytes, found.name) == (True, 100, "name-1")
    with locked(tmp_path / "name-1"), pytest.raises(StoreInUse):
        remove_store(found)
    assert left.exists()
    remove_store(found)
    assert not left.exists()


def test_a_pickled_graph_is_open_where_it_arrives(tmp_path: Path) -> None:
    import pickle

    graph = stored(tmp_path / "store", random_graph())
    copy = pickle.loads(pickle.dumps(graph))
    del graph
    gc.collect()
    with pytest.raises(StoreInUse):
        remove_store(find_stores(tmp_path)[0])
    assert copy.num_nodes == 60
