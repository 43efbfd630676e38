"""The positive class of a binary task: the one that precision, recall and average precision are of.

A model's one logit is that of the class that sorts last, whichever is the positive one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnntrain.config.problems import meant_or
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.tasks.node_classification import Labels

# Of these the positive class is, for everybody, the one that sorts last.
_PLAIN_NAMES = (("0", "1"), ("false", "true"), ("no", "yes"))


def positive_class(labels: Labels, name: str | None) -> int | None:
    """The number of the positive class, 0 or 1; None: the task is not binary.

    Args:
        labels: The labels.
        name: The key `task.positive_class`; null: the class that sorts last.

    Raises:
        UserError: There is no class of this name, or there are not two classes.
    """
    if labels.task != "binary":
        if name is None:
            return None
        raise UserError(
            f"task.positive_class={name}: these labels are {labels.task}; only one of two classes "
            "is the positive one.",
            "Leave it out.",
        )
    if name is None:
        return 1
    names = [str(known) for known in labels.class_names or range(2)]
    if name in names:
        return names.index(name)
    folded = [known.casefold() for known in names]
    if folded.count(name.casefold()) == 1:  # Hydra and YAML read True and TRUE as truth values
        return folded.index(name.casefold())
    raise UserError(
        f"task.positive_class={name}: the two classes are {names[0]} and {names[1]}.",
        meant_or(name, names, f"Set it to {names[0]} or {names[1]}, in a YAML file in quotes."),
    )


def positive_name(labels: Labels, name: str | None) -> str | int | None:
    """As `positive_class`, but the name of the class."""
    number = positive_class(labels, name)
    return None if number is None else (labels.class_names or range(2))[number]


def positive_phrase(labels: Labels, name: str | None) -> str:
    """The positive class for the console; where it may be the wrong one, how to choose the other.
    Empty without one."""
    if labels.task != "binary":
        return ""
    other, last = (str(known) for known in labels.class_names or range(2))
    if name is None and (other.casefold(), last.casefold()) not in _PLAIN_NAMES:
        return f"{last}, which sorts last; task.positive_class={other} takes the other class"
    return str(positive_name(labels, name))
