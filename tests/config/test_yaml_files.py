"""YAML that others may have written."""

from __future__ import annotations

import pytest

from gnntrain.config.yaml_files import read_yaml


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "x: {a: 1, b: {c: 1, c: 1}}"])
def test_a_key_that_is_there_twice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"key [ac] again"):
        read_yaml(text)


def test_two_mappings_may_have_the_same_keys() -> None:
    assert read_yaml("x: {a: 1}\ny: {a: 2}") == {"x": {"a": 1}, "y": {"a": 2}}
