"""What a run will need, before it runs."""

from __future__ import annotations

from gnntrain.commands.base import Arguments, Command, option, write_json


def _plan(arguments: Arguments) -> int:
    from gnntrain.app import compose_config

    composed = compose_config(arguments.overrides, arguments.config_dirs, for_here=False)
    from gnntrain.planning.plan import plan
    from gnntrain.planning.screen import plan_sections
    from gnntrain.reporting.tables import print_sections

    config, out = composed.config, arguments.json
    planned = plan(config)
    if out != "-":
        print_sections(plan_sections(planned))
    if out is not None:
        write_json(out, planned.to_dict())
    return 0 if planned.fits else 1


COMMAND = Command(
    "[group=option] [group.key=value] ...",
    "what a run will need, before it runs: memory, batches, time, disk",
    "Takes the keys that training takes, and does a dry run: a few training steps and one "
    "evaluation, in processes of their own. No file is left but a small graph store where "
    "there was none. If the run does not fit, a hint says what to change, and the exit code is 1. "
    "Times are those of a machine as busy as it is now.",
    [
        "gnntrain plan dataset=synthetic_reddit 'sampler.fan_outs=[25,10]'",
        "gnntrain plan distributed.num_processes=2 trainer.gpus=0 --json plan.json",
    ],
    _plan,
    options=[option("--json", "FILE", "write it as JSON too (-: instead of the text)")],
)
