"""A shipped YAML file, copied to be edited."""

from __future__ import annotations

import shlex
from pathlib import Path

from gnntrain.commands.base import Arguments, Command, say
from gnntrain.errors import UserError
from gnntrain.groups import conf_dir, config_groups


def _cp(arguments: Arguments) -> int:
    from gnntrain.config.problems import meant_or

    named, target = arguments.positionals[0], Path(arguments.positionals[1]).expanduser()
    group, slash, option = named.partition("/")
    if not slash:
        group, option = "experiment", named
    groups = config_groups()
    if option not in groups.get(group, ()):
        known = groups.get(group, groups)
        what = f"{group} {option!r}" if group in groups else f"group {group!r}"
        meant = option if group in groups else group
        hint = meant_or(meant, known, f"There are {', '.join(known)}.")
        raise UserError(f"there is no {what}", hint)
    stem = target.name.removesuffix(".yaml")
    name = f"my_{stem}.yaml" if stem in groups[group] else f"{stem}.yaml"
    is_in_folder = target.absolute().parent.name == group
    fitting = target.with_name(name) if is_in_folder else target.parent / group / name
    if target != fitting:
        raise UserError(
            f"{target} would not be found: --config-dir looks for FOLDER/{group}/NAME.yaml, with "
            "a name that is not shipped already",
            f"Type `gnntrain cp {named} {shlex.quote(str(fitting))}`.",
        )
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
