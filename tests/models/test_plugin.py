"""A user's own plain PyG model is used as a whole, and exported with the name of its package."""

from __future__ import annotations

import re
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest
import torch

from gnntrain import plugins
from gnntrain.compute.features import as_tensor
from gnntrain.config import from_dict
from gnntrain.errors import UserError
from gnntrain.models import PlainModel, build_model
from gnntrain.results.export import export
from gnntrain.results.prediction import predict
from tests.graphs import stored
from tests.results.runs import write_run

PACKAGE = """
from torch_geometric.nn import GraphSAGE

def make(num_inputs, num_outputs, width=4):
    return GraphSAGE(num_inputs, width, num_layers=2, out_channels=num_outputs)
"""


def test_it_predicts_and_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("theirs", "their_package:make", plugins.MODELS)
    found = EntryPoints([point])
    monkeypatch.setattr(plugins, "entry_points", lambda **wanted: found.select(**wanted))
    store = stored(tmp_path / "store")
    model = {"name": "theirs", "num_layers": 2, "options": {"width": 8}}
    raw = {"model": model, "sampler": {"fan_outs": [3, 3]}, "evaluation": {"batch_size": 7}}
    config = from_dict(raw, saved=True)
    made = build_model(config.model, store.num_features, store.num_outputs).eval()
    assert isinstance(made, PlainModel)
    write_run(tmp_path / "run", store, config, made)

    predict(tmp_path / "run", tmp_path / "out.npy", what="logits")
    dst = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    edge_index = torch.from_numpy(np.stack([store.indices, dst]).astype(np.int64))
    with torch.no_grad():
        expected = made.module(as_tensor(store.features), edge_index)
    logits = torch.from_numpy(np.load(tmp_path / "out.npy"))
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match="has no embeddings"):
        predict(tmp_path / "run", tmp_path / "e.npy", what="embeddings")

    done = export(tmp_path / "run")
    assert done.made_with == "their_package.make"
    for name in ("model.py", "README.md"):
        text = (done.path / name).read_text()
        assert "their_package" in text
        assert not re.search("PyG alone|torch_geometric only", text)
    monkeypatch.syspath_prepend(done.path)
    monkeypatch.delitem(sys.modules, "model", raising=False)
    exported = __import__("model").load()
    monkeypatch.delitem(sys.modules, "model")
    with torch.no_grad():
        torch.testing.assert_close(exported(as_tensor(store.features), edge_index), expected)
