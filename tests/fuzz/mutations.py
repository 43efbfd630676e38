"""Valid bytes and valid JSON, damaged in a few places."""

from __future__ import annotations

import copy
import io
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Edit = tuple[str, int, int, bytes]

_OPERATIONS = ("put", "insert", "delete", "repeat", "cut", "swap")
_NASTY_BYTES = (
    *(b"\x00", b"\xff", b"\n", b"\r\n", b",", b'"', b"'", b";", b"\t", b"-1", b"nan", b"inf"),
    *(b"1e999", b"99999999999999999999", b"\x80\x02cos\nsystem\n", b"\xef\xbb\xbf", b"\xc3\x28"),
    *(b"#", b"\xff\xff\xff\xff\xff\xff\xff\x7f"),
)


def damaged(base: bytes) -> SearchStrategy[bytes]:
    """`base` with one to six edits: bytes put over others, inserted, removed, repeated."""
    edit = st.tuples(
        st.sampled_from(_OPERATIONS),
        st.integers(0, max(0, len(base) - 1)),
        st.integers(1, 64),
        st.sampled_from(_NASTY_BYTES) | st.binary(min_size=1, max_size=8),
    )
    return st.lists(edit, min_size=1, max_size=6).map(lambda edits: _edited(base, edits))


def _edited(base: bytes, edits: list[Edit]) -> bytes:
    content = bytearray(base)
    for operation, place, length, new in edits:
        at = min(place, len(content))
        part = content[at : at + length]
        if operation == "put":
            content[at : at + len(new)] = new
        elif operation == "insert":
            content[at:at] = new
        elif operation == "delete":
            del content[at : at + length]
        elif operation == "repeat":
            content[at:at] = part * 3
        elif operation == "cut":
            del content[at:]
        else:
            content[at : at + length] = bytes(reversed(part))
    return bytes(content)


def archive(members: Mapping[str, bytes], *, packed: bool = False) -> bytes:
    file = io.BytesIO()
    how = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", how) as opened:
        for name, content in members.items():
            opened.writestr(name, content)
    return file.getvalue()


def repacked(content: bytes, endings: tuple[str, ...] = ("",)) -> SearchStrategy[bytes]:
    """An archive with one member, whose name ends so, damaged and all checksums right."""
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}

    def with_damaged(name: str) -> SearchStrategy[bytes]:
        return damaged(members[name]).map(lambda changed: archive(members | {name: changed}))

    names = sorted(name for name in members if name.endswith(endings))
    return st.sampled_from(names).flatmap(with_damaged)


NASTY_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 2**63, 2**64, 10**400, 1.5, 1e308, float("nan"), float("inf")),
    *("", "x", "..", "../../etc/passwd", "/etc/passwd", "../indices.npy", "a\x00b", "\ud800"),
    *("|O", "int32", "float99", "1e999", "${oc.env:HOME}", "${x}", "???", "x" * 10_000, [], {}),
    *([[]], [None], {"_target_": "os.system", "_args_": ["true"]}, {"": ""}, [2**62, 2**62]),
)


def mistaken(base: Mapping[str, Any]) -> SearchStrategy[dict[str, Any]]:
    """Plain data with one to four values replaced, removed, renamed or nested deeper."""
    places = list(_places(base))
    edit = st.tuples(
        st.sampled_from(places),
        st.sampled_from(("replace", "replace", "remove", "rename", "nest", "copy")),
        st.sampled_from(NASTY_VALUES) | st.integers(-(2**70), 2**70) | st.text(max_size=8),
        st.sampled_from(places),
    )
    return st.lists(edit, min_size=1, max_size=4).map(lambda edits: _mistaken(base, edits))


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, item in items:
        yield (*path, key)
        yield from _places(item, (*path, key))


def _mistaken(base: Mapping[str, Any], edits: list[tuple[Any, str, Any, Any]]) -> dict[str, Any]:
    content = copy.deepcopy(dict(base))
    for (*path, last), operation, value, other in edits:
        parent: Any = content
        source: Any = content
        try:
            for key in path:
                parent = parent[key]
            for key in other:
                source = source[key]
            if operation == "replace":
                parent[last] = value
            elif operation == "remove":
                del parent[last]
            elif operation == "rename":
                parent[str(value)] = parent.pop(last)
            elif operation == "copy":
                parent[last] = copy.deepcopy(source)
            else:
                for _ in range(30):
                    parent[last] = [parent[last]]
        except (KeyError, IndexError, TypeError, AttributeError):
            continue  # an earlier edit took it away
    return content
