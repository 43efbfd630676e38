"""The models, computed on blocks. `model=gat` is the class `GAT` in `gat.py`."""

from gnntrain.models.conv import GNN, HeteroGNN
from gnntrain.models.gat import GAT
from gnntrain.models.gatv2 import GATv2
from gnntrain.models.gcn import GCN
from gnntrain.models.gin import GIN
from gnntrain.models.mlp import MLP
from gnntrain.models.registry import AnyModel, PlainModel, build_model
from gnntrain.models.sage import SAGE

__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "GNN",
    "MLP",
    "SAGE",
    "AnyModel",
    "GATv2",
    "HeteroGNN",
    "PlainModel",
    "build_model",
]
