"""The file of a whole configuration, as a run directory has it, to begin another run with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from gnntrain.config.problems import ConfigError, Problem
from gnntrain.config.reading import from_dict
from gnntrain.config.types import JSON
from gnntrain.config.yaml_files import read_yaml

# Where that run went is no part of what it was, nor which sweep it was in.
_OWN_SECTIONS = ("run", "sweep")


def is_config_file(text: str) -> bool:
    """Whether an argument of the command line is such a file."""
    return "=" not in text and Path(text).suffix in (".yaml", ".yml")


def whole_configuration(
    files: Sequence[str], chosen: Collection[str], problems: list[Problem]
) -> JSON:
    """The sections of the one file that is given.

    Args:
        files: As typed.
        chosen: The groups that were chosen beside it: their sections are not taken over.
        problems: What is wrong is added.
    """
    sections: JSON = {}
    for file in files[:1]:
        try:
            raw = read_yaml(Path(file).expanduser().read_text(encoding="utf-8"))
            if not isinstance(raw, dict):
                raise ValueError("there are no keys in it")
            saved = from_dict(raw, saved=True).to_dict()
        except ConfigError as error:
            problems.extend(error.problems)
        except (OSError, ValueError) as error:
            reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
            problems.append(Problem("", file, f"a configuration that can be read: {reason}"))
        else:
            left_out = {*chosen, *_OWN_SECTIONS}
            sections = {name: saved[name] for name in saved if name not in left_out}
    if files and "experiment" in chosen:
        expects = "no experiment beside a whole configuration"
        problems.append(Problem("", files[0], expects, "leave one of them out"))
    if len(files) > 1:
        problems.append(Problem("", files[1], "one file of a whole configuration"))
    return sections
