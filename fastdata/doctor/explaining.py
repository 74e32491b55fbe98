"""Explanations of advice: the text of ``advice.md``, which is a page of the documentation, too."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Mapping
from importlib import resources

__all__ = ["explanations", "shown"]

_SECTION = re.compile(
    r"""^\#\#\ (?P<id>D\d\d)\n\n
    (?P<what>[^\n]+)\n\n
    \*\*Why:\*\*\ (?P<why>[^\n]+)\n\n
    ```\w+\n(?P<example>.+?)\n```\n\n
    \*\*When\ not\ to:\*\*\ (?P<when_not_to>[^\n]+)\n\n
    \*\*Source:\*\*\ <(?P<source>https://\S+)>$""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_LINK = re.compile(r"\[([^]]+)\]\((\S+?)\)")


def shown(parts: Mapping[str, str]) -> str:
    """Return an explanation as lines for a terminal."""
    texts = parts["what"], f"Why: {parts['why']}", f"When not to: {parts['when_not_to']}"
    what, why, when_not_to = (
        textwrap.fill(_LINK.sub(r"\1 (\2)", text), 100, break_long_words=False) for text in texts
    )
    example = textwrap.indent(parts["example"], "    ")
    return "\n".join([what, why, "Example:", example, when_not_to, f"Source: {parts['source']}"])


@functools.cache
def explanations() -> Mapping[str, Mapping[str, str]]:
    """Return the parts of each section by the ID; the example is code, the source a URL."""
    text = resources.files(__package__).joinpath("advice.md").read_text("utf-8")
    return {match["id"]: match.groupdict() for match in _SECTION.finditer(text)}
