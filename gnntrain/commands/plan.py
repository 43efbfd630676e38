"""What a run will need, before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnntrain.commands.base import Arguments, Command, write_json

if TYPE_CHECKING:
    from gnntrain.planning.plan import Plan


def _plan(arguments: Arguments) -> int:
    from gnntrain.app import compose_config

    config = compose_config(arguments.overrides, arguments.config_dirs).config
    from gnntrain.planning.plan import make_plan

    plan = make_plan(config)
    out = arguments.options.get("--json")
    if out != "-":
        _show(plan)
    if out is not None:
        write_json(out, plan.to_dict())
    return 0 if plan.fits else 1


def _show(plan: Plan) -> None:
    from gnntrain.planning.words import sections
    from gnntrain.reporting.text import format_seconds
    from gnntrain.reporting.text_report import TextReport

    report = TextReport()
    for title, rows in sections(plan):
        report.section(title)
        report.pairs(rows)
    report.section("does it fit?")
    report.checks(plan.checks)
    report.line()
    report.line(f"planned in {format_seconds(plan.seconds)}; nothing was written", style="dim")


COMMAND = Command(
    "[group=option] [group.key=value] ...",
    "what a run will need, before it runs: memory, batches, time, disk",
    "Takes the keys that training takes, does a few of its steps and a part of its evaluation, "
    "and scales up. No run directory is made; a small graph store is built where there is none. "
    "What will not fit is told with the key to change, and the exit code is 1. Times are those of "
    "a machine as busy as it is now.",
    [
        "gnntrain plan dataset=synthetic_reddit 'sampler.fan_outs=[25,10]'",
        "gnntrain plan distributed.num_processes=2 trainer.gpus=0 --json plan.json",
    ],
    _plan,
    options={"--json": "FILE      write it as JSON too (-: instead of the text)"},
)
