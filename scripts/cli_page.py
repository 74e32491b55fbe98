"""Write the tables of docs/cli.md, made from the parsers of the commands.

    python scripts/cli_page.py

A table stands between ``<!-- options: COMMAND -->`` and ``<!-- /options -->``.  ``fastdata`` is the
table of all commands, ``shared`` that of the options that have one meaning in every command.
"""

from __future__ import annotations

import re
from pathlib import Path

import click

from fastdata.cli import main
from fastdata.cli.options import SHARED, grouped_options

__all__ = ["PAGE", "renewed"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
BETWEEN = re.compile(r"(?<=<!-- options: ).*?(?=<!-- /options -->)", re.DOTALL)


def renewed(text: str) -> str:
    """Return the text of the page with all tables made again."""
    return BETWEEN.sub(lambda match: _table(match[0].partition(" -->")[0]), text)


def _table(name: str) -> str:
    groups: dict[str, list[tuple[str, str]]]
    if name == "fastdata":
        head = "command"
        groups = {
            title: [(f"[`{c.name}`](#fastdata-{c.name})", c.short_help or "") for c in commands]
            for title, commands in main.sections.items()  # type: ignore[attr-defined]
        }
    else:
        head = "option"
        shown = _options("subset" if name == "shared" else name)
        groups = {
            title: [(f"`{option}`", text) for option, text in rows]
            for title, rows in shown.items()
            if (title in SHARED) == (name == "shared")
        }
    lines = [f"| {head} | |", "|---|---|"]
    for title, rows in groups.items():
        if len(groups) > 1:
            lines.append(f"| **{title}** | |")
        lines += [f"| {_cell(left)} | {_cell(right)} |" for left, right in rows]
    return "\n".join([f"{name} -->", "", *lines, "", ""])


def _options(name: str) -> dict[str, list[tuple[str, str]]]:
    """Return the options of a command, or of a command of a command, in groups."""
    command: click.Command = main
    for word in name.split():
        assert isinstance(command, click.Group)
        command = command.commands[word]
    context = click.Context(command, help_option_names=["-h", "--help"])
    return grouped_options(command, context)


def _cell(text: str) -> str:
    # "[x>=1]" behind "[default: 2]" would be a link.
    return " ".join(text.replace("|", r"\|").split()).replace("] [", "], [")


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
