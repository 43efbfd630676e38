"""The Hydra application: training by Hydra's own main, and configurations for the other commands.
Hydra is imported here, in `sweep/` and in the sweeper plug-in alone."""

from gnntrain.app.composing import Sources, compose_config, recompose_config

__all__ = ["Sources", "compose_config", "recompose_config"]
