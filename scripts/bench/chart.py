"""README's picture: a bar for each contender's images per second, as SVG.

Light and dark colours follow the reader's preference.  It has a background of its own, so that it
can be read where the page's colours do not follow.
"""

from __future__ import annotations

from html import escape

from cells import whole
from load_tables import FASTDATA, cores, cpu, date, of_readme, short
from results import Measured

WIDTH, ROW, TOP, MARGIN = 760, 34, 70, 24
NAMES, VALUES = 210, 70
"""Widths of the names left of the bars, and of the figures right of them."""

STYLE = """
  text { font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 }
  .note { font-size: 12px; fill: #59636e }
  .back { fill: #ffffff; stroke: #d1d9e0 }
  .bar { fill: #b7bfca }
  .own { fill: #3f51b5 }
  .strong { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .note { fill: #9198a1 }
    .back { fill: #0d1117; stroke: #3d444d }
    .bar { fill: #59636e }
    .own { fill: #8c9eff }
  }
"""


def svg(found: Measured) -> str:
    """Return the picture of README's contenders, the fastest first."""
    figures = of_readme(found)
    names = sorted(figures, key=lambda name: -figures[name]["median"])
    scale = (WIDTH - 2 * MARGIN - NAMES - VALUES) / figures[names[0]]["median"]
    height = TOP + ROW * len(names) + 40
    title = "Images per second, JPEG to random crops of 224 px"
    where = f"{cores(found)} shared cores, {cpu(found)}, {date(found)}. Longer is faster."
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-labelledby="title">',
        f'<title id="title">{title}</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        f'<text class="title" x="{MARGIN}" y="38">{title}</text>',
    ]
    for row, name in enumerate(names):
        middle = TOP + ROW * row + ROW // 2
        width = round(figures[name]["median"] * scale, 1)
        own, strong = (" own", ' class="strong"') if name == FASTDATA else ("", "")
        left, below = MARGIN + NAMES, middle + 5
        text = escape(short(found, name))
        bar = f'x="{left}" y="{middle - 11}" width="{width}" height="22" rx="3"'
        text = escape(short(found, name))
        lines += [
            f'<text{strong} x="{left - 10}" y="{below}" text-anchor="end">{text}</text>',
            f'<rect class="bar{own}" {bar}/>',
            f'<text{strong} x="{left + width + 8}" y="{below}">{whole(figures[name])}</text>',
        ]
    lines += [f'<text class="note" x="{MARGIN}" y="{height - 20}">{escape(where)}</text>', "</svg>"]
    return "\n".join(lines) + "\n"
