"""Recording what code of others does: files, image libraries, transforms of datasets.

`hooks_installed` puts a recorded function in the place of each, for as long as its block lasts:
``builtins.open`` and ``os.read``, those of `LIBRARY_FUNCTIONS`, and the transforms of a dataset and
of those inside of ``Subset``, ``ConcatDataset`` and their like.

Only libraries that are imported already are patched.  Names that other modules have imported by
``from cv2 import imread`` stay as they were.  Other threads go through the same functions,
unrecorded.
"""

from __future__ import annotations

import builtins
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from fastdata.profiling.recorder import Kind, Recorder

__all__ = ["TimedCall", "hooks_installed"]

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
"""Module, class in it, name, and kind of work."""

TRANSFORM_ATTRIBUTES = "transform", "target_transform", "transforms"
INNER_DATASET_ATTRIBUTES = "dataset", "datasets"

_MISSING = object()


class TimedCall:
    """A callable of the user's that is recorded; its attributes are those of the original."""

    def __init__(self, function: Callable[..., Any], kind: Kind, recorder: Recorder) -> None:
        self._function = function
        self._kind = kind
        self._recorder = recorder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if not recorder.records_here():
            return self._function(*args, **kwargs)
        return recorder.call(self._kind, self._function, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._function, name)


@contextmanager
def hooks_installed(recorder: Recorder, dataset: Any) -> Iterator[None]:
    """Record what libraries and the transforms of `dataset` do, inside of the block.

    At its end everything is put back, in the opposite order.  Only one such block may be active
    in a process.
    """
    with ExitStack() as undo:
        _patch(builtins, "open", "read", recorder, undo)
        _patch(os, "read", "read", recorder, undo)
        for module, owner, name, kind in LIBRARY_FUNCTIONS:
            holder: Any = sys.modules.get(module)
            if holder is not None and owner:
                holder = getattr(holder, owner, None)
            if holder is not None and hasattr(holder, name):
                _patch(holder, name, kind, recorder, undo)
        _wrap_transforms(dataset, recorder, undo, set())
        yield


def _patch(holder: Any, name: str, kind: Kind, recorder: Recorder, undo: ExitStack) -> None:
    function = getattr(holder, name)

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if not recorder.records_here() or (kind == "decode" and recorder.active[-1] != "sample"):
            # A conversion inside of a transform is part of the transform.
            return function(*args, **kwargs)
        return recorder.call(kind, function, *args, **kwargs)

    setattr(holder, name, timed)
    undo.callback(setattr, holder, name, function)


def _wrap_transforms(dataset: Any, recorder: Recorder, undo: ExitStack, seen: set[int]) -> None:
    """Record the transforms of a dataset and of those inside it."""
    if id(dataset) in seen:
        return
    seen.add(id(dataset))
    own = getattr(dataset, "__dict__", {})
    for name in TRANSFORM_ATTRIBUTES:
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
        undo.callback(_put_back, dataset, name, before)
    for name in INNER_DATASET_ATTRIBUTES:
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
