"""The command line: words, options and overrides, right, wrong and malicious."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gnntrain.app import compose_config, recompose_config
from gnntrain.commands import COMMANDS
from gnntrain.commands.parsing import parse
from gnntrain.config import Config, Problem, from_dict
from gnntrain.groups import GROUPS, config_groups
from gnntrain.paths import is_folder
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.sweep.plan import SweepOverrides, grid
from tests.fuzz.surface import Surface

_DATASETS = ({"name": "synthetic"}, {"name": "files"}, {"name": "cora"})
_NASTY_KEYS = (
    *("_target_", "dataset._target_", "model._target_", "dataset", "hydra.run.dir"),
    *("hydra/launcher", "model@x", "a.b.c.d.e", "trainer..lr", ".lr", "trainer.", "trainer.lr.x"),
    *("model.options", "model.options.a", "sampler.fan_outs.0", "sampler.fan_outs[0]"),
    *("logger.jsonl", "logger.0", "0", "", " ", "defaults", "--x", "läuft", "run.name\n"),
    *("a" * 300, "trainer.__class__", "model.name", "dataset.name"),
)
_NASTY_VALUES = (
    *("", "null", "None", "true", "0", "-1", "1.0", "1e-3", "1e999", "-inf", "nan", "0x10"),
    *("1_000", "9" * 30, "9" * 5000, "'", '"', "'a", '"a"', "''", "\\", "a\\,b", "[", "]", "[]"),
    *("[1,2]", "[1,[2,[3]]]", "[" * 15 + "]" * 15, "[" * 2000, "{", "{}", "{a:1}"),
    *("{a:{b:{c:1}}}", "{_target_:os.system,_args_:[true]}", "{'x y':1}", "{null:1}"),
    *("{1:2,true:3}", "${oc.env:HOME}", "${oc.env:NOT_THERE}", "${trainer.lr}", "${trainer}"),
    *("${dataset}", "${.name}", "${..}", "${x}", "${", "${oc.create:{a:1}}"),
    *("${oc.decode:'[1,2'}", "${hydra:runtime.cwd}", "${now:%Y}", "???", "a,b", "1,2,3"),
    *("range(1,4)", "range(4)", "range(1,1000000000)", "range(0,1,0)", "range(1,2,1e-9)"),
    *("choice(a,b)", "choice()", "interval(0,1)", "glob(*)", "glob([*,!x])"),
    *("glob(s*,exclude=[sage])", "shuffle(1,2,3)", "sort(3,1,2)", "tag(a,choice(1,2))"),
    *("int(1.5)", "float(x)", "json_str({a:1})", "extend_list(1)", "str([1])", "cast(1)"),
    *("eval(1)", "__import__('os').system('true')", "!!python/object/apply:os.system ['true']"),
    *("../../../etc/passwd", "/dev/zero", "~nobody/x", "/dev/null", "~", "~/x", "a=b", "a b"),
    *("a:b", "é", "\udcff", "\u202e", "\x00", "\x1b[31m", "a\nb", "x" * 5000),
)
_OPTIONS = (
    *(("-m",), ("--multirun",), ("-h",), ("--version",), ("--cfg", "job"), ("--cfg", "hydra")),
    *(("--cfg=job",), ("--cfg",), ("--config-dir", "/nowhere"), ("--config-dir=",)),
    *(("--config-dir",), ("--config-dir", "~nobody/conf"), ("--config-dir", "x" * 5000)),
    *(("--out", "~nobody/x"), ("--out=",), ("-x",), ("--",), ("-",), ("--gpus=1",)),
)


def _keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{key}.")


_REAL_KEYS = sorted(
    {key for data in _DATASETS for key in _keys(from_dict({"dataset": data}, saved=True).to_dict())}
)
_NAMES = sorted({name for names in config_groups().values() for name in names})

_keys_of_all_kinds = st.sampled_from(_REAL_KEYS) | st.sampled_from((*GROUPS, *_NASTY_KEYS))
_numbers = st.integers(-(2**70), 2**70).map(str) | st.floats().map(repr)
_plain_values = (
    st.sampled_from(_NASTY_VALUES)
    | st.sampled_from(_NAMES)
    | _numbers
    | st.text(max_size=12)
    | st.text(alphabet="[]{}(),:='\"\\$ .~*?!0a", max_size=24)
)
_values = st.recursive(
    _plain_values,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: "[" + ",".join(parts) + "]")
        | st.lists(inner, max_size=3).map(",".join)
        | st.tuples(st.sampled_from(("a", "lr", "name")), inner).map(
            lambda pair: "{" + ":".join(pair) + "}"
        )
        | inner.map(lambda part: "${" + part + "}")
    ),
    max_leaves=4,
)
_override = st.tuples(
    st.sampled_from(("", "", "", "", "+", "++", "~")),
    _keys_of_all_kinds,
    st.sampled_from(("=", "=", "=", "=", "", " = ", "@p=")),
    _values,
).map("".join)
_choice = st.tuples(st.sampled_from(GROUPS), st.sampled_from(_NAMES)).map("=".join)
_overrides = st.lists(_override | _choice | st.text(max_size=20), max_size=4)
_arguments = st.lists(
    st.sampled_from(_OPTIONS)
    | st.sampled_from((*COMMANDS, "resume", "evaluate", "latest", "x", "")).map(
        lambda word: (word,)
    )
    | st.sampled_from(_NASTY_VALUES).map(lambda word: (word,))
    | _override.map(lambda text: (text,)),
    max_size=6,
).map(lambda groups: [word for group in groups for word in group])

_SAVED = Config().to_dict()


def _parse(argv: list[str]) -> object:
    arguments = parse(argv)
    folders = [is_folder(folder) for folder in arguments.config_dirs]
    # What is no run lies in the folder of the runs, which is not there either.
    words = getattr(arguments, "words", ())
    return folders, [RunDirectory.open(word, Path("no runs")) for word in words]


def _recompose(overrides: list[str]) -> object:
    return recompose_config(_SAVED, overrides)


def _grid(overrides: list[str]) -> object:
    problems: list[Problem] = []
    return grid(SweepOverrides.parse(overrides, config_groups(), problems), problems)


def surfaces() -> list[Surface]:
    """Everything that reads the command line."""
    lists: SearchStrategy[list[str]] = _overrides
    return [
        Surface("command line", _arguments, _parse, 16),
        Surface("configuration", lists, compose_config, 2),
        Surface("sweep", lists, _grid, 15),
        Surface("changed keys", lists, _recompose, 3),
    ]
