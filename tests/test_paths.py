from __future__ import annotations

from pathlib import Path

import pytest

from gnntrain.commands.parsing import parse
from gnntrain.config import ConfigError, from_dict
from gnntrain.errors import UserError
from gnntrain.paths import expanded, file_names, is_file, is_folder
from gnntrain.reporting.rundir import RunDirectory

IMPOSSIBLE = ["x" * 5000, "~nobody-of-this-name/x", "a\x00b", "\udcff", ""]


@pytest.mark.parametrize("path", IMPOSSIBLE)
def test_an_impossible_path_is_no_file_and_no_folder(path: str) -> None:
    assert not is_file(expanded(path))
    assert not is_folder(path)
    assert file_names(Path(path) / "x") == []


@pytest.mark.parametrize("path", ["x" * 5000, "~nobody-of-this-name/x"])
def test_whoever_writes_one_is_told(path: str, tmp_path: Path) -> None:
    assert len(parse(["--config-dir", path]).config_dirs) == 1
    with pytest.raises(UserError, match="there is no run"):
        RunDirectory.open(path, tmp_path)
    with pytest.raises(ConfigError, match=r"dataset\.edges"):
        from_dict({"dataset": {"name": "files", "edges": path, "features": path}})
