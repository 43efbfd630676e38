"""The verbs of the command line, a module each.

What a verb needs is imported when it runs: help must answer at once, and workers import this too.
"""

from __future__ import annotations

from gnntrain.verbs import (
    completion,
    cp,
    doctor,
    evaluate,
    export,
    ls,
    plan,
    predict,
    prepare,
    report,
    resume,
    train,
)
from gnntrain.verbs.base import Arguments, Verb, say
from gnntrain.verbs.help import general_help, verb_help

__all__ = ["VERBS", "Arguments", "Verb", "general_help", "say", "verb_help"]

VERBS: dict[str, Verb] = {
    "train": train.VERB,
    "resume": resume.VERB,
    "evaluate": evaluate.VERB,
    "predict": predict.VERB,
    "export": export.VERB,
    "plan": plan.VERB,
    "report": report.VERB,
    "prepare": prepare.VERB,
    "ls": ls.VERB,
    "cp": cp.VERB,
    "doctor": doctor.VERB,
    "completion": completion.VERB,
}
