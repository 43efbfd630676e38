"""Before a run: whether training works on this machine, and what it will need."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gnntrain.atomic_io import atomic_write
from gnntrain.commands.parsing import command, composed, option, say
from gnntrain.errors import UserError
from gnntrain.paths import expanded

if TYPE_CHECKING:
    from gnntrain.reporting.tables import Section


def _write_json(out: str, content: object) -> None:
    """Plain data to the file `out`, or to the standard output where it is `-`."""
    text = json.dumps(content, indent=2)
    if out == "-":
        say(text)
        return
    try:
        with atomic_write(expanded(out)) as file:
            file.write(f"{text}\n".encode())
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{out} cannot be written: {reason}", "Choose another file.") from error


@command(
    "[group.key=value] ...",
    option("--json", "FILE", "write it as JSON (-: instead of the text)"),
    option("--gpu", "", "try the kernels for GPUs"),
)
def doctor(arguments: Namespace) -> int:
    """check packages, hardware and disks, and say what `auto` chooses here

    Each line is ok, a note, or a problem with what to do about it; with a problem the exit code is
    1. Keys say what for: `gnntrain doctor trainer.gpus=4`. With --gpu it tries every kernel for
    GPUs instead.

    examples:
      gnntrain doctor
      gnntrain doctor --json -
      gnntrain doctor --gpu
    """
    config = composed(arguments).config
    from gnntrain.reporting.tables import Section, checks, print_sections, rows
    from gnntrain.reporting.text import counted

    found: list[tuple[str, list[Any]]] = []  # results by title, each with a judgement

    def number_of(judgement: str) -> int:
        return sum(one.judgement == judgement for _, results in found for one in results)

    def sections() -> Iterator[Section]:
        if arguments.gpu:
            from gnntrain.doctor.gpu import HEADER, check_kernels

            for title, kernels in check_kernels(config):
                found.append((title, kernels))
                reasons = [f"{row.kernel}: {row.why_not}" for row in kernels if row.why_not]
                table = rows(HEADER, [row.cells() for row in kernels], left=2)
                yield Section(title, [table, *reasons])
            yield Section(f"{counted(number_of('problem'), 'kernel')} wrong", [])
            return
        from gnntrain.doctor.checks import check_machine

        for title, results in check_machine(config):
            found.append((title, results))
            yield Section(title, [checks(results)])
        told = ", ".join(counted(number_of(kind), kind) for kind in ("problem", "note"))
        yield Section(told if number_of("problem") else f"ready: {told}", [])

    if arguments.json == "-":
        list(sections())
    else:
        print_sections(sections())
    if arguments.json is not None:
        plain = [{"title": title, "findings": [*map(asdict, one)]} for title, one in found]
        _write_json(arguments.json, plain)
    return int(number_of("problem") > 0)


@command(
    "[group=option] [group.key=value] ...",
    option("--json", "FILE", "write it as JSON too (-: instead of the text)"),
)
def plan(arguments: Namespace) -> int:
    """what a run will need, before it runs: memory, batches, time, disk

    Takes the keys that training takes, and does a dry run: a few training steps and one evaluation,
    in processes of their own. If the run does not fit, a hint says what to change, and the exit
    code is 1.

    examples:
      gnntrain plan dataset=synthetic_reddit 'sampler.fan_outs=[25,10]'
      gnntrain plan distributed.num_processes=2 trainer.gpus=0 --json plan.json
    """
    config = composed(arguments, for_here=False).config
    from gnntrain.planning.plan import plan
    from gnntrain.reporting.tables import print_sections

    planned = plan(config)
    if arguments.json != "-":
        print_sections(planned.sections())
    if arguments.json is not None:
        _write_json(arguments.json, planned.to_dict())
    return 0 if planned.fits else 1
