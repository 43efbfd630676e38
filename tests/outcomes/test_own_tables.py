"""From a user's raw table to predictions: for another table, and by the exported model."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gnntrain.cli import main
from gnntrain.config import FilesConfig, from_dict
from gnntrain.data.graph import NODE
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.run_store import model_signature, open_run_store, prepare_store
from tests.processes import python
from tests.results.runs import any_run_of, run_of

NUM_NODES = 60
KEYS = {
    "missing": "indicator",
    "standardize": "true",
    "categorical": "[kind,month]",
    "ignore": "[note]",
}


def table(seed: int = 0) -> pd.DataFrame:
    """A raw table: numbers of unlike scales, some missing, categories, notes and labels."""
    rng = np.random.default_rng(seed)
    kinds = np.array(["farm", "town", "city"], object)[rng.integers(0, 3, NUM_NODES)]
    found = pd.DataFrame(
        {
            "fips": [f"c{seed}_{i}" for i in range(NUM_NODES)],
            "income": rng.normal(50_000, 9_000, NUM_NODES),
            "rate": rng.normal(0.1, 0.01, NUM_NODES),
            "kind": kinds,
            "month": rng.integers(1, 13, NUM_NODES),
            "note": "a note",
            "label": (kinds == "town").astype(int),
        }
    )
    found.loc[rng.random(NUM_NODES) < 0.2, "income"] = np.nan
    found.loc[[4, 9], "kind"] = None
    return found


def edges(folder: Path, ids: pd.Series) -> str:
    ends = np.random.default_rng(1).choice(ids.to_numpy(str), (2, 200))
    path = folder / f"edges_{ids[0]}.csv"
    pd.DataFrame({"source": ends[0], "target": ends[1]}).to_csv(path, index=False)
    return str(path)


def trained(here: Path, **keys: str) -> pd.DataFrame:
    """Train run `run` by the command; its table."""
    nodes = table()
    nodes.to_csv("nodes.csv", index=False)
    given = {"features": "nodes.csv", "edges": edges(here, nodes["fips"]), "store_dir": "stores"}
    words = [f"dataset.{key}={value}" for key, value in {**given, **KEYS, **keys}.items()]
    small = ["trainer.epochs=2", "model.hidden_channels=8", "trainer.gpus=0", "run.dir=run"]
    assert main(["dataset=files", *words, *small]) == 0
    return nodes


def logits(*words: str) -> pd.DataFrame:
    """What `predict` writes."""
    assert main(["predict", "run", "--out", "out.csv", "--what", "logits", *words]) == 0
    found = pd.read_csv("out.csv").set_index("node")
    Path("out.csv").unlink()
    return found


def test_another_table_is_read_as_the_run_keeps_it(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nodes = trained(here)
    expected = logits()
    # By the names of its columns.
    shuffled = nodes.assign(more=1.0)[["rate", "month", "more", "kind", "fips", "income"]]
    shuffled.to_csv("new.csv", index=False)
    capfd.readouterr()
    pd.testing.assert_frame_equal(logits("dataset.features=new.csv"), expected)
    order, columns = capfd.readouterr().err.splitlines()
    assert "another order" in order
    assert columns.endswith(": more")
    nodes.drop(columns="rate").to_csv("less.csv", index=False)
    words = ["predict", "run", "--out", "out.csv", "dataset.features=less.csv"]
    assert main(words) == 2
    assert "trained on: rate" in capfd.readouterr().err
    assert not Path("out.csv").exists()
    # Without the store and the table of training.
    for path in (*Path("stores").rglob("meta.json"), Path("nodes.csv")):
        path.unlink()
    nodes.assign(label=0).to_csv("new.csv", index=False)
    pd.testing.assert_frame_equal(logits("dataset.features=new.csv"), expected)
    half = nodes.iloc[:30].drop(columns=["label", "note"])
    half.to_csv("half.csv", index=False)
    given = f"dataset.edges={edges(here, half['fips'])}"
    assert len(logits("dataset.features=half.csv", given)) == 30
    words = ["predict", "run", "--out", "out.csv", "--nodes", "test", given]
    assert main([*words, "dataset.features=half.csv"]) == 2
    assert "has no test nodes" in capfd.readouterr().err


WITHOUT_US = """
import csv, json, sys
sys.modules["gnntrain"] = None  # an import of it fails
import numpy as np, torch
sys.path.insert(0, sys.argv[1])
import model
from model import load, prepare
with open("nodes.csv", newline="") as file:
    rows = list(csv.DictReader(file))
