"""The commands of the command line.

What each needs is imported when it runs: help must answer at once, and workers import this too.
"""

from gnntrain.commands import training, results, graphs, completion  # noqa: F401, I001
from gnntrain.commands.parsing import COMMANDS, say

__all__ = ["COMMANDS", "say"]
