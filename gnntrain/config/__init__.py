"""The configuration: one typed schema, and all mistakes reported at once."""

from gnntrain.config.checks import contradictions, machine_problems, needs_gpu_count
from gnntrain.config.loggers import (
    CSVConfig,
    JSONLConfig,
    LoggerConfig,
    MLflowConfig,
    TensorBoardConfig,
    WandBConfig,
)
from gnntrain.config.models import LayeredConfig, ModelConfig, PluginConfig, model_names
from gnntrain.config.names import DATASET_NAMES
from gnntrain.config.problems import ConfigError, Problem
from gnntrain.config.reading import Reading, from_dict, read, takes_integers
from gnntrain.config.resuming import changed_meaning
from gnntrain.config.schema import (
    BuiltinConfig,
    CheckpointConfig,
    Config,
    DatasetConfig,
    DistributedConfig,
    EvaluationConfig,
    FilesConfig,
    RunConfig,
    SamplerConfig,
    SyntheticConfig,
    TaskConfig,
    TrainerConfig,
)
from gnntrain.config.sweeps import OptunaSweepConfig, SweepConfig

__all__ = [
    "DATASET_NAMES",
    "BuiltinConfig",
    "CSVConfig",
    "CheckpointConfig",
    "Config",
    "ConfigError",
    "DatasetConfig",
    "DistributedConfig",
    "EvaluationConfig",
    "FilesConfig",
    "JSONLConfig",
    "LayeredConfig",
    "LoggerConfig",
    "MLflowConfig",
    "ModelConfig",
    "OptunaSweepConfig",
    "PluginConfig",
    "Problem",
    "Reading",
    "RunConfig",
    "SamplerConfig",
    "SweepConfig",
    "SyntheticConfig",
    "TaskConfig",
    "TensorBoardConfig",
    "TrainerConfig",
    "WandBConfig",
    "changed_meaning",
    "contradictions",
    "from_dict",
    "machine_problems",
    "model_names",
    "needs_gpu_count",
    "read",
    "takes_integers",
]
