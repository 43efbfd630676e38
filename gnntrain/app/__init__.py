"""The Hydra application: the command line's overrides become a configuration, or one message.

Hydra is imported here, in `sweep/` and in the sweeper plug-in alone. Training runs by Hydra's own
main (`hydra_main`). Where that refuses, and for the other commands, `compose_config`
puts the same files together, sets value by value and tells every mistake at once.
"""

from gnntrain.app.composing import Composed, Composer, compose_config, recompose_config
from gnntrain.app.sources import Sources

__all__ = ["Composed", "Composer", "Sources", "compose_config", "recompose_config"]
