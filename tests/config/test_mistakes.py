"""Whatever is given, each wrong key is told, in one `ConfigError` and by nothing else."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gnntrain.config import Config, ConfigError
from gnntrain.config.section import choices, key_schema
from tests.config.problems import problems_of
from tests.examples import examples

SECTIONS = {name: type(getattr(Config(), name)) for name in Config.model_fields}
FIXED = [name for name in SECTIONS if name not in (*Config.named, "logger")]
"""The sections of one class: each of their keys can be judged by itself."""
KEYS = [(name, key) for name in FIXED for key in SECTIONS[name].model_fields]

words = st.sampled_from(
    sorted({word for name, key in KEYS for word in choices(key_schema(SECTIONS[name], key))})
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | words
keys = st.sampled_from(sorted({key for _, key in KEYS})) | st.text(max_size=5)
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(keys, scalars, max_size=2)
names = st.sampled_from(["cora", "files", "synthetic", "gat", "mlp", "optuna", "plugin", "full"])
sections = st.dictionaries(
    keys | st.sampled_from(["name", "edges", "heads", "csv", "wandb", "trials"]) | st.integers(),
    values | names,
    max_size=4,
)


@examples(300)
@given(raw=st.dictionaries(st.sampled_from([*SECTIONS]) | keys, sections | values, max_size=5))
def test_reading_raises_nothing_but_a_configuration_error(raw: dict[str, Any]) -> None:
    for saved in (False, True):
        assert all(problem.expected for problem in problems_of(raw, saved=saved).values())
    with suppress(ConfigError):
        Config(**raw)


@examples(200)
@given(given=st.dictionaries(st.sampled_from(KEYS), values, max_size=8))
def test_each_wrong_key_is_told_whatever_the_others_are(
    given: dict[tuple[str, str], object],
) -> None:
    raw: dict[str, dict[str, object]] = {}
    for (section, key), value in given.items():
        raw.setdefault(section, {})[key] = value
    wrong = {f"{s}.{k}" for (s, k), value in given.items() if not is_accepted(s, k, value)}
    told = problems_of(raw).keys()
    assert wrong <= told
    sound = {s: {k: raw[s][k] for k in raw[s] if f"{s}.{k}" not in wrong} for s in raw}
    assert told - wrong <= problems_of(sound).keys()


def is_accepted(section: str, key: str, value: object) -> bool:
    """Whether the key's own class takes the value."""
    try:
        SECTIONS[section](**{key: value})
    except ConfigError:
        return False
    return True
