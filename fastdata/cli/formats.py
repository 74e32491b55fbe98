"""``fastdata formats``: what `fastdata pack` can read."""

from __future__ import annotations

import textwrap
from typing import Any

import click

from fastdata.cli.output import emit, emit_json, json_option, traceback_option
from fastdata.cli.shell import DONE

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
@json_option
@traceback_option
def formats_command(name: str | None, as_json: bool) -> int:
    """List the formats that `fastdata pack` reads, or one of them with its options."""
    from fastdata.converters.finding import format_class, format_names

    described = [_described(format_class(n)) for n in ([name] if name else format_names())]
    if as_json:
        emit_json({"formats": described})
        return DONE
    width = max(len(entry["name"]) for entry in described)
    for entry in described:
        emit(f"{entry['name']:<{width}}  {entry['summary']}")
        for option in entry["options"]:
            default = (
                "" if option["default"] is None else f"  [default: {_text(option['default'])}]"
            )
            emit(f"{'':<{width}}    --option {option['name']}={option['kind'].upper()}{default}")
            if name and option["help"]:
                help = textwrap.wrap(option["help"], 88 - width)
                emit("\n".join(f"{'':<{width}}        {line}" for line in help))
    return DONE


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
