"""Links that leave ``docs/`` work in the site as they do where the repository is browsed.

A page may link to any file of the repository (``../README.md``, ``../fastdata/native/jpeg.c``).
Each such file becomes a page under ``repository/``: Markdown as it is, anything else as a
listing.  The links are changed to point there, and MkDocs checks them as all others.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
FOLDER = "repository"

_FENCE = re.compile(r"^(`{3,}).*?^\1`*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)(\]\()(?![a-z]+:|#)([^)\s#]+)((?:#[^)\s]*)?\))")
_CODE_WITH_PIPE = re.compile(r"(?<!`)`([^`\n]*\\\|[^`\n]*)`")
_HIDDEN = "---\nsearch:\n  exclude: true\n---\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside of ``docs/`` that a page links to."""
    waiting = [DOCS / file.src_uri for file in files.documentation_pages()]
    while waiting:
        source = waiting.pop()
        for path in _targets(source):
            uri = _uri(path)
            if uri.startswith(f"{FOLDER}/") and files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, content=_content(path)))
                if path.suffix == ".md":
                    waiting.append(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change a page's links to where their targets are in the site."""
    uri = page.file.src_uri
    source = REPOSITORY / uri.removeprefix(f"{FOLDER}/") if uri.startswith(FOLDER) else DOCS / uri

    def changed(link: re.Match[str]) -> str:
        path = _target(source, link[2])
        if path is None:
            return link[0]  # MkDocs tells of it
        return link[1] + os.path.relpath(_uri(path), os.path.dirname(uri) or ".") + link[3]

    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(changed, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    text = "".join([*parts, _LINK.sub(changed, markdown[end:])])
    # In tables GitHub takes a pipe behind a backslash for one in code too; Markdown shows both.
    return _CODE_WITH_PIPE.sub(lambda m: f"<code>{m[1]}</code>".replace("\\|", "&#124;"), text)


def _targets(source: Path) -> list[Path]:
    text = _FENCE.sub("", source.read_text(encoding="utf-8"))
    found = (_target(source, link[2]) for link in _LINK.finditer(text))
    return [path for path in found if path is not None]


def _target(source: Path, link: str) -> Path | None:
    """Return the file of the repository that a link of `source` is to, if there is one."""
    path = Path(os.path.normpath(source.parent / link))
    if path.is_dir():
        path = path / "README.md"
    return path if path.is_file() and path.is_relative_to(REPOSITORY) else None


def _uri(path: Path) -> str:
    """Return the place of a file of the repository among the site's sources."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    uri = path.relative_to(REPOSITORY).as_posix()
    return f"{FOLDER}/{uri}" if path.suffix == ".md" else f"{FOLDER}/{uri}.md"


def _content(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    name = path.relative_to(REPOSITORY)
    language = {"": "bash", ".c": "c", ".h": "c"}.get(path.suffix, path.suffix[1:])
    return f"{_HIDDEN}# {name}\n\n~~~~~~{language}\n{text}~~~~~~\n"
