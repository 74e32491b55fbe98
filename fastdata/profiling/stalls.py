"""What a step does that makes a device wait: synchronisations, and large tensors from the host.

A GPU is fed by a host that is ahead of it.  ``loss.item()`` makes the host wait until the GPU has
done everything, and then the GPU wait for the host; so does whatever has a shape that depends on
values (``nonzero``, a boolean mask), and any copy to the host.  And what is made on the host
(``torch.randperm(n)`` without ``device=``) has to be copied.

Two modes of torch see all of it in one step: `TorchFunctionMode`, what the user called, and
`TorchDispatchMode`, what came of it.  On CUDA torch's own ``torch.cuda.set_sync_debug_mode``
is asked as well, for what they do not know.  On the CPU, where nothing waits, the same places
are reported as what would make a GPU wait.
"""

from __future__ import annotations

import linecache
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fastdata.prefetch.tree import leaves
from fastdata.profiling.report import Stall
from fastdata.profiling.where import boundary, user_line
from fastdata.steps import Step

__all__ = ["BLOCKING_COPY", "LARGE_BYTES", "find_stalls"]

LARGE_BYTES = 1 << 16
"""Less is copied in the time that any copy takes to begin: some 5 us at 12 GB/s."""

METHODS = {
    "item": ".item()",
    "tolist": ".tolist()",
    "cpu": ".cpu()",
    "numpy": ".numpy()",
    "__float__": "float()",
    "__int__": "int()",
    "__bool__": "bool()",
    "__index__": "int()",
    "__contains__": "in",
}
"""Methods of tensors that give the host a value."""

VALUE_SHAPED = {
    "nonzero": "nonzero",
    "masked_select": "masked_select",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique_consecutive",
    "bincount": "bincount",
    "equal": "torch.equal",
    "is_nonzero": "bool()",
}
"""Operations whose result has a size, or is a value, that the host has to know."""

BATCH = "the batch"

BLOCKING_COPY = "a copy without non_blocking=True"


@dataclass(frozen=True, slots=True)
class _Place:
    kind: str
    operation: str
    where: str


@boundary
def find_stalls(step: Step, batch: Any, device: torch.device | str) -> tuple[Stall, ...]:
    """Run one step, and return where it makes a device wait, the most frequent first.

    The step is really run, once (on CUDA twice): it trains as any other step does.

    Parameters
    ----------
    step : callable
    batch : batch
        As the step gets them.
    device : torch.device or str
        Where the step computes.  "cpu": whatever would make a GPU wait is reported, but for
        copies from and to it, of which there are none.

    Returns
    -------
    tuple of Stall
        Those of no line of the user's are left out.

    Raises
    ------
    Exception
        Whatever the step raises.

    Notes
    -----
    For one thread at a time, as warnings are everybody's.  What a step does in other threads is
    not seen; nor is a backward pass on a GPU, which has a thread of its own.

    Sources: "Extending PyTorch" (modes) and `torch.cuda.set_sync_debug_mode` in torch's
    documentation.
    """
    device = torch.device(device)
    found = _Found()
    calls = _Calls(found, device)
    with calls, _Operations(found, calls, device, batch):
        step(batch)
    if device.type == "cuda":
        with _synchronisations_warned(found):
            step(batch)
    stalls = [
        Stall(place.kind, place.operation, place.where, count, nbytes)  # type: ignore[arg-type]
        for place, (count, nbytes) in found.places.items()
    ]
    return tuple(sorted(stalls, key=lambda stall: (-stall.nbytes, -stall.count)))


class _Found:
    """Places, how often they were come by, and bytes."""

    def __init__(self) -> None:
        self.places: dict[_Place, tuple[int, int]] = {}

    def add(self, kind: str, operation: str, where: str, nbytes: int = 0) -> None:
        # `x.cpu().numpy()` is one copy.
        again = operation == ".numpy()" and _Place(kind, ".cpu()", where) in self.places
        if where and not again:
            place = _Place(kind, operation, where)
            count, before = self.places.get(place, (0, 0))
            self.places[place] = (count + 1, before + nbytes)


