"""The configuration: one typed schema, and all mistakes reported at once."""

from gnntrain.config.checks import (
    contradictions,
    idle_keys,
    machine_problems,
    needs_gpu_count,
    refuse_other_arguments,
    training_device,
)
from gnntrain.config.datasets import (
    BuiltinConfig,
    DatasetConfig,
    FilesConfig,
    SyntheticConfig,
    SyntheticMAGConfig,
)
from gnntrain.config.models import LayeredConfig, ModelConfig, PluginConfig, model_names
from gnntrain.config.problems import ConfigError, Problem
from gnntrain.config.published import DATASET_NAMES
from gnntrain.config.reading import from_dict, read, takes_integers
from gnntrain.config.resuming import changed_meaning
from gnntrain.config.schema import (
    CheckpointConfig,
    ComputeConfig,
    Config,
    DistributedConfig,
    EvaluationConfig,
    FeaturesConfig,
    FileLoggerConfig,
    LoggerConfig,
    MLflowConfig,
    OptunaSweepConfig,
    RunConfig,
    SamplerConfig,
    SweepConfig,
    TaskConfig,
    TrainerConfig,
    WandBConfig,
)

__all__ = [
    "DATASET_NAMES",
    "BuiltinConfig",
    "CheckpointConfig",
    "ComputeConfig",
    "Config",
    "ConfigError",
    "DatasetConfig",
    "DistributedConfig",
    "EvaluationConfig",
    "FeaturesConfig",
    "FileLoggerConfig",
    "FilesConfig",
    "LayeredConfig",
    "LoggerConfig",
    "MLflowConfig",
    "ModelConfig",
    "OptunaSweepConfig",
    "PluginConfig",
    "Problem",
    "RunConfig",
    "SamplerConfig",
    "SweepConfig",
    "SyntheticConfig",
    "SyntheticMAGConfig",
    "TaskConfig",
    "TrainerConfig",
    "WandBConfig",
    "changed_meaning",
    "contradictions",
    "from_dict",
    "idle_keys",
    "machine_problems",
    "model_names",
    "needs_gpu_count",
    "read",
    "refuse_other_arguments",
    "takes_integers",
    "training_device",
]
