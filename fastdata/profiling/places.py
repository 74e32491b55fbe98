"""Places in a step where it makes a device wait: what was found there, and whose line it is."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from types import FrameType

import torch

from fastdata.profiling.where import user_line

__all__ = ["Place", "Places", "caller", "note", "text_of"]


@dataclass(frozen=True, slots=True)
class Place:
    """What is done, of which kind, at which line of the user's."""

    kind: str
    operation: str
    where: str


class Places:
    """Places, how often they were come by, and bytes."""

    def __init__(self) -> None:
        self.places: dict[Place, tuple[int, int]] = {}

    def add(self, kind: str, operation: str, where: str, nbytes: int = 0) -> None:
        """Count a place; none without a line of the user's."""
        # `x.cpu().numpy()` is one copy.
        again = operation == ".numpy()" and Place(kind, ".cpu()", where) in self.places
        if where and not again:
            place = Place(kind, operation, where)
            count, before = self.places.get(place, (0, 0))
            self.places[place] = (count + 1, before + nbytes)


def note(found: Places, operation: str, device: torch.device) -> None:
    """Count a synchronisation of the code that is running; not one of torch's optimisers' own."""
    frame = caller()
    # torch's optimisers keep their step counts on the host, wherever the weights are.
    if device.type == "cpu" and is_inside(frame, f"{_TORCH}/optim/"):
        return
    where = user_line(frame)
    if operation == ".item()":
        operation = _as_written(where)
    found.add("synchronisation", operation, where)


_TORCH = torch.__path__[0]


def caller() -> FrameType | None:
    """Return the frame that called the function that asks."""
    return sys._getframe(2)


def is_inside(frame: FrameType | None, folder: str) -> bool:
    """Return whether a function of a folder is on the stack."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(folder):
            return True
        frame = frame.f_back
    return False


def text_of(where: str) -> str:
    """Return the source of a ``FILE:LINE function``; "" where it cannot be read."""
    file, _, line = where.partition(" ")[0].rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdigit() else ""


def _as_written(where: str) -> str:
    """Return how a value was asked for, as far as the line tells."""
    text = text_of(where)
    for written, name in (("item(", ".item()"), ("float(", "float()"), ("int(", "int()")):
        if written in text:
            return name
    if "bool(" in text or text.startswith(("if ", "while ", "assert ", "elif ")):
        return "bool()"
    return ".item()"
