"""`gnntrain cp` copies a file that can be used at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnntrain.app import compose_config
from gnntrain.cli import main
from gnntrain.config import SyntheticConfig


def test_a_recipe_is_copied_and_the_printed_command_uses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "conf" / "experiment" / "mine.yaml"
    assert main(["cp", "cora_gcn", str(target)]) == 0
    command = capsys.readouterr().out.splitlines()[1].split()
    assert command == ["gnntrain", "--config-dir", f"{tmp_path}/conf", "experiment=mine"]
    target.write_text(target.read_text().replace("hidden_channels: 64", "hidden_channels: 32"))
    config = compose_config(command[3:], [Path(command[2])]).config
    assert config.dataset.name == "cora"
    assert config.to_dict()["model"]["hidden_channels"] == 32


def test_another_groups_option_can_be_copied_too(tmp_path: Path) -> None:
    assert main(["cp", "dataset/synthetic", f"{tmp_path}/dataset/tiny.yaml"]) == 0
    config = compose_config(["dataset=tiny"], [tmp_path]).config
    assert isinstance(config.dataset, SyntheticConfig)


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("cora_gnc", "experiment/x.yaml", "Did you mean cora_gcn?"),
        ("modle/sage", "model/x.yaml", "there is no group"),
        ("cora_gcn", "x.yaml", "gnntrain cp cora_gcn my_conf/experiment/NAME.yaml"),
        ("cora_gcn", "experiment/cora_gcn.yaml", "a NAME of your own"),
        ("cora_gcn", "experiment/x", "would not be found"),
        ("cora_gcn", "experiment/there.yaml", "nothing was overwritten"),
    ],
)
def test_a_copy_that_could_not_be_used_is_refused_with_the_command_that_works(
    source: str,
    target: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "there.yaml").touch()
    assert main(["cp", source, target]) == 2
    assert words in capsys.readouterr().err
    assert [file.name for file in (tmp_path / "experiment").iterdir()] == ["there.yaml"]
