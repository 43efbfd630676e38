from __future__ import annotations

from pathlib import Path

import pytest

from gnntrain.config import Config, FilesConfig, SyntheticConfig, from_dict
from gnntrain.data.read.files import FilesBuilder
from gnntrain.errors import UserError
from gnntrain.planning.size import expected_bytes

SCHEMA = """
nodes: {a: {files: "a*.csv", label: y}, b: {files: sub/b.csv, label: {file: y.npy}}}
edges: {a/to/b: {files: [e.csv, "more/*/e?.csv"]}}
"""
FILES = ("a10.csv", "a2.csv", "a.csv", "sub/b.csv", "y.npy", "e.csv", "more/x/e1.csv", "[1].csv")


def folder_of(path: Path) -> Path:
    for name in FILES:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name)
    (path / "graph.yaml").write_text(SCHEMA)
    return path


def builder(folder: Path, *, labelled: bool = True) -> FilesBuilder:
    return FilesBuilder(FilesConfig(schema=str(folder / "graph.yaml")), labelled=labelled)


def test_patterns_stand_for_files_in_natural_order(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    names = [str(path.relative_to(folder)) for path in builder(folder).paths]
    assert names == [
        *("a2.csv", "a10.csv", "a.csv", "sub/b.csv"),
        *("y.npy", "e.csv", "more/x/e1.csv"),
    ]
    unlabelled = [path.name for path in builder(folder, labelled=False).paths]
    assert "y.npy" not in unlabelled
    (folder / "y.npy").unlink()
    with pytest.raises(UserError, match=r"nodes\.b\.label"):
        builder(folder)
    builder(folder, labelled=False)


def test_signs_of_patterns_may_be_part_of_a_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "graph.yaml").write_text(SCHEMA.replace("sub/b.csv", '"[1].csv"'))
    assert folder / "[1].csv" in builder(folder).paths


def test_a_schema_may_lie_in_a_folder_with_signs_of_patterns(tmp_path: Path) -> None:
    (tmp_path / "g[1]*").mkdir()
    names = [path.name for path in builder(folder_of(tmp_path / "g[1]*")).paths]
    assert names[:2] == ["a2.csv", "a10.csv"]


def test_folders_in_place_of_files_are_told(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "graph.yaml").write_text(SCHEMA.replace("sub/b.csv", "sub").replace("e.csv", "no/e"))
    with pytest.raises(UserError) as caught:
        builder(folder)
    assert "nodes.b.files=sub" in caught.value.message
    assert "no folder" in caught.value.message


def test_a_plan_counts_the_bytes_of_all_files(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    used = [name for name in FILES if name != "[1].csv"]
    dataset = FilesConfig(schema=str(folder / "graph.yaml"))
    assert expected_bytes(dataset) == sum(map(len, used))


def test_the_target_of_the_task_is_that_of_the_data_set() -> None:
    dataset = {"name": "files", "schema": "g.yaml"}
    config = from_dict({"dataset": dataset, "task": {"target": "author"}}, saved=True)
    assert config.dataset.target == "author"
    assert config.changed(task={"target": None}).dataset.target is None
    assert Config().dataset == SyntheticConfig()
    assert SyntheticConfig().for_target("author") != SyntheticConfig()
