"""The configuration: one typed schema, and all mistakes reported at once."""

from gnntrain.config.checks import from_dict as from_dict
from gnntrain.config.checks import training_device as training_device
from gnntrain.config.models import ModelConfig as ModelConfig
from gnntrain.config.models import PluginConfig as PluginConfig
from gnntrain.config.models import model_names as model_names
from gnntrain.config.problems import ConfigError as ConfigError
from gnntrain.config.problems import Problem as Problem
from gnntrain.config.published import DATASET_NAMES as DATASET_NAMES
from gnntrain.config.schema import *  # noqa: F403  # every section
