"""What gnntrain wrote itself and reads again: stores, run directories, checkpoints; and YAML."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gnntrain.app import compose_config, recompose_config
from gnntrain.config import Config, from_dict
from gnntrain.data.store import StoredGraph
from gnntrain.reporting.loggers import reached
from gnntrain.reporting.rundir import RunDirectory, RunPlace
from gnntrain.run_store import ModelSignature, model_signature, open_run_store
from gnntrain.training.checkpoint import load_last
from tests.fuzz.mutations import damaged, mistaken, repacked
from tests.fuzz.surface import Surface
from tests.graphs import random_graph, stored
from tests.training.test_trainer import make_trainer

Read = Callable[[Any], object]


def _written(file: Path, content: bytes | dict[str, Any]) -> None:
    if isinstance(content, dict):
        content = json.dumps(content).encode("utf-8", "replace")
    file.write_bytes(content)


# A store's metadata


def _store_reader(path: Path) -> Read:
    def read(drawn: tuple[bytes | dict[str, Any], bool]) -> object:
        content, check = drawn
        _written(path / "meta.json", content)
        store = StoredGraph.open(path, check=check)
        splits = [store.split(name).sum() for name in ("train", "val", "test")]
        return splits, store.only_edges.indices.sum(), store.num_bytes, store.num_outputs

    return read


def _store_inputs(path: Path) -> SearchStrategy[Any]:
    right = (path / "meta.json").read_bytes()
    content: SearchStrategy[Any] = mistaken(json.loads(right)) | damaged(right)
    return st.tuples(content, st.booleans())


# A store's arrays


def _array_reader(path: Path, right: Mapping[str, bytes]) -> Read:
    def read(drawn: tuple[str, bytes]) -> object:
        name, content = drawn
        (path / name).write_bytes(content)
        try:
            return StoredGraph.open(path).num_edges
        finally:
            (path / name).write_bytes(right[name])

    return read


def _array_inputs(right: Mapping[str, bytes]) -> SearchStrategy[Any]:
    return st.sampled_from(sorted(right)).flatmap(
        lambda name: st.tuples(st.just(name), damaged(right[name]))
    )


# A run directory's own files


_ODD_YAML = (
    b"!!python/object/apply:os.system ['true']",
    b"dataset: !!python/name:os.system",
    b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: &d [*c, *c]",
    b"a: &a\n  b: *a",
    b"&a [*a]",
    b"[" * 3000,
    b"{a: " * 3000,
    b"- " * 3000,
    b"? " * 3000,
    b"- 1\n- 2",
    b"2024-01-01",
    b"? [a, b]\n: c",
    b"1: {2: 3}",
    b"trainer: {lr: !!binary aGVsbG8=}",
    b"trainer: {seed: !!set {a, b}}",
    b"trainer: {lr: 2024-01-01, epochs: 12:30:45, seed: 0o17}",
    b"trainer: {epochs: 1_0, lr: .inf, batch_size: 0x10}",
    b"<<: {dataset: {name: cora}}",
    b"\xff\xfe\x00",
    b"\x00",
    b"%YAML 9.9\n---\na: b",
    b"---\na: 1\n---\nb: 2",
    b"a: 'x",
    b"a:\n\tb: 1",
)


def _bomb(key: str) -> bytes:
    """Aliases of aliases: a few lines that stand for more text than there is memory."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    return "\n".join([*lines, f"{key}: *a29", ""]).encode()


def _yaml_inputs(right: Mapping[str, Any]) -> SearchStrategy[bytes]:
    text = yaml.safe_dump(right, sort_keys=False).encode()
    safe = mistaken(right).map(lambda value: yaml.safe_dump(value, sort_keys=False).encode())
    odd = st.sampled_from((*_ODD_YAML, _bomb("trainer"), _bomb("zzz")))
    return safe | damaged(text) | odd | odd.map(lambda part: text + b"\n" + part)


def _run_reader(run: RunDirectory) -> Read:
    def read(content: bytes) -> object:
        (run.path / "config.yaml").write_bytes(content)
        found = RunDirectory.open(run.path).config()
        return from_dict(found, saved=True), recompose_config(found, ["trainer.epochs=3"])

    return read


