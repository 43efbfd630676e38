"""The models, computed on blocks. `model=gat` is the class `GAT` in `gat.py`."""

from gnntrain.models.conv import GNN as GNN
from gnntrain.models.conv import HeteroGNN as HeteroGNN
from gnntrain.models.gat import GAT as GAT
from gnntrain.models.gatv2 import GATv2 as GATv2
from gnntrain.models.gcn import GCN as GCN
from gnntrain.models.gin import GIN as GIN
from gnntrain.models.mlp import MLP as MLP
from gnntrain.models.registry import AnyModel as AnyModel
from gnntrain.models.registry import PlainModel as PlainModel
from gnntrain.models.registry import build_model as build_model
from gnntrain.models.sage import SAGE as SAGE