class _Calls(TorchFunctionMode):
    """What the user called: the outermost function of torch."""

    def __init__(self, found: _Found, device: torch.device) -> None:
        super().__init__()
        self.name = ""
        self._found = found
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        outermost, self.name = self.name, self.name or name
        try:
            # On the CPU these are no operations: nothing but the call tells.
            if not outermost and self._device.type == "cpu" and _to_host(name, args):
                _note(self._found, METHODS[name], self._device)
            return func(*args, **(kwargs or {}))
        finally:
            self.name = outermost


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What came of it: operations on tensors."""

    def __init__(self, found: _Found, calls: _Calls, device: torch.device, batch: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found
        self._calls = calls
        self._device = device
        # Where large tensors on the host come from: by the address of their memory.
        self._origins: dict[int, tuple[str, str]] = {}
        for leaf in leaves(batch):
            address = leaf.data_ptr() if isinstance(leaf, torch.Tensor) else leaf.ctypes.data
            self._origins[address] = (BATCH, "")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        self._look(name, args, kwargs, inputs)
        made = func(*args, **kwargs)
        if self._device.type != "cpu":
            self._follow(name, inputs, made)
        return made

    def _look(self, name: str, args: Any, kwargs: Any, inputs: list[torch.Tensor]) -> None:
        """Report an operation that synchronises or copies."""
        here = [t for t in inputs if t.device.type == self._device.type]
        called = self._calls.name
        if name == "_local_scalar_dense":
            # On the CPU `.tolist()` and `.cpu()` are known by their call.
            if here and not (self._device.type == "cpu" and called in ("tolist", "numpy")):
                _note(self._found, METHODS.get(called, ".item()"), self._device)
        elif name in VALUE_SHAPED and here:
            _note(self._found, VALUE_SHAPED[name], self._device)
        elif name == "repeat_interleave" and here and kwargs.get("output_size") is None:
            _note(self._found, "repeat_interleave", self._device)
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_") and here:
            chosen = [i for i in args[1] if isinstance(i, torch.Tensor)]
            masks = [i for i in chosen if i.dtype in (torch.bool, torch.uint8)]
            if masks and not _fills(args, kwargs, len(masks) == len(chosen) == 1):
                _note(self._found, "a boolean mask", self._device)
        elif name in ("_to_copy", "copy_") and self._device.type != "cpu":
            self._copied(name, args, kwargs)

    def _copied(self, name: str, args: Any, kwargs: Any) -> None:
        """Report a copy between the host and the device."""
        if name == "copy_":
            target, source = args[0].device, args[1]
        else:
            source = args[0]
            target = kwargs.get("device") or source.device
        if source.device.type == self._device.type and target.type == "cpu":
            called = self._calls.name
            _note(self._found, METHODS.get(called, f".{called}() to the CPU"), self._device)
        elif source.device.type == "cpu" and target.type == self._device.type:
            nbytes = source.nbytes
            if nbytes < LARGE_BYTES:
                return
            operation, where = self._origins.get(
                source.untyped_storage().data_ptr(), self._origins.get(source.data_ptr(), ("", ""))
            )
            if operation != BATCH:
                where = where or user_line(_caller())
                self._found.add("host tensor", operation or "a tensor on the host", where, nbytes)

    def _follow(self, name: str, inputs: list[torch.Tensor], made: Any) -> None:
        """Remember where a large tensor on the host comes from."""
        outputs = [
            t
            for t in tree_leaves(made)
            if isinstance(t, torch.Tensor) and t.device.type == "cpu" and t.nbytes >= LARGE_BYTES
        ]
        if not outputs:
            return
        origin = None
        for tensor in inputs:
            if tensor.device.type == "cpu":
                known = self._origins.get(tensor.untyped_storage().data_ptr())
                known = known or self._origins.get(tensor.data_ptr())
                # What is made of the batch in any way is the batch's.
                if known is not None and (origin is None or known[0] == BATCH):
                    origin = known
        if origin is None:
            where = user_line(_caller())
            origin = (_factory(self._calls.name or name, where), where)
        for tensor in outputs:
            self._origins[tensor.untyped_storage().data_ptr()] = origin


def _fills(args: Any, kwargs: Any, one_mask: bool) -> bool:
    """Return whether ``x[mask] = number`` is meant, which torch does by `masked_fill_`.

    That waits for nothing (``canDispatchToMaskedFill`` in TensorAdvancedIndexing.cpp).
    """
    value = args[2] if len(args) > 2 else None
    adds = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if not isinstance(value, torch.Tensor) or adds or not one_mask:
        return False
    return value.numel() == 1 and value.device.type == "cpu"


def _to_host(name: str, args: Any) -> bool:
    """Return whether a method copies a tensor to the host, if it were on a device."""
    return name in ("cpu", "numpy", "tolist") and bool(args) and isinstance(args[0], torch.Tensor)


def _note(found: _Found, operation: str, device: torch.device) -> None:
    frame = _caller()
    # torch's optimisers keep their step counts on the host, wherever the weights are.
    if device.type == "cpu" and _inside(frame, f"{_TORCH}/optim/"):
        return
    where = user_line(frame)
    if operation == ".item()":
        operation = _as_written(where)
    found.add("synchronisation", operation, where)


_TORCH = torch.__path__[0]


def _caller() -> FrameType | None:
    return sys._getframe(2)


def _inside(frame: FrameType | None, folder: str) -> bool:
    """Return whether a function of a folder is on the stack."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(folder):
            return True
        frame = frame.f_back
    return False


def _factory(name: str, where: str) -> str:
    """Return what made a tensor."""
    if name != "lift_fresh":  # what torch does to arrays and lists, when they have become tensors
        return f"torch.{name}"
    text = _text(where)
    made = (f"torch.{n}" for n in ("from_numpy", "as_tensor", "tensor") if f"{n}(" in text)
    return next(made, "a tensor on the host")


def _text(where: str) -> str:
    file, _, line = where.partition(" ")[0].rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdigit() else ""


def _as_written(where: str) -> str:
    """Return how a value was asked for, as far as the line tells."""
    text = _text(where)
    for written, name in (("item(", ".item()"), ("float(", "float()"), ("int(", "int()")):
        if written in text:
            return name
    if "bool(" in text or text.startswith(("if ", "while ", "assert ", "elif ")):
        return "bool()"
    return ".item()"


@contextmanager
def _synchronisations_warned(found: _Found) -> Iterator[None]:
    """Have torch warn of synchronisations inside the block, and report those not known yet."""
    before = torch.cuda.get_sync_debug_mode()
    show: Callable[..., None] = warnings.showwarning
    seen: list[str] = []

    def note(message: Any, category: Any, *others: Any, **options: Any) -> None:
        if "synchroniz" not in str(message):
            show(message, category, *others, **options)
            return
        seen.append(user_line(sys._getframe(1)))

    known = {p.where for p in found.places if p.kind == "synchronisation"}
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for where in seen:
        if where not in known:
            found.add("synchronisation", _warned_of(where), where)


def _warned_of(where: str) -> str:
    """Return what torch warned of, as far as the line tells: copies that block are, too."""
    text = _text(where)
    copies = any(word in text for word in (".to(", ".cuda(", ".copy_("))
    return BLOCKING_COPY if copies else "a synchronising operation"