def _record_reader(run: RunDirectory, config: Config) -> Read:
    def read(content: bytes | dict[str, Any]) -> object:
        _written(run.path / "store.json", content)
        return model_signature(run), open_run_store(run.store_record(), config.dataset)

    return read


def _log_reader(run: RunDirectory) -> Read:
    def read(content: bytes | dict[str, Any]) -> object:
        _written(run.path / "metrics.jsonl", content)
        _written(run.path / "summary.json", content)
        return reached(run, "accuracy"), run.summary()

    return read


def _own_yaml_reader(folder: Path) -> Read:
    (folder / "model").mkdir(parents=True)

    def read(content: bytes) -> object:
        (folder / "model" / "own.yaml").write_bytes(content)
        return compose_config(["model=own", "model.num_layers=2"], [folder])

    return read


# Checkpoints


def _checkpoint_reader(store: StoredGraph, folder: Path) -> Read:
    trainer = make_trainer(store, kind="full", epochs=1)

    def read(content: bytes | dict[str, Any]) -> object:
        if isinstance(content, dict):
            file = io.BytesIO()
            torch.save(content, file)
            content = file.getvalue()
        (folder / "last.pt").write_bytes(content)
        state, path, _ = load_last(folder)
        trainer.load_state(state, path)
        return trainer.result

    return read


def _checkpoint_inputs(folder: Path) -> SearchStrategy[Any]:
    right = (folder / "last.pt").read_bytes()
    state = torch.load(folder / "last.pt", weights_only=True)
    members = repacked(right, ("data.pkl", "version"))
    return damaged(right) | members | mistaken(state).filter(_is_savable)


def _is_savable(state: Any) -> bool:
    """Whether torch pickles it: text with half a character in it, it does not."""
    try:
        torch.save(state, io.BytesIO())
    except (UnicodeEncodeError, OverflowError):
        return False
    return True


def surfaces() -> list[Surface]:
    """Everything that reads what gnntrain wrote, and the user's own YAML files."""
    folder = Path(tempfile.mkdtemp(prefix="gnntrain-fuzz-"))
    store = stored(folder / "store", random_graph(12, 30, num_features=3))
    shutil.copytree(folder / "store", folder / "arrays")
    right = {file.name: file.read_bytes() for file in (folder / "arrays").glob("*.npy")}
    dataset = {"num_nodes": 20, "num_edges": 40, "store_dir": str(folder / "stores")}
    config = from_dict({"dataset": dataset})
    run = RunDirectory.create(RunPlace(folder / "run"), config.to_dict())
    identity = {"config": {"trainer": {"epochs": 1}}, "num_parameters": 1}
    trained: dict[str, Any] = {"checkpoints": run.checkpoints, "identity": identity}
    make_trainer(store, kind="full", epochs=1, **trained).fit()
    learnt = asdict(ModelSignature.of(store)) | {"class_names": ["a", "b", "c"]}
    record = {"path": str(store.path), "digest": "0" * 40, "learnt": learnt}
    records = mistaken(record) | damaged(json.dumps(record).encode())
    line: dict[str, Any] = {
        "epoch": 1,
        "step": 2,
        "train/loss": 0.5,
        "val/accuracy": 0.5,
        "lr": 0.1,
        "seconds": 1,
    }
    line |= {"eval_seconds": 1, "seeds_per_s": 9, "edges_per_s": 9, "memory": 9, "time": {"a": 1}}
    logs = mistaken(line) | damaged(json.dumps(line).encode())
    model = {"name": "sage", "num_layers": 2, "hidden_channels": 8, "dropout": 0.5}
    checkpoint = _checkpoint_reader(StoredGraph.open(folder / "arrays"), run.checkpoints)
    return [
        Surface("store metadata", _store_inputs(store.path), _store_reader(store.path), 14),
        Surface("store arrays", _array_inputs(right), _array_reader(folder / "arrays", right), 10),
        Surface("run's store.json", records, _record_reader(run, config), 9),
        Surface("run's config.yaml", _yaml_inputs(config.to_dict()), _run_reader(run), 3),
        Surface("run's logs", logs, _log_reader(run), 2),
        Surface("own YAML", _yaml_inputs(model), _own_yaml_reader(folder / "conf"), 1),
        Surface("checkpoint", _checkpoint_inputs(run.checkpoints), checkpoint, 3),
    ]