columns = {name: [row[name] for row in rows] for name in rows[0]}
places = {row["fips"]: place for place, row in enumerate(rows)}
with open(sys.argv[2], newline="") as file:
    ends = [(places[row["source"]], places[row["target"]]) for row in csv.DictReader(file)]
x = prepare(columns)
arrays = {name: np.array([float(v or "nan") for v in columns[name]]) for name in ("income", "rate")}
assert torch.equal(x, prepare(columns | arrays))
given = [None if value == "" else float(value) for value in columns["income"]]
assert torch.equal(x, prepare(columns | {"income": given}))
assert torch.equal(x, prepare(columns | {"month": [float(v) for v in columns["month"]]}))
try:
    prepare({"rate": columns["rate"]})
except KeyError as error:
    assert "income" in str(error)
with torch.no_grad():
    logits = load()(x, torch.tensor(ends).T)
np.savez("theirs.npz", x=x.numpy(), logits=logits.numpy())
"""


@pytest.mark.parametrize(
    "keys",
    [
        {},
        pytest.param({"missing": "mean", "standardize": "false"}, marks=pytest.mark.slow),
        pytest.param(
            {"missing": "zero", "normalize_features": "true", "feature_dtype": "bfloat16"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_exported_model_prepares_a_raw_table_as_the_store_was(
    here: Path, keys: dict[str, str]
) -> None:
    nodes = trained(here, **keys)
    assert main(["export", "run", "--out", "exported"]) == 0
    done = python("-c", WITHOUT_US, "exported", edges(here, nodes["fips"]))
    assert done.returncode == 0, done.stderr
    theirs = np.load("theirs.npz")
    run = RunDirectory.open("run")
    store = open_run_store(run.store_record(), from_dict(run.config(), saved=True).dataset).store
    stored = np.asarray(store.target_nodes.features)
    if stored.dtype == np.uint16:
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(theirs["x"], stored, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(theirs["logits"], logits().to_numpy(), rtol=1e-4, atol=1e-4)
    card = Path("exported/README.md").read_text()
    assert "x = prepare(columns)" in card
    assert "kind, month" in card
    about = json.loads(Path("exported/model.json").read_text())
    assert [column["name"] for column in about["preprocessing"][NODE]["columns"]] == [
        *("income", "rate", "kind", "month")
    ]


def test_plain_columns_need_no_preparation_but_their_order(here: Path) -> None:
    keys = {"missing": "refuse", "standardize": "false", "categorical": "[]"}
    trained(here, **keys, ignore="[note,kind,income]")
    assert main(["export", "run", "--out", "exported"]) == 0
    assert "def prepare" not in Path("exported/model.py").read_text()
    assert "(rate, month)" in Path("exported/README.md").read_text()


@pytest.mark.usefixtures("here")
def test_an_array_is_prepared_by_place() -> None:
    x = np.random.default_rng(0).normal(5, 3, (NUM_NODES, 4))
    x[3, 1] = np.nan
    np.save("x.npy", x)
    np.save("y.npy", np.arange(NUM_NODES) % 3)
    np.save("edges.npy", np.random.default_rng(0).integers(0, NUM_NODES, (2, 99)))
    given: dict[str, Any] = {"features": "x.npy", "labels": "y.npy", "edges": "edges.npy"}
    given |= {"missing": "mean", "standardize": True, "store_dir": "stores", "name": "files"}
    config = FilesConfig(**given)
    store = prepare_store(config).store
    run_of(Path("run"), store, {"name": "sage"}, dataset=config.model_dump(mode="json"))
    signature = model_signature(RunDirectory.open("run"))
    assert signature.preprocessing == store.meta.preprocessing
    assert main(["export", "run", "--out", "exported"]) == 0
    prepare = runpy.run_path("exported/model.py")["prepare"]
    np.testing.assert_array_equal(prepare(x).numpy(), store.target_nodes.features)


SCHEMA = """
nodes:
  customer: {files: customers.csv, id: customer, categorical: [country], label: kind}
  product: {files: products.csv, standardize: true}
