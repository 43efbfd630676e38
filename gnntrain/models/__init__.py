"""The models, computed on blocks."""

from gnntrain.models.base import GNN
from gnntrain.models.gat import GAT
from gnntrain.models.gatv2 import GATv2
from gnntrain.models.gcn import GCN
from gnntrain.models.gin import GIN
from gnntrain.models.mlp import MLP
from gnntrain.models.plugin import PlainModel, installed_plugins
from gnntrain.models.registry import MODELS, build_model
from gnntrain.models.sage import SAGE

__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "GNN",
    "MLP",
    "MODELS",
    "SAGE",
    "GATv2",
    "PlainModel",
    "build_model",
    "installed_plugins",
]
