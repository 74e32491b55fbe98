"""Count the product's Python: files, lines, and lines of code, room by room.

    python scripts/count_lines.py                     # the rooms of fastdata/ and converters/
    python scripts/count_lines.py --depth 3
    python scripts/count_lines.py --root ../another/checkout

A line of code has a token that is neither a comment nor a docstring.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

TREES = ("fastdata", "converters")
LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def docstring_lines(text: str) -> set[int]:
    """Return the numbers of the lines that expressions of a lone string take."""
    return {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def code_lines(text: str) -> int:
    """Return how many lines have code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(text))


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--depth", type=int, default=2, help="of the folders that are told apart")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    given = parser.parse_args()

    counts: dict[str, Counter[str]] = {}
    for path in sorted(path for tree in TREES for path in (given.root / tree).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        room = "/".join(path.relative_to(given.root).parent.parts[: given.depth])
        one = {"files": 1, "lines": text.count("\n"), "code": code_lines(text)}
        for name in (room, "altogether"):
            counts.setdefault(name, Counter()).update(one)
    print("| room | files | lines | code |\n|---|--:|--:|--:|")
    for room, count in sorted(counts.items()):
        print(f"| {room} | {count['files']:,} | {count['lines']:,} | {count['code']:,} |")


if __name__ == "__main__":
    main()
