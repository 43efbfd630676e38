from __future__ import annotations

from pathlib import Path

import numba
import pytest

from gnntrain.jit import jit
from tests.disks import full_disk


def twice(number: int) -> int:
    return 2 * number


def test_a_kernel_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert jit(twice)(21) == 42
    assert list(tmp_path.rglob("*.nbc"))


def test_a_kernel_works_where_its_cache_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    compiled = jit(twice)
    with full_disk():
        assert compiled(21) == 42
    assert not list(tmp_path.rglob("*.nbc"))
    assert jit(twice)(21) == 42
    assert list(tmp_path.rglob("*.nbc"))


def test_a_kernel_works_where_it_cannot_be_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert jit(twice)(21) == 42
