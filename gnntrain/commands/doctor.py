"""What this machine offers."""

from __future__ import annotations

from gnntrain.commands.base import Arguments, Command, write_json


def _doctor(arguments: Arguments) -> int:
    from gnntrain.app import compose_config

    config = compose_config(arguments.overrides, arguments.config_dirs).config
    from dataclasses import asdict

    from gnntrain.doctor.examination import examine
    from gnntrain.reporting.text import counted
    from gnntrain.reporting.text_report import TextReport

    out = arguments.options.get("--json")
    report = None if out == "-" else TextReport()
    sections = []
    for section in examine(config):
        sections.append(section)
        if report is not None:
            report.section(section.title)
            report.checks(section.findings)
    found = [finding for section in sections for finding in section.findings]
    num_problems = sum(finding.judgement == "problem" for finding in found)
    num_notes = sum(finding.judgement == "note" for finding in found)
    if report is not None:
        report.line()
        told = f"{counted(num_problems, 'problem')}, {counted(num_notes, 'note')}"
        report.line(told if num_problems else f"ready: {told}", style="bold")
    if out is not None:
        write_json(out, [asdict(section) for section in sections])
    return 1 if num_problems else 0


COMMAND = Command(
    "[group.key=value] ...",
    "what this machine offers, what is missing, and what `auto` chooses on it",
    "Looks at packages, processor, memory, GPUs, disks, and starts two ranks that add up numbers. "
    "Each line is ok, a note, or a problem with what to do about it; with a problem the exit code "
    "is 1. Keys say what for: `gnntrain doctor trainer.gpus=4`.",
    ["gnntrain doctor", "gnntrain doctor --json -"],
    _doctor,
    options={"--json": "FILE      write it as JSON (-: instead of the text)"},
)
