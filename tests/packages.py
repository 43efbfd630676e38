"""Packages of others, installed for the length of a test."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, code: str, entry_points: str
) -> None:
    """Put a package of one module on the path of this process and of those it starts.

    Args:
        folder: An empty folder.
        monkeypatch: Takes it off the path again.
        module: Name of the module, which no other test uses: it stays imported.
        code: Its source.
        entry_points: Its `entry_points.txt`.
    """
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / f"{module}.py").write_text(textwrap.dedent(code))
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(textwrap.dedent(entry_points))
    monkeypatch.syspath_prepend(folder)
