"""docs/extending.md as a user follows it: the page's package is installed, its commands train."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FOR_USERS, FOR_US = PAGE.split("## In gnntrain itself")
KEEP_SMALL = ("trainer.gpus=0", "dataset.num_nodes=300", "run.dir=run")

NEW_MODEL = '''"""Gain network (Nobody, 2030): an MLP with a gain."""

from typing import Unpack

from gnntrain.config.types import NonNegative
from gnntrain.models.base import Scaffold
from gnntrain.models.mlp import MLP


class GainNet(MLP):
    """h_v ← gain · MLP(h_v).

    Args:
        gain: Factor of the input rows.
        **scaffold: See `GNN`.
    """

    uses_graph = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        gain: NonNegative = 1.5,
        **scaffold: Unpack[Scaffold],
    ) -> None:
        super().__init__(in_channels, out_channels, **scaffold)
        self.gain = gain

    def forward(self, x, blocks=()):
        return self.gain * super().forward(x, blocks)
'''

NEW_YAML = """# Gain network (Nobody, 2030): an MLP with a gain.
defaults: [_layered, _self_]

name: gainnet
# Factor of the input rows.
gain: 1.5
"""


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def gnntrain(
    words: list[str], folder: Path, path: Path, *, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command in `folder`, with `path` before all else that can be imported."""
    found = f"{path}{os.pathsep}{ROOT}"
    done = subprocess.run(
        [sys.executable, "-m", "gnntrain", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": found, "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def command_with(word: str) -> list[str]:
    """The page's command that has this word, with what keeps a run small."""
    lines = [line for block in blocks(FOR_USERS, "bash") for line in block.splitlines()]
    (line,) = [line for line in lines if word in line]
    words = shlex.split(line)[1:]
    chosen = any(one.startswith("dataset=") for one in words)
    return [*words, *(key for key in KEEP_SMALL if not (chosen and key.startswith("dataset.")))]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's package, installed in a folder."""
    folder = tmp_path_factory.mktemp("site")
    (text,) = blocks(FOR_USERS, "toml")
    project = tomllib.loads(text)["project"]
    name = project["name"].replace("-", "_")
    (folder / name).mkdir()
    for code in blocks(FOR_USERS, "python"):
        path = code.partition("\n")[0].removeprefix("# ")
        (folder / path).write_text(code, encoding="utf-8")
    info = folder / f"{name}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    groups: Mapping[str, Mapping[str, str]] = project["entry-points"]
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def trained(folder: Path) -> dict[str, object]:
    summary: dict[str, object] = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["status"] == "completed"
    return summary


def test_a_data_set_of_the_page_trains(package: Path, tmp_path: Path) -> None:
    gnntrain(command_with("dataset=ring"), tmp_path, package)
    assert trained(tmp_path)["metric"] == "accuracy"


def test_a_model_of_the_page_trains(package: Path, tmp_path: Path) -> None:
    gnntrain(command_with("model=plugin"), tmp_path, package)
    assert trained(tmp_path)["epochs"] == 5
    assert "my_sage" in gnntrain(["ls", "models"], tmp_path, package).stdout


def test_a_metric_of_the_page_judges_a_run(package: Path, tmp_path: Path) -> None:
    rows = range(60)
    edges = "\n".join(f"{i},{(i + 1) % 60}" for i in rows)
    (tmp_path / "edges.csv").write_text(f"source,target\n{edges}\n")
    nodes = "\n".join(f"{i},{i % 3},{i / 60},{i % 7}" for i in rows)
    (tmp_path / "nodes.csv").write_text(f"id,label,a,b\n{nodes}\n")
    gnntrain(command_with("error_rate"), tmp_path, package)
    assert trained(tmp_path)["metric"] == "error_rate"
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    errors = [json.loads(line)["val/error_rate"] for line in lines]
    assert trained(tmp_path)["best_epoch"] == 1 + errors.index(min(errors))


def test_a_sampler_of_the_page_trains(package: Path, tmp_path: Path) -> None:
    gnntrain(command_with("sampler.backend=first"), tmp_path, package)
    trained(tmp_path)
    assert "backend: first" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("key", "hint"), [("sampler.backend=frist", "first"), ("model.name=my_saeg", "my_sage")]
)
def test_a_misspelt_name_of_the_package_is_told(
    key: str, hint: str, package: Path, tmp_path: Path
) -> None:
    plugin = ["model=plugin"] if key.startswith("model") else []
    done = gnntrain([*plugin, key], tmp_path, package, code=2)
    assert f"did you mean {hint}?" in done.stderr


def test_a_model_of_gnntrain_is_one_file_and_one_yaml(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for folder in ("gnntrain", "conf"):
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    (source / "gnntrain" / "models" / "gainnet.py").write_text(NEW_MODEL, encoding="utf-8")
    (source / "conf" / "model" / "gainnet.yaml").write_text(NEW_YAML, encoding="utf-8")
    words = ["model=gainnet", "trainer.epochs=2", *KEEP_SMALL]
    gnntrain([*words, "model.gain=3", "model.hidden_channels=8"], tmp_path, source)
    assert trained(tmp_path)["epochs"] == 2
    assert "gain: 1.5" in gnntrain(["--cfg", "job", "model=gainnet"], tmp_path, source).stdout
    wrong = gnntrain([*words, "model.gain=-1"], tmp_path, source, code=2).stderr
    assert "a number >= 0" in wrong
    wrong = gnntrain([*words, "model.gian=1"], tmp_path, source, code=2).stderr
    assert "did you mean model.gain" in wrong
    listed = gnntrain(["ls", "models"], tmp_path, source).stdout
    assert "Gain network (Nobody, 2030)" in listed


def test_the_example_of_a_built_in_model_is_as_the_source_says() -> None:
    (yaml,) = blocks(FOR_US, "yaml")
    shipped = (ROOT / "conf" / "model" / "gin.yaml").read_text(encoding="utf-8").splitlines()
    assert set(yaml.splitlines()) <= set(shipped)
