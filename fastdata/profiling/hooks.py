"""Taking the time of what others wrote: files, image libraries, transforms of datasets.

`installed` puts a timed function in the place of each, for as long as its block lasts:

=========  ==============================================================================
read       ``builtins.open``, ``os.read``
load       PIL's ``Image.open`` and ``load``; ``cv2.imread``; ``torchvision.io.read_image``
           and ``decode_image``
decode     PIL's ``convert``; ``cv2.imdecode``; ``torchvision.io.decode_jpeg`` and the like;
           ``simplejpeg.decode_jpeg``
augment    ``transform``, ``target_transform`` and ``transforms`` of a dataset, and of those
           inside of ``Subset``, ``ConcatDataset`` and their like; of packed data the
           pipeline of its transforms
=========  ==============================================================================

Of libraries only what is imported already is looked at.  Names that others have imported by
``from cv2 import imread`` are theirs, and stay as they were.  What other threads do goes
through the same functions, unrecorded.
"""

from __future__ import annotations

import builtins
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastdata.profiling.recorder import Kind, Recorder

__all__ = ["TimedCall", "installed"]

LIBRARY_FUNCTIONS: tuple[tuple[str, str, str, Kind], ...] = (
    ("PIL.Image", "", "open", "load"),
    ("PIL.ImageFile", "ImageFile", "load", "load"),
    ("PIL.Image", "Image", "convert", "decode"),
    ("cv2", "", "imread", "load"),
    ("cv2", "", "imdecode", "decode"),
    ("torchvision.io", "", "read_file", "read"),
    ("torchvision.io", "", "read_image", "load"),
    ("torchvision.io", "", "decode_image", "load"),
    ("torchvision.io", "", "decode_jpeg", "decode"),
    ("torchvision.io", "", "decode_png", "decode"),
    ("torchvision.io", "", "decode_webp", "decode"),
    ("torchvision.io", "", "decode_gif", "decode"),
    ("simplejpeg", "", "decode_jpeg", "decode"),
    ("fastdata.transforms.pipeline", "Pipeline", "run", "augment"),
)
"""Module, class in it, name, and what it does."""

TRANSFORMS = "transform", "target_transform", "transforms"
INNER = "dataset", "datasets"
"""Attributes by which datasets have others inside."""

_MISSING = object()


class TimedCall:
    """A callable of the user's that is recorded; everything else of it is as it was.

    Parameters
    ----------
    function : callable
    kind : Kind
    recorder : Recorder
    """

    def __init__(self, function: Callable[..., Any], kind: Kind, recorder: Recorder) -> None:
        self._function = function
        self._kind = kind
        self._recorder = recorder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if not recorder.inside():
            return self._function(*args, **kwargs)
        return recorder.call(self._kind, self._function, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._function, name)


@contextmanager
def installed(recorder: Recorder, dataset: Any) -> Iterator[None]:
    """Record what libraries and the transforms of `dataset` do, inside of the block.

    Everything is put back at its end, in the opposite order.  For one block at a time in a
    process.
    """
    undo: list[Callable[[], None]] = []
    try:
        _patch(builtins, "open", "read", recorder, undo)
        _patch(os, "read", "read", recorder, undo)
        for module, owner, name, kind in LIBRARY_FUNCTIONS:
            place: Any = sys.modules.get(module)
            if place is not None and owner:
                place = getattr(place, owner, None)
            if place is not None and hasattr(place, name):
                _patch(place, name, kind, recorder, undo)
        _wrap_transforms(dataset, recorder, undo, set())
        yield
    finally:
        for restore in reversed(undo):
            restore()


def _patch(
    place: Any, name: str, kind: Kind, recorder: Recorder, undo: list[Callable[[], None]]
) -> None:
    """Put a recorded function in the place of one."""
    function = getattr(place, name)

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if not recorder.inside() or (kind == "decode" and recorder.doing[-1] != "sample"):
            # A conversion inside of a transform is what the transform does.
            return function(*args, **kwargs)
        return recorder.call(kind, function, *args, **kwargs)

    setattr(place, name, timed)
    undo.append(lambda: setattr(place, name, function))


def _wrap_transforms(
    dataset: Any, recorder: Recorder, undo: list[Callable[[], None]], seen: set[int]
) -> None:
    """Record the transforms of a dataset and of those inside it."""
    if id(dataset) in seen:
        return
    seen.add(id(dataset))
    own = getattr(dataset, "__dict__", {})
    for name in TRANSFORMS:
        function = getattr(dataset, name, None)
        if not callable(function) or isinstance(function, TimedCall):
            continue
        if isinstance(getattr(type(dataset), name, None), property):
            continue  # as of packed data, whose pipeline is recorded instead
        before = own.get(name, _MISSING)
        try:
            setattr(dataset, name, TimedCall(function, "augment", recorder))
        except (AttributeError, TypeError):  # slots: it stays a part of the sample
            continue
        undo.append(functools.partial(_put_back, dataset, name, before))
    for name in INNER:
        inner = own.get(name)
        several = inner if isinstance(inner, (list, tuple)) else [inner]
        if isinstance(inner, dict):
            several = list(inner.values())
        for one in several:
            if hasattr(one, "__dict__") and not isinstance(one, type):
                _wrap_transforms(one, recorder, undo, seen)


def _put_back(dataset: Any, name: str, before: Any) -> None:
    if before is _MISSING:
        delattr(dataset, name)
    else:
        setattr(dataset, name, before)
