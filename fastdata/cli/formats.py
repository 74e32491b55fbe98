"""``fastdata formats``: what `fastdata pack` can read."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import click

from fastdata.cli.options import json_options
from fastdata.cli.shell import print_result

__all__ = ["formats_command"]

_EPILOG = """\b
Examples:
  fastdata formats
  fastdata formats tfrecord
  fastdata pack "train-*.tfrecord" train.lmdb --format tfrecord --option image=image/encoded

\b
Options of a format are given to `fastdata pack` as --option NAME=VALUE; several
values of one option are separated by commas.

\b
Exit codes: 0 done; 2 wrong usage."""


@click.command("formats", epilog=_EPILOG, short_help="List the formats that can be packed.")
@click.argument("name", required=False)
@json_options
def formats_command(name: str | None, as_json: bool) -> int:
    """List the formats that `fastdata pack` reads, or one of them with its options."""
    from fastdata.converters.finding import format_class, format_names

    described = [_described(format_class(n)) for n in ([name] if name else format_names())]
    return print_result(
        {"formats": described},
        lambda: "\n".join(_lines(described, with_help=name is not None)),
        as_json=as_json,
    )


def _lines(described: list[dict[str, Any]], *, with_help: bool) -> Iterator[str]:
    width = max(len(entry["name"]) for entry in described)
    for entry in described:
        yield f"{entry['name']:<{width}}  {entry['summary']}"
        for option in entry["options"]:
            default = (
                "" if option["default"] is None else f"  [default: {_text(option['default'])}]"
            )
            yield f"{'':<{width}}    --option {option['name']}={option['kind'].upper()}{default}"
            if with_help:
                for line in textwrap.wrap(option["help"], 88 - width):
                    yield f"{'':<{width}}        {line}"


def _described(kind: Any) -> dict[str, Any]:
    from fastdata.converters.finding import options_of

    return {
        "name": kind.name,
        "summary": kind.summary,
        "options": [
            {
                "name": option.name,
                "kind": option.kind.__name__,
                "default": option.default,
                "help": option.help + (f" ({', '.join(option.choices)})" if option.choices else ""),
            }
            for option in options_of(kind)
        ],
    }


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
