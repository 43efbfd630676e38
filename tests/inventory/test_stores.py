"""Lists of stores."""

from __future__ import annotations

from pathlib import Path

from gnntrain.app import compose_config
from gnntrain.data.stores import find_stores
from gnntrain.inventory import dataset_rows, store_rows
from gnntrain.run import prepare


def test_prepared_stores_are_listed_and_other_folders_are_not(tmp_path: Path) -> None:
    config = compose_config(["dataset.num_nodes=300", f"dataset.store_dir={tmp_path}"])
    prepare(config)
    (tmp_path / "photos").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "meta.json").write_text("{")
    (tmp_path / "a_file").touch()
    stores = find_stores(tmp_path)
    assert {row[0]: row[-1] for row in dataset_rows(stores)}["synthetic"] == "1 store"
    (row,) = store_rows(stores)
    assert row[0].startswith("synthetic-")
    assert row[1:3] == ["synthetic", "300"]
    assert row[5] == "float32"


def test_a_typed_store_is_listed_with_all_its_nodes_and_edges(tmp_path: Path) -> None:
    keys = ["dataset=synthetic_mag", "dataset.scale=0.001", f"dataset.store_dir={tmp_path}"]
    result = prepare(compose_config(keys))
    assert result["num_nodes"] == {
        "paper": 736,
        "author": 1135,
        "institution": 9,
        "field_of_study": 60,
    }
    assert result["num_features"]["author"] == 0
    assert result["num_edges"]["paper/rev_writes/author"] == 7146
    (row,) = store_rows(find_stores(tmp_path))
    assert row[1:6] == ["synthetic_mag", "1,940", "42,222", "128", "float32"]
