"""A shipped YAML file, copied to be edited."""

from __future__ import annotations

import difflib
import shlex
from pathlib import Path

from gnntrain.commands.base import Arguments, Command, say
from gnntrain.errors import UserError
from gnntrain.groups import conf_dir, config_groups


def _cp(arguments: Arguments) -> int:
    named, target = arguments.positionals[0], Path(arguments.positionals[1]).expanduser()
    group, option = _shipped(named)
    _check_target(named, group, target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write((conf_dir() / group / f"{option}.yaml").read_text(encoding="utf-8"))
    except FileExistsError:
        hint = "Choose another name, or remove it first."
        raise UserError(f"{target} is there already; nothing was overwritten", hint) from None
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{target} cannot be written: {reason}", "Choose another place.") from error
    say(f"copied {group}={option} to {target}; edit it, then type")
    folder = shlex.quote(str(target.parent.parent))
    say(f"  gnntrain --config-dir {folder} {group}={target.stem}")
    return 0


def _shipped(named: str) -> tuple[str, str]:
    """Group and option of `EXPERIMENT` or `GROUP/OPTION`."""
    group, slash, option = named.partition("/")
    if not slash:
        group, option = "experiment", named
    options = config_groups().get(group)
    if options is None:
        raise UserError(
            f"there is no group {group!r}", f"There are {', '.join(sorted(config_groups()))}."
        )
    if option not in options:
        near = difflib.get_close_matches(option, options, n=1)
        guess = f"Did you mean {near[0]}? " if near else ""
        hint = f"{guess}There are {', '.join(name for name in options if name != 'none')}."
        raise UserError(f"there is no {group} {option!r}", hint)
    return group, option


def _check_target(named: str, group: str, target: Path) -> None:
    """Whether the file lies and is called so that `--config-dir` finds it as another option."""
    stem = target.stem if target.suffix in (".yaml", ".yml") else target.name
    is_plain = target.suffix == ".yaml" and target.absolute().parent.name == group
    is_new = stem not in config_groups()[group]
    if is_plain and is_new:
        return
    stem = stem if is_new else f"my_{stem}"
    folder = target.parent.parent if target.parent.name == group else target.parent
    fitting = folder / group / f"{stem}.yaml"
    reason = (
        f"{group}={stem.removeprefix('my_')} is shipped already, and yours needs a name of its own"
        if is_plain
        else f"--config-dir looks for FOLDER/{group}/NAME.yaml"
    )
    hint = f"Type `gnntrain cp {named} {shlex.quote(str(fitting))}`."
    raise UserError(f"{target} would not be found: {reason}", hint)


COMMAND = Command(
    "EXPERIMENT FILE",
    "copy a shipped recipe's YAML file, for you to edit",
    "FILE is FOLDER/experiment/NAME.yaml with a NAME of your own; the command that uses it is "
    "printed. GROUP/OPTION copies any other shipped file, to FOLDER/GROUP/NAME.yaml.",
    [
        "gnntrain cp cora_gcn my_conf/experiment/my_cora.yaml",
        "gnntrain cp model/sage my_conf/model/wide_sage.yaml",
    ],
    _cp,
    positionals=["experiment", "file"],
)
