"""Planned geometry in DALI's words: what its graph is like, and the numbers it is fed.

`Geometry` and a DALI graph are of the same make, steps for all images with numbers for
each, so one is translated to the other step by step: a window is a slice, padded with
zero, and a resize a resize.  Two things are done with less than a step:

- The first window: its `region` is all that is read of an image, so only the offset of
  what was read has to be taken off.
- A flip behind a resize: a region of interest that runs backwards costs nothing, a flip
  one more pass over all pixels.  Not where the nearest neighbour is taken: a centre between
  two pixels would fall to the other one.

A resize without `antialias` told is antialiased where the CPU would do it.  That is one
number a sample too, so the pixels of a sample never depend on the rest of its batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.transforms.geometry import Geometry, Interpolation, Ints, Windows
from fastdata.transforms.render import antialiases

__all__ = ["Arguments", "FieldGraph", "Resize", "Slice", "arguments_of", "regions_of", "steps_of"]

Arguments: TypeAlias = dict[str, Any]
"""What a graph is fed, by the name of the input: an array, or a list of one a sample."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Take a rectangle, zero beyond the image.  Fed: ``start``, ``shape``."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Resize.  Fed: ``size``; ``from`` and ``to`` if `mirrors`; ``smooth`` if `antialias` is None.

    Attributes
    ----------
    interpolation : {"bilinear", "bicubic", "nearest"}
    antialias : bool or None
        None: as told for each sample.
    mirrors : bool
        Whether some images are mirrored on the way.
    """

    interpolation: Interpolation
    antialias: bool | None
    mirrors: bool = False


@dataclass(frozen=True, slots=True)
class FieldGraph:
    """What happens to the images of one field.

    Attributes
    ----------
    channels : {3, 1}
    encoded : bool
        Whether files are fed, or pixels.
    steps : tuple of Slice or Resize
    flips : bool
        Whether some images are mirrored at the end, by a step of its own.
    """

    channels: int
    encoded: bool
    steps: tuple[Slice | Resize, ...] = ()
    flips: bool = False


def steps_of(geometry: Geometry | None, *, mask: bool) -> tuple[tuple[Slice | Resize, ...], bool]:
    """Return the steps of a graph, and whether it flips at the end."""
    if geometry is None:
        return (), False
    steps: list[Slice | Resize] = []
    for step in geometry.steps:
        if isinstance(step, Windows):
            steps.append(Slice())
        elif mask or step.interpolation == "nearest":
            steps.append(Resize("nearest", False))
        else:
            steps.append(Resize(step.interpolation, step.antialias))
    last = steps[-1] if steps else None
    flips = bool(geometry.flip.any())
    if flips and isinstance(last, Resize) and last.interpolation != "nearest":
        steps[-1] = Resize(last.interpolation, last.antialias, mirrors=True)
        flips = False
    return tuple(steps), flips


def regions_of(geometry: Geometry | None) -> tuple[Ints, Ints, Ints, Ints] | None:
    """Return what is to be read of each image, (top, left, height, width); None: all of it."""
    if geometry is None or not geometry.steps or not isinstance(geometry.steps[0], Windows):
        return None
    return geometry.region


def arguments_of(
    geometry: Geometry, graph: FieldGraph, prefix: str, top: Ints, left: Ints
) -> Arguments:
    """Return the numbers that the graph of a field is fed.

    Parameters
    ----------
    geometry : Geometry
        Of n images.
    graph : FieldGraph
        With the steps of this geometry.
    prefix : str
        Of the names of inputs; the number of the step follows, then the name.
    top, left : ndarray of int64, shape [n]
        Where in each image the first pixel lies that is decoded.
    """
    found: Arguments = {}
    height, width = geometry.source_height, geometry.source_width
    for number, (step, kind) in enumerate(zip(geometry.steps, graph.steps, strict=True)):
        name = f"{prefix}{number}."
        if isinstance(step, Windows):
            start = step.top, step.left
            if number == 0:
                start = step.top - top, step.left - left
            found[name + "start"] = _pairs(*start, np.int32)
            found[name + "shape"] = _pairs(step.height, step.width, np.int32)
        else:
            assert isinstance(kind, Resize), "a graph has the steps of the geometry"
            found[name + "size"] = _pairs(step.height, step.width, np.float32)
            if kind.mirrors:
                zero = np.zeros_like(width)
                first, last = np.where(geometry.flip, (width, zero), (zero, width))
                found[name + "from"] = _pairs(zero, first, np.float32)
                found[name + "to"] = _pairs(height, last, np.float32)
            if kind.antialias is None:
                found[name + "smooth"] = antialiases(height, width, step.height, step.width)
        height, width = step.height, step.width
    if graph.flips:
        found[prefix + "flip"] = geometry.flip.astype(np.int32)
    return found


def _pairs(rows: Ints, columns: Ints, dtype: Any) -> NDArray[Any]:
    return np.stack([rows, columns], axis=1).astype(dtype)
