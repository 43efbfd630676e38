"""Whether training works on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gnntrain.commands.base import Arguments, Command, option, switch, write_json

if TYPE_CHECKING:
    from gnntrain.config import Config
    from gnntrain.reporting.tables import Section

Examined = list[tuple[str, list[Any]]]
"""By title: results, each a dataclass with a judgement."""


def _doctor(arguments: Arguments) -> int:
    from gnntrain.app import compose_config

    config = compose_config(arguments.overrides, arguments.config_dirs).config
    from dataclasses import asdict

    from gnntrain.reporting.tables import print_sections

    out = arguments.json
    examined: Examined = []
    look = _kernels if arguments.gpu else _machine
    sections = look(config, examined)
    if out == "-":
        list(sections)
    else:
        print_sections(sections)
    if out is not None:
        plain = [{"title": title, "findings": [*map(asdict, found)]} for title, found in examined]
        write_json(out, plain)
    return int(_number_of("problem", examined) > 0)


def _machine(config: Config, examined: Examined) -> Iterator[Section]:
    from gnntrain.doctor.checks import check_machine
    from gnntrain.reporting.tables import Section, checks
    from gnntrain.reporting.text import counted

    for title, found in check_machine(config):
        examined.append((title, found))
        yield Section(title, [checks(found)])
    told = [counted(_number_of(kind, examined), kind) for kind in ("problem", "note")]
    ready = "" if _number_of("problem", examined) else "ready: "
    yield Section(f"{ready}{', '.join(told)}", [])


def _kernels(config: Config, examined: Examined) -> Iterator[Section]:
    from gnntrain.doctor.gpu import HEADER, check_kernels
    from gnntrain.reporting.tables import Section, rows
    from gnntrain.reporting.text import counted

    for title, found in check_kernels(config):
        examined.append((title, found))
        reasons = [f"{row.kernel}: {row.why_not}" for row in found if row.why_not]
        table = rows(HEADER, [row.cells() for row in found], left=2)
        yield Section(title, [table, *reasons])
    yield Section(f"{counted(_number_of('problem', examined), 'kernel')} wrong", [])


def _number_of(judgement: str, examined: Examined) -> int:
    return sum(check.judgement == judgement for _, found in examined for check in found)


COMMAND = Command(
    "[group.key=value] ...",
    "check packages, hardware and disks, and say what `auto` chooses here",
    "Looks at packages, processor, memory, GPUs, disks, and starts two ranks that add up numbers. "
    "Each line is ok, a note, or a problem with what to do about it; with a problem the exit code "
    "is 1. Keys say what for: `gnntrain doctor trainer.gpus=4`. With --gpu it tries every kernel "
    "for GPUs instead, beside the operators of torch that take its place where it fails.",
    ["gnntrain doctor", "gnntrain doctor --json -", "gnntrain doctor --gpu"],
    _doctor,
    options=[
        option("--json", "FILE", "write it as JSON (-: instead of the text)"),
        switch("--gpu", "try the kernels for GPUs"),
    ],
)
