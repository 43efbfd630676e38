"""What `gnntrain --help` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from gnntrain.commands.base import Command
from gnntrain.groups import config_groups

_SWEEP_OPTION = "  -m, --multirun    sweep: key=a,b  key=range(1,4)  group=glob(*)  sweep=optuna\n"
_CONFIG_OPTIONS = """\
  --cfg job         print the whole configuration and stop
  --config-dir DIR  choose from your own YAML files too, laid out as conf/: DIR/model/mine.yaml
"""
_HYDRA_OPTIONS = """\
  Hydra's own       --config-name --config-path --info --cfg hydra|all --package --resolve
                    --run --hydra-help; hydra/launcher=joblib hydra.run.dir=DIR hydra.verbose=true
"""
_GENERAL_OPTIONS = """\
  --version         print the version
  -h, --help        print this; after a command, more about it
"""


def general_help(commands: Mapping[str, Command]) -> str:
    """What `gnntrain --help` prints."""
    width = max(map(len, commands))
    lines = "\n".join(f"  {name:{width}}  {command.summary}" for name, command in commands.items())
    examples = "\n".join(f"  {line}" for command in commands.values() for line in command.examples)
    groups = "\n".join(_group_lines())
    return (
        "usage: gnntrain [command] [options] [group=option] [group.key=value] ...\n\n"
        "Train graph neural networks on graphs of any size, on any number of GPUs.\n\n"
        f"commands:\n{lines}\n\n"
        f"options:\n{_SWEEP_OPTION}{_CONFIG_OPTIONS}{_HYDRA_OPTIONS}{_GENERAL_OPTIONS}\nexamples:\n{examples}\n\n"
        f"groups and their options:\n{groups}\n\n"
        "`gnntrain --cfg job` prints every key with its value; conf/ explains each."
    )


def _group_lines() -> list[str]:
    width = 14
    return [
        textwrap.fill(
            ", ".join(options),
            width=98,
            initial_indent=f"  {group:{width - 2}}",
            subsequent_indent=" " * width,
            break_on_hyphens=False,
        )
        for group, options in config_groups().items()
    ]


def command_help(name: str, command: Command) -> str:
    """What `gnntrain NAME --help` prints."""
    examples = "\n".join(f"  {line}" for line in command.examples)
    details = textwrap.fill(command.details, width=98)
    own = "".join(f"  {f'{option} {value}'}\n" for option, value in command.options.items())
    own += "".join(f"  {option}  {what}\n" for option, what in command.switches.items())
    shared = _CONFIG_OPTIONS
    if name == "train":
        shared = _SWEEP_OPTION + _CONFIG_OPTIONS + _HYDRA_OPTIONS
    options = own + ("" if command.positionals else shared)
    return (
        f"usage: gnntrain {name} {command.usage}\n\n{command.summary}\n\n{details}\n\n"
        f"examples:\n{examples}" + (f"\n\noptions:\n{options}".rstrip() if options else "")
    )