edges:
  customer/buys/product: {files: "buys-*.csv"}
reverse: true
"""


def write_shop(folder: Path, prefix: str, seed: int, *, labelled: bool) -> list[str]:
    """Tables of a typed graph; the ids of its customers."""
    rng = np.random.default_rng(seed)
    ids = [f"{prefix}{i}" for i in range(30)]
    customers = pd.DataFrame({"visits": rng.poisson(3, 30), "customer": ids})
    customers["country"] = rng.choice(["DE", "FR"], 30)
    if labelled:
        customers["kind"] = rng.choice(["private", "school", "shop"], 30)
    customers.to_csv(folder / "customers.csv", index=False)
    products = pd.DataFrame({"id": np.arange(10) * 3, "price": rng.normal(50, 9, 10)})
    products.to_csv(folder / "products.csv", index=False)
    buys = pd.DataFrame({"customer": rng.choice(ids, 90), "product": rng.integers(0, 10, 90) * 3})
    for number, part in enumerate(np.array_split(np.arange(90), 3)):
        buys.iloc[part].to_csv(folder / f"buys-{number}.csv", index=False)
    return ids


def test_a_typed_graph_predicts_for_other_tables_of_its_schema(here: Path) -> None:
    old, new = here / "old", here / "new"
    for folder in (old, new):
        folder.mkdir()
    ids = write_shop(old, "c", 0, labelled=True)
    strangers = write_shop(new, "d", 1, labelled=False)
    (old / "graph.yaml").write_text(SCHEMA)
    given = [f"dataset.root={old}", "dataset.schema=graph.yaml"]
    small = ["trainer.epochs=2", "model.hidden_channels=8", "trainer.gpus=0", "run.dir=run"]
    words = ["dataset=files", *given, "dataset.store_dir=stores", "task.target=customer"]
    assert main([*words, "model=hetero_sage", *small]) == 0
    assert logits().index.tolist() == ids
    first = logits(f"dataset.root={new}")
    assert first.index.tolist() == strangers
    # Products are standardised as in training: what they cost elsewhere does not matter.
    products = pd.read_csv(new / "products.csv")
    dear = pd.DataFrame({"id": [1000], "price": [1e6]})
    pd.concat([products, dear])[["price", "id"]].to_csv(new / "products.csv", index=False)
    pd.testing.assert_frame_equal(logits(f"dataset.root={new}"), first)


def test_an_exported_model_prepares_the_tables_of_each_node_type(here: Path) -> None:
    write_shop(here, "c", 0, labelled=True)
    Path("graph.yaml").write_text(SCHEMA)
    config = FilesConfig(schema="graph.yaml", store_dir="stores")
    store = prepare_store(config).store
    any_run_of(Path("run"), store, {"name": "rgcn"}, dataset=config.model_dump(mode="json"))
    assert main(["export", "run", "--out", "exported"]) == 0
    prepare = runpy.run_path("exported/model.py")["prepare"]
    for node_type in ("customer", "product"):
        table = pd.read_csv(f"{node_type}s.csv")
        x = prepare({name: table[name] for name in table}, node_type)
        expected = store.nodes[node_type].features
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-6, atol=1e-6)
    card = Path("exported/README.md").read_text()
    assert "prepare(columns, t)" in card
    assert "(customer, product)" in card
