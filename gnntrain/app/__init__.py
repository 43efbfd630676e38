"""The Hydra application: the command line's overrides become a configuration, or one message.

Hydra is imported here, in `sweep/` and in the sweeper plug-in alone. Training runs by Hydra's own
main (`hydra_main`). Where that refuses, and for the other commands, `compose_config` puts the same
files together and tells every mistake at once.
"""

from gnntrain.app.composing import Composed, Sources, compose_config, recompose_config

__all__ = ["Composed", "Sources", "compose_config", "recompose_config"]
