"""A real browser without a window, to look at HTML pages in: Chromium, where it is installed."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Browser", "browser_or_skip", "find_browser"]

NAMES = ("chromium", "chromium-browser", "google-chrome")

# Writes what a test wants to know of a page into its end.
MEASURE = """<script>
const box = element => { const r = element.getBoundingClientRect();
  return {left: r.left, right: r.right, top: r.top, bottom: r.bottom, width: r.width}; };
const bars = element => [...element.querySelectorAll(".bar")].map(bar => {
  const rects = [...bar.querySelectorAll("rect")].map(box);
  return rects[1].width / rects[0].width; });
const found = {
  inner: innerWidth,
  scroll: document.documentElement.scrollWidth,
  sticking_out: [...document.body.querySelectorAll("*")]
    .filter(e => box(e).width > 0 && (box(e).right > innerWidth + 0.5 || box(e).left < -0.5))
    .map(e => e.outerHTML.slice(0, 200)),
  clipped: [...document.querySelectorAll("td, th, dd, dt, li, h1, p, .row > span")]
    .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.outerHTML.slice(0, 200)),
  verdict: document.getElementById("verdict").innerText,
  verdict_height: box(document.getElementById("verdict")).bottom,
  rates: [...document.querySelectorAll("section[aria-labelledby=rates] tbody tr")].map(bars),
  stages: [...document.querySelectorAll("tr.bars")].map(bars),
  stage_bars: [...document.querySelectorAll("tr.bars")].map(
    row => box(row.querySelector(".bar")).width),
  times: [...document.querySelectorAll("section[aria-labelledby=times] tbody tr")].map(bars),
  rows: [...document.querySelectorAll("svg.stretches")].map(svg => {
    const [track, ...rects] = [...svg.querySelectorAll("rect")].map(box);
    return rects.map(r => [(r.left - track.left) / track.width, r.width / track.width]); }),
  ticks: [...document.querySelectorAll("svg.scale text")].map(box),
  images: [...document.images].map(i => [i.naturalWidth, i.naturalHeight, box(i).width]),
  marks: [...document.querySelectorAll(".picture svg rect")].map(r => {
    const p = box(r.closest(".picture").querySelector("img")), m = box(r);
    return [(m.left - p.left) / p.width, m.width / p.width]; }),
  columns: [...document.querySelectorAll(".chart svg")].map(
    svg => [...svg.querySelectorAll("rect")].map(r => box(r).bottom - box(r).top)),
  paper: getComputedStyle(document.body).backgroundColor,
};
const place = document.createElement("pre");
place.id = "measures";
place.textContent = JSON.stringify(found);
document.body.append(place);
</script>"""

# A window is 500 pixels wide or more; a frame may be as narrow as a phone.  It has the origin of
# what is around it, which takes its measures.
FRAME = """<!DOCTYPE html><html><head><meta charset="utf-8">
<meta name="color-scheme" content="light dark"></head><body style="margin: 0">
{frames}
<script>onload = () => document.querySelectorAll("iframe").forEach(frame =>
  document.body.append(document.adoptNode(frame.contentDocument.getElementById("measures"))));
</script></body></html>"""

IFRAME = '<iframe style="border: 0; width: {width}px; height: 2000px" srcdoc="{page}"></iframe>'

POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


def find_browser() -> str | None:
    """Return the program, None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """Starts a new one for each page, with a profile of its own."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program = program
        self.folder = folder

    def __call__(self, page: Path, *options: str) -> tuple[str, list[str]]:
        """Open a page; return its DOM as it then is, and what was written to the console."""
        command = [
            self.program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            "--enable-logging=stderr",
            f"--user-data-dir={self.folder / 'profile'}",
            "--window-size=1280,2000",
            *options,
            "--dump-dom",
            page.as_uri(),
        ]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            # Not the user's own settings, or a session bus.
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "LANG": "C.UTF-8"},
            start_new_session=True,
        ) as process:
            try:
                dom, said = process.communicate(timeout=90)
            finally:
                # It is a dozen processes; one that hangs leaves none of them behind.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, said[-2000:]
        return dom, [line for line in said.splitlines() if "CONSOLE" in line]

    def measure(self, *pages: tuple[str, int], options: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return what `MEASURE` finds in copies of pages, which may run it.

        Parameters
        ----------
        *pages : (str, int)
            HTML, and how wide it is shown; all at once.
        options : sequence of str
            For the browser.
        """
        frames = []
        for content, width in pages:
            assert content.count("</body>") == 1
            content, policies = POLICY.subn("", content)
            assert policies == 1
            inner = html.escape(content.replace("</body>", f"{MEASURE}</body>"))
            frames.append(IFRAME.format(width=width, page=inner))
        copy = self.folder / "measured.html"
        copy.write_text(FRAME.replace("{frames}", "\n".join(frames)), encoding="utf-8")
        dom, _ = self(copy, *options)
        found = re.findall(r'<pre id="measures">(.*?)</pre>', dom, re.S)
        assert len(found) == len(pages), dom[-2000:]
        return [json.loads(html.unescape(measures)) for measures in found]


def browser_or_skip(folder: Path) -> Browser:
    """Return a browser; without one skip."""
    program = find_browser()
    if program is None:
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} is here")
    return Browser(program, folder)
