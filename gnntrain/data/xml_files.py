"""Untrusted XML: a document type is refused, since its entities may expand to any length."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any
from xml.parsers import expat

from gnntrain.errors import UserError

_CHUNK_BYTES = 1 << 16


class _RootReached(Exception):
    """The first element begins: no document type may follow."""


class _DoctypeFound(Exception):
    """The document declares a type, with entities or without."""


def refuse_doctype(path: Path, stream: IO[bytes]) -> None:
    """Read an XML document up to its first element.

    Args:
        path: The file it is in, for messages.
        stream: The document from its beginning.

    Raises:
        UserError: It declares a document type.
        ValueError: It is no XML.
    """
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = _raiser(_DoctypeFound)
    parser.StartElementHandler = _raiser(_RootReached)
    try:
        while chunk := stream.read(_CHUNK_BYTES):
            parser.Parse(chunk, False)
        parser.Parse(b"", True)
    except _RootReached:
        return
    except _DoctypeFound:
        raise UserError(
            f"{path} declares a document type (<!DOCTYPE …>), which may unpack to any length.",
            "Remove the declaration, or save the graph again.",
        ) from None
    except expat.ExpatError as error:
        raise ValueError(f"it is no XML: {error}") from error


def _raiser(kind: type[Exception]) -> Any:
    def handler(*_: Any) -> None:
        raise kind

    return handler
