"""Explanations of advice: the text of ``advice.md``, which is a page of the documentation, too."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

__all__ = ["Explanation", "explanations"]

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


@dataclass(frozen=True, slots=True)
class Explanation:
    """The parts of a section; `example` is code, `source` a URL."""

    id: str
    what: str
    why: str
    example: str
    when_not_to: str
    source: str

    def __str__(self) -> str:
        parts = f"Why: {self.why}", f"When not to: {self.when_not_to}"
        what, why, when_not_to = (
            textwrap.fill(_LINK.sub(r"\1 (\2)", part), 100, break_long_words=False)
            for part in (self.what, *parts)
        )
        example = textwrap.indent(self.example, "    ")
        return "\n".join([what, why, "Example:", example, when_not_to, f"Source: {self.source}"])


@functools.cache
def explanations() -> Mapping[str, Explanation]:
    """Return the explanation of each piece of advice by its ID."""
    text = resources.files(__package__).joinpath("advice.md").read_text("utf-8")
    found = (Explanation(**match.groupdict()) for match in _SECTION.finditer(text))
    return {one.id: one for one in found}
