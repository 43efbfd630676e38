"""The commands of the command line, a module each.

What each needs is imported when it runs: help must answer at once, and workers import this too.
"""

from __future__ import annotations

from gnntrain.commands import (
    clean,
    completion,
    cp,
    doctor,
    evaluate,
    export,
    ls,
    partition,
    plan,
    predict,
    prepare,
    report,
    resume,
    train,
)
from gnntrain.commands.base import Arguments, Command, say

__all__ = ["COMMANDS", "Arguments", "Command", "say"]

COMMANDS: dict[str, Command] = {
    "train": train.COMMAND,
    "resume": resume.COMMAND,
    "evaluate": evaluate.COMMAND,
    "predict": predict.COMMAND,
    "export": export.COMMAND,
    "plan": plan.COMMAND,
    "report": report.COMMAND,
    "prepare": prepare.COMMAND,
    "partition": partition.COMMAND,
    "ls": ls.COMMAND,
    "clean": clean.COMMAND,
    "cp": cp.COMMAND,
    "doctor": doctor.COMMAND,
    "completion": completion.COMMAND,
}
