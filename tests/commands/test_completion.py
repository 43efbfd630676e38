"""What the Tab key gives, in Python and in real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gnntrain.commands import COMMANDS
from gnntrain.commands.completion import candidates
from tests.processes import environment

Shell = Callable[..., subprocess.CompletedProcess[str]]


def test_the_first_word_is_a_verb_a_group_or_a_section() -> None:
    found = candidates("gnntrain ")
    assert {*COMMANDS, "model=", "dataset=", "trainer.", "model."} <= set(found)
    assert candidates("gnntrain tr") == ["train", "trainer."]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("gnntrain model=gat", ["model=gat", "model=gatv2"]),
        ("gnntrain trainer.precision=b", ["trainer.precision=bf16"]),
        ("gnntrain plan model.nor", ["model.norm=", "model.normalize="]),
        ("gnntrain logger=[jsonl,te", ["logger=[jsonl,tensorboard"]),
        ("gnntrain -m model=sage,gc", ["model=sage,gcn"]),
        ("gnntrain ls m", ["models"]),
        ("gnntrain ls models m", []),
        ("gnntrain doctor --js", ["--json"]),
        ("gnntrain --cfg ", ["job", "hydra", "all"]),
        ("gnntrain --config-dir ", []),
        ("gnntrain partition --method r", ["random"]),
        ("gnntrain dataset.root=/ho", []),
        ("gnntrain 'model=gcn' trainer.optimizer=s", ["trainer.optimizer=sgd"]),
        ("gnntrain nothing.like=", []),
    ],
)
def test_a_word_is_completed(line: str, found: list[str]) -> None:
    assert candidates(line) == found


def test_runs_are_completed_where_a_run_is_wanted(here: Path) -> None:
    assert "latest" not in candidates("gnntrain evaluate ")
    for name in ("first", "second"):
        (here / "runs" / name).mkdir(parents=True)
        (here / "runs" / name / "config.yaml").touch()
    assert candidates("gnntrain evaluate ") == ["latest", "first", "second"]
    assert candidates("gnntrain resume s") == ["second"]
    assert "trainer.epochs=" in candidates("gnntrain resume second trainer.ep")


def test_the_users_own_files_are_completed_too(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("# Wide.\n\nname: sage\n")
    assert candidates(f"gnntrain --config-dir {tmp_path} model=mi") == ["model=mine"]
    assert candidates(f"gnntrain --config-dir={tmp_path} model=mi") == ["model=mine"]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """What a shell did that has, on its path, a `gnntrain` that runs this checkout."""
    command = tmp_path / "bin" / "gnntrain"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m gnntrain "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**environment(), "PATH": path, "HOME": str(tmp_path)}
    return lambda *words: subprocess.run(words, capture_output=True, text=True, check=True, env=env)


@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("gnntrain model=ga", ["gat", "gatv2"]),
        ("gnntrain trainer.opt", ["trainer.optimizer="]),
        ("gnntrain doc", ["doctor"]),
        ("gnntrain trainer.optimizer=", ["adam", "adamw", "sgd"]),
        ("gnntrain dataset.root=", []),
    ],
)
def test_bash_completes(line: str, replies: list[str], shell: Shell) -> None:
    script = (
        'eval "$(gnntrain completion bash)"; complete -p gnntrain >&2\n'
        f"COMP_LINE='{line} trainer.lr=1'; COMP_POINT={len(line)}\n"
        # as bash cuts them, also at =
        f"COMP_WORDS=({line.replace('=', ' = ')}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))\n"
        "_gnntrain; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = shell("bash", "--norc", "-c", script)
    assert "-F _gnntrain gnntrain" in done.stderr
    assert done.stdout.split() == replies


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(shell: Shell) -> None:
    script = 'gnntrain completion fish | source; complete -C "gnntrain model=ga"'
    done = shell("fish", "--no-config", "-c", script)
    assert done.stdout.split() == ["model=gat", "model=gatv2"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes(shell: Shell) -> None:
    script = (
        'compdef() { }; eval "$(gnntrain completion zsh)"\n'
        "emulate sh; COMP_WORDS=(gnntrain model=ga)\n"  # as bashcompinit calls it
        "COMP_LINE='gnntrain model=ga'; COMP_POINT=17; _gnntrain; print -l \"${COMPREPLY[@]}\""
    )
    done = shell("zsh", "-f", "-c", script)
    assert done.stdout.split() == ["model=gat", "model=gatv2"]
