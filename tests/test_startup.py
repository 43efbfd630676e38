"""The start of commands: what is imported, and when garbage is collected."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import python


def test_ranks_train_where_the_shell_has_closed_their_output(tmp_path: Path) -> None:
    keys = "distributed.num_processes=2 trainer.gpus=0 trainer.epochs=1 dataset.num_nodes=200"
    command = f'exec "{sys.executable}" -m gnntrain run.dir=run {keys} <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", command], cwd=tmp_path, check=False).returncode == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "completed"


IMPORTS = """
import os, warnings
import numpy, ogb, optuna, pandas, scipy.sparse, sklearn, torch, torch._inductor, torch_geometric
found = [dict(os.environ), [*warnings.filters]]
import gnntrain.inference, gnntrain.planning.plan, gnntrain.report.writing, gnntrain.results.export
import gnntrain.run, gnntrain.sweep, gnntrain.sampling.pyg, gnntrain.training.cuda_graph
assert found == [dict(os.environ), warnings.filters]
"""


@pytest.mark.slow
def test_an_import_sets_no_filter_and_no_variable() -> None:
    done = python("-c", IMPORTS)
    assert done.returncode == 0, done.stderr


# What a default run has no use for: a second of imports, or more, each.
FORBIDDEN = (
    *("torch._dynamo.convert_frame", "torchmetrics"),
    *("matplotlib", "pandas", "pyarrow", "sklearn", "scipy.signal", "sympy", "networkx", "ogb"),
    *("optuna", "tensorboard", "wandb", "mlflow"),
    *("torch._refs", "torch._prims", "torch._inductor"),
    # What only machines need.
    *("gnntrain.distributed.rendezvous", "gnntrain.distributed.exchange"),
)

RUN = """
import sys
from gnntrain.cli import main
code = main([*"dataset.num_nodes=200 trainer.epochs=2 run.dir=run trainer.gpus=0".split()])
print("imported", *[name for name in sys.argv[1:] if name in sys.modules])
sys.exit(code)
"""

# By what each uses of the modules that wait until then.
USES = {
    "threads": """
import sys, threading
import torch, torch_geometric
assert torch.Generator().manual_seed(3).initial_seed() == 3
weights = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.Adam([weights])
weights.sum().backward()
optimizer.step()
assert "torch._dynamo.convert_frame" not in sys.modules and not torch.onnx.is_in_onnx_export()
assert torch.distributions.Normal(0.0, 1.0).mean == 0

found = []
use = lambda: found.append(torch._dynamo.OptimizedModule)
threads = [threading.Thread(target=use) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
from torch._dynamo import OptimizedModule
assert found == [OptimizedModule] * 4, found
""",
    "rank": """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 3))
layer(torch.ones(4, 2)).sum().backward()
assert "torch._dynamo.convert_frame" not in sys.modules
mode = torch._dynamo.utils.get_optimize_ddp_mode()
torch._dynamo.utils.counters  # another name
assert torch._dynamo.utils is sys.modules["torch._dynamo.utils"]
assert torch._dynamo.utils.get_optimize_ddp_mode() == mode
dist.destroy_process_group()
""",
    "disable": """
import torch

@torch.compiler.disable()
def mean(x):
    return x.mean()

@torch.compiler.disable(recursive=False)
def total(x):
    return x.sum()

graphs = []
def note(graph, _):
    graphs.append(graph.code)
    return graph.forward

model = torch.compile(lambda x: mean(x * 2) + total(x), backend=note)
assert model(torch.ones(3)) == 5
assert graphs and not any("mean" in code or "sum" in code for code in graphs), graphs
""",
    "inductor": """
import torch
double = torch.compile(torch.nn.Linear(2, 3))
assert double(torch.ones(4, 2)).shape == (4, 3)
""",
    "export": """
import torch
exported = torch.export.export(torch.nn.Linear(2, 3), (torch.ones(4, 2),))
assert exported.module()(torch.ones(4, 2)).shape == (4, 3)
""",
    "plugin": """
from importlib.metadata import EntryPoint
import torch
from gnntrain import plugins
plugins.find_plugin = lambda *_: EntryPoint("name", "torch.nn:Linear", plugins.MODELS)
assert plugins.load_plugin(plugins.MODELS, "name") is torch.nn.Linear
x = torch.ones(3, 3, device="meta")
assert torch.cdist(x, x).shape == (3, 3)
""",
}

FORKS = """
import os, runpy, sys, traceback
from gnntrain import startup
startup.install()
import torch

failed = []
for script in sys.argv[1:]:
    if os.fork() == 0:
        try:
            runpy.run_path(script)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.wait()[1]:
        failed.append(script)
sys.exit(" ".join(failed) or 0)
"""


def test_a_default_run_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    ended = python("-c", RUN, *FORBIDDEN, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "imported"


@pytest.mark.slow
def test_what_waits_is_whole_once_it_is_used(tmp_path: Path) -> None:
    """Each use in a process of its own, forked where only torch has been imported."""
    for name, use in USES.items():
        (tmp_path / name).write_text(use)
    ended = python("-c", FORKS, *USES, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
