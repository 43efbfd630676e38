"""The wheel carries its configuration."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_holds_every_yaml_of_conf_and_what_pages_are_made_of(tmp_path: Path) -> None:
    # what an installed wheel then does in an empty environment, .ci/run tries
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("gnntrain-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packed = {name for name in names if name.endswith(".yaml")}
    files = {f"gnntrain/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert packed == files
    assert "gnntrain/conf/config.yaml" in packed
    assert "gnntrain/py.typed" in names
    assert "hydra_plugins/gnntrain_sweeper.py" in names
    assert "hydra_plugins/__init__.py" not in names  # other packages have plug-ins there, too
    templates = [*(ROOT / "gnntrain").rglob("templates/*")]
    assert len(templates) > 5
    assert {str(path.relative_to(ROOT)) for path in templates} <= {*names}
