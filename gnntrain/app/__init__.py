"""The Hydra application: the command line's overrides become a configuration, or one message.

The only room that knows Hydra and OmegaConf, beside the sweeper plug-in. Training runs by Hydra's
own main (`hydra_main`). Where that refuses, and for the verbs that do not train, `compose_config`
puts the same files together, sets value by value and tells every mistake at once.
"""

from gnntrain.app.composing import Composed, compose_config, recompose_config
from gnntrain.app.overrides import parse_overrides, sides_of

__all__ = ["Composed", "compose_config", "parse_overrides", "recompose_config", "sides_of"]
