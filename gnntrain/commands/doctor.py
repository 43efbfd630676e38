"""Whether training works on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from gnntrain.commands.base import Arguments, Command, write_json


def _doctor(arguments: Arguments) -> int:
    from gnntrain.app import compose_config

    config = compose_config(arguments.overrides, arguments.config_dirs).config
    from dataclasses import asdict

    from gnntrain.doctor.checks import check_machine
    from gnntrain.reporting.tables import Check, Section, checks, print_sections
    from gnntrain.reporting.text import counted

    out = arguments.options.get("--json")
    examined: list[tuple[str, list[Check]]] = []

    def sections() -> Iterator[Section]:
        for title, found in check_machine(config):
            examined.append((title, found))
            yield Section(title, [checks(found)])
        judgements = [check.judgement for _, found in examined for check in found]
        told = [counted(judgements.count(kind), kind) for kind in ("problem", "note")]
        ready = "" if "problem" in judgements else "ready: "
        yield Section(f"{ready}{', '.join(told)}", [])

    if out == "-":
        list(sections())
    else:
        print_sections(sections())
    if out is not None:
        plain = [{"title": title, "findings": [*map(asdict, found)]} for title, found in examined]
        write_json(out, plain)
    return int(any(check.judgement == "problem" for _, found in examined for check in found))


COMMAND = Command(
    "[group.key=value] ...",
    "check packages, hardware and disks, and say what `auto` chooses here",
    "Looks at packages, processor, memory, GPUs, disks, and starts two ranks that add up numbers. "
    "Each line is ok, a note, or a problem with what to do about it; with a problem the exit code "
    "is 1. Keys say what for: `gnntrain doctor trainer.gpus=4`.",
    ["gnntrain doctor", "gnntrain doctor --json -"],
    _doctor,
    options={"--json": "FILE      write it as JSON (-: instead of the text)"},
)
