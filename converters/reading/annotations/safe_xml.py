"""XML from files of strangers: no document types, so no entities and nothing from elsewhere."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from fastdata.errors import SourceError

__all__ = ["parse_xml"]

_LARGEST = 16 << 20
_DEEPEST = 50


def parse_xml(data: bytes, name: str) -> Element:
    """Return the root of a document."""
    if len(data) > _LARGEST:
        raise SourceError(f"{name}: {len(data):,} bytes are too many for an annotation")
    builder = TreeBuilder()
    depth = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST:
            raise SourceError(f"{name}: more than {_DEEPEST} elements one within the other")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    def refuse(*_: Any) -> None:
        raise SourceError(f"{name}: declares a document type; such files are not read")

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
        return builder.close()
    except SourceError:
        raise
    except (expat.ExpatError, ValueError, LookupError) as error:  # LookupError: its encoding
        raise SourceError(f"{name}: no sound XML: {error}") from error
