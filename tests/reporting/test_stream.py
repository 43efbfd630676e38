from __future__ import annotations

import io
import os

import pytest

from gnntrain.reporting.stream import TolerantStream


def test_text_passes_through() -> None:
    file = io.StringIO()
    stream = TolerantStream(file)
    assert stream.write("grün ▁█") == 7
    assert file.getvalue() == "grün ▁█"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_characters_that_the_encoding_lacks_become_ascii(encoding: str) -> None:
    raw = io.BytesIO()
    stream = TolerantStream(io.TextIOWrapper(raw, encoding=encoding))
    stream.write("▁ → … 節 a \udcff")
    stream.flush()
    assert raw.getvalue().decode(encoding).replace("…", "~") == "_ -> ~ \\u7bc0 a \\udcff"


def test_a_closed_pipe_mutes_the_stream_for_good() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as file:
        stream = TolerantStream(file)
        stream.write("one")
        stream.flush()
        assert stream.is_gone
        assert not stream.isatty()
        stream.write("two")
        stream.flush()
        file.flush()  # as the interpreter does at its end: it must not fail again


def test_a_full_disk_mutes_the_stream() -> None:
    with open("/dev/full", "w") as file:  # noqa: PTH123
        stream = TolerantStream(file)
        stream.write("x")
        stream.flush()
        assert stream.is_gone


def test_a_file_that_was_closed_or_never_open_is_no_error() -> None:
    file = io.StringIO()
    file.close()
    for stream in (TolerantStream(file), TolerantStream(None)):
        stream.write("x")
        stream.flush()
        assert stream.is_gone
        assert not stream.isatty()
