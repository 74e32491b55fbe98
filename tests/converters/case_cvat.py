"""CVAT for images 1.1 by text, from its documentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from cases import CLASSES, Case, Picture

__all__ = ["CASES", "document", "image", "write_cvat"]


def image(picture: Picture, number: int, objects: str | None = None, more: str = "") -> str:
    """Return an image's element, with one box or these objects."""
    height, width = picture.pixels.shape[:2]
    if objects is None:
        objects = f"""
    <box label="{CLASSES[picture.label]}" source="manual" occluded="0" xtl="4.00" ytl="4.50"
         xbr="20.00" ybr="12.50" z_order="0">
      <attribute name="age">{number}</attribute>
    </box>"""
    start = f'<image id="{number}" name={quoteattr(picture.name + ".jpg")} {more}'
    start += f'width="{width}" height="{height}"'
    return f"  {start}>{objects}\n  </image>" if objects else f"  {start}/>"


def document(images: Sequence[str]) -> str:
    """Return a file."""
    labels = "".join(
        f"<label><name>{name}</name><color>#aabbcc</color><attributes><attribute>"
        "<name>age</name></attribute></attributes></label>"
        for name in CLASSES
    )
    body = "\n".join(images)
    return f"""<?xml version="1.0" encoding="utf-8"?>
<annotations>
  <version>1.1</version>
  <meta><task><id>4</id><name>bées</name><labels>{labels}</labels></task></meta>
{body}
</annotations>
"""


def write_cvat(
    folder: Path, pictures: Sequence[Picture], images: Sequence[str] | None = None
) -> Path:
    """Write annotations.xml and images."""
    (folder / "images").mkdir(parents=True)
    for p in pictures:
        (folder / f"images/{p.name}.jpg").write_bytes(p.data)
    written = [image(p, k) for k, p in enumerate(pictures)] if images is None else images
    (folder / "annotations.xml").write_text(document(written), encoding="utf-8")
    return folder


def subsets(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write a project of two subsets; return its XML file."""
    images = []
    for k, p in enumerate(pictures):
        subset = ("Train", "Validation")[2 * k >= len(pictures)]
        path = folder / f"images/{subset}/{p.name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(p.data)
        images.append(image(p, k, more=f'subset="{subset}" '))
    (folder / "annotations.xml").write_text(document(images), encoding="utf-8")
    return folder / "annotations.xml"


CASES = [
    Case("cvat", "cvat", write_cvat, labels=False),
    Case("cvat-subsets", "cvat", subsets, {"masks": "classes"}, labels=False),
]
