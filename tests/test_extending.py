"""docs/extending.md as a user follows it: the page's package is installed, its commands train."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gnntrain import metrics
from gnntrain.app import compose_config
from gnntrain.cli import main
from tests.packages import install
from tests.processes import ROOT, python
from tests.summaries import epochs_of, summary_of

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FOR_USERS, FOR_US = PAGE.split("## In gnntrain itself")
KEEP_SMALL = ("trainer.gpus=0", "dataset.num_nodes=300", "run.dir=run")

NEW_MODEL = '''"""Gain network (Nobody, 2030): an MLP with a gain."""

from gnntrain.config.types import NonNegative
from gnntrain.models.mlp import MLP, BlockLinear


class GainLinear(BlockLinear):
    def __init__(self, types, gain):
        super().__init__(types)
        self.gain = gain

    def finish(self, node_type, total, h_dst):
        return self.gain * super().finish(node_type, total, h_dst)


class GainNet(MLP):
    """h_v ← gain · (W h_v + b).

    Args:
        gain: Factor of each layer's rows.
    """

    conv_class = GainLinear
    uses_graph = False

    gain: NonNegative = 1.5
'''

NEW_YAML = """# Gain network (Nobody, 2030): an MLP with a gain.
defaults: [_gainnet]
"""


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def run_apart(words: list[str], folder: Path, source: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in `folder`, in a process that imports gnntrain from `source`."""
    env = {"PYTHONPATH": str(source), "XDG_CACHE_HOME": str(folder / "cache")}
    return python("-m", "gnntrain", *words, folder=folder, env=env)


def command_with(word: str) -> list[str]:
    """The page's command that has this word, with what keeps a run small."""
    lines = [line for block in blocks(FOR_USERS, "bash") for line in block.splitlines()]
    (line,) = [line for line in lines if word in line]
    words = shlex.split(line)[1:]
    chosen = any(one.startswith("dataset=") for one in words)
    return [*words, *(key for key in KEEP_SMALL if not (chosen and key.startswith("dataset.")))]


@pytest.fixture
def _package(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's package, installed; in an empty folder."""
    (text,) = blocks(FOR_USERS, "toml")
    project = tomllib.loads(text)["project"]
    name = project["name"].replace("-", "_")
    groups: Mapping[str, Mapping[str, str]] = project["entry-points"]
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in points.items()))
    ]
    install(here / "site", monkeypatch, "page_about_extending", "", "\n".join(lines) + "\n")
    (here / "site" / name).mkdir()
    for code in blocks(FOR_USERS, "python"):
        path = code.partition("\n")[0].removeprefix("# ")
        (here / "site" / path).write_text(code, encoding="utf-8")
    yield
    metrics._REGISTERED.pop("error_rate", None)
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def trained(folder: Path) -> dict[str, object]:
    summary = summary_of(folder / "run")
    assert summary["status"] == "completed"
    return summary


@pytest.mark.usefixtures("_package")
@pytest.mark.parametrize(
    "word", ["dataset=ring", "model=my_sage", "model=my_typed_sage", "sampler.backend=first"]
)
def test_what_the_page_adds_trains(
    tmp_path: Path, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command_with(word)) == 0
    assert trained(tmp_path)["metric"] == "accuracy"
    if word == "model=my_sage":
        assert main(["ls", "models"]) == 0
        assert "my_sage" in capsys.readouterr().out
    if word == "sampler.backend=first":
        assert "backend: first" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.usefixtures("_package")
def test_a_typed_option_replaces_a_packages_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("dataset: ring\nmodel: my_sage\n", encoding="utf-8")
    composed = compose_config([str(tmp_path / "mine.yaml"), "model=gcn"])
    assert (composed.dataset.name, composed.model.name) == ("ring", "gcn")
    composed = compose_config([str(tmp_path / "mine.yaml"), "dataset=cora"])
    assert (composed.dataset.name, composed.model.name) == ("cora", "my_sage")
    assert compose_config(["model=my_sage", "model=gcn"]).model.name == "gcn"


@pytest.mark.usefixtures("_package")
def test_a_metric_of_the_page_judges_a_run(tmp_path: Path) -> None:
    rows = range(60)
    edges = "\n".join(f"{i},{(i + 1) % 60}" for i in rows)
    (tmp_path / "edges.csv").write_text(f"source,target\n{edges}\n")
    nodes = "\n".join(f"{i},{i % 3},{i / 60},{i % 7}" for i in rows)
    (tmp_path / "nodes.csv").write_text(f"id,label,a,b\n{nodes}\n")
    assert main(command_with("error_rate")) == 0
    assert trained(tmp_path)["metric"] == "error_rate"
    errors = [row["val/error_rate"] for row in epochs_of(tmp_path / "run")]
    assert trained(tmp_path)["best_epoch"] == 1 + errors.index(min(errors))


ON_TYPED = ["dataset=synthetic_mag", "dataset.scale=0.0005", "model=plugin"]
TYPED, PLAIN = ([*ON_TYPED, f"model.name={name}"] for name in ("my_typed_sage", "my_sage"))


@pytest.mark.usefixtures("_package")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sampler.backend=frist"], "did you mean first?"),
        (["model=plugin", "model.name=my_saeg"], "did you mean my_sage?"),
        ([*TYPED, "features.cache_ratio=0.5"], "of typed graphs"),
        ([*TYPED, "sampler.fan_outs={default:[2,2],a/citez/b:[2,2]}"], "a/citez/b"),
        ([*TYPED, "model.options={widht: 3}"], "widht"),
        ([*PLAIN, "sampler.fan_outs={default:[2,2]}"], "graphs of one type"),
        (PLAIN, "one type of nodes and edges"),
    ],
)
def test_a_mistake_about_what_a_package_adds_leaves_no_run(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "trainer.gpus=0", "run.dir=run"]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_model_of_gnntrain_is_one_file_and_one_yaml(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for folder in ("gnntrain", "conf"):
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    (source / "gnntrain" / "models" / "gainnet.py").write_text(NEW_MODEL, encoding="utf-8")
    (source / "conf" / "model" / "gainnet.yaml").write_text(NEW_YAML, encoding="utf-8")
    words = ["model=gainnet", "trainer.epochs=2", *KEEP_SMALL]
    run_apart([*words, "model.gain=3", "model.hidden_channels=8"], tmp_path, source)
    assert trained(tmp_path)["epochs"] == 2
    assert "gain: 1.5" in run_apart(["--cfg", "job", "model=gainnet"], tmp_path, source).stdout
    wrong = run_apart([*words, "model.gain=-1"], tmp_path, source)
    assert wrong.returncode == 2
    assert "model.gain" in wrong.stderr
    wrong = run_apart([*words, "model.gian=1"], tmp_path, source)
    assert wrong.returncode == 2
    assert "did you mean model.gain" in wrong.stderr
    listed = run_apart(["ls", "models"], tmp_path, source).stdout
    assert "Gain network (Nobody, 2030)" in listed


def test_the_example_of_a_built_in_model_is_as_the_source_says() -> None:
    (yaml,) = blocks(FOR_US, "yaml")
    shipped = (ROOT / "conf" / "model" / "gin.yaml").read_text(encoding="utf-8").splitlines()
    assert set(yaml.splitlines()) <= set(shipped)
