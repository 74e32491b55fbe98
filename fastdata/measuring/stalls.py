"""What a step does that makes a device wait: synchronisations, and large tensors from the host.

A GPU is fed by a host that is ahead of it.  ``loss.item()`` makes the host wait until the GPU has
done everything, and then the GPU wait for the host.  So does every operation whose shape depends
on values (``nonzero``, a boolean mask), and any copy to the host.  A tensor that is made on the
host (``torch.randperm(n)`` without ``device=``) has to be copied.

Two modes of torch see one step: `TorchFunctionMode` sees what the user called, and
`TorchDispatchMode` the operations that came of it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import walk_stack
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from fastdata.measuring.lines import boundary, direct_line, source_of, user_line
from fastdata.prefetch.tree import leaves
from fastdata.steps import Step

__all__ = [
    "BLOCKING_COPY",
    "COPIED_ARRAY",
    "LARGE_BYTES",
    "Stall",
    "StallCounter",
    "find_stalls",
    "is_copy_to_device",
    "stall_modes",
    "synchronisations_warned",
]

LARGE_BYTES = 1 << 16
"""Less is copied in the time that any copy takes to begin: some 5 us at 12 GB/s."""

BLOCKING_COPY = "a copy without non_blocking=True"

COPIED_ARRAY = "torch.tensor(array)"

VALUE_METHODS = {
    "item": ".item()",
    "tolist": ".tolist()",
    "cpu": ".cpu()",
    "numpy": ".numpy()",
    "__float__": "float()",
    "__int__": "int()",
    "__bool__": "bool()",
    "__index__": "int()",
    "__contains__": "in",
    "__repr__": "print()",
}
"""Methods of tensors that give the host a value."""

_ONLY_CALLS = {True: ("cpu", "numpy", "tolist", "__repr__"), False: ("__repr__",)}
"""Methods that show no operation, only a call: on the CPU, and on another device."""

VALUE_SHAPED = {
    **{name: name for name in ("nonzero", "masked_select", "unique_consecutive", "bincount")},
    **{"repeat_interleave": "repeat_interleave", "_unique2": "unique", "unique_dim": "unique"},
    **{"equal": "torch.equal", "is_nonzero": "bool()"},
}
"""Operations whose result has a size, or is a value, that the host has to know."""

FACTORIES = (
    *("rand", "randn", "randint", "randperm", "normal", "zeros", "ones", "empty", "full"),
    *("arange", "linspace", "eye", "tensor"),
)
"""Functions that make a tensor on the host, unless they are given a device."""

Kind: TypeAlias = Literal["synchronisation", "host tensor"]

_BATCH = "the batch", ""
_TORCH_OPTIMISERS = f"{torch.__path__[0]}/optim/"


@dataclass(frozen=True, slots=True)
class Stall:
    """A place in the step where the device has to wait for the host."""

    kind: Kind
    operation: str  # ".item()", "nonzero", "torch.randperm"...
    where: str  # "FILE:LINE function" of the user's code
    count: int = 1  # times a step
    nbytes: int = 0  # copied a step; 0 for a synchronisation


@boundary
def find_stalls(step: Step, batch: Any, device: torch.device | str) -> tuple[Stall, ...]:
    """Run one step, and return where it makes a device wait, the most bytes first.

    The step really trains, once; on CUDA twice, as `torch.cuda.set_sync_debug_mode` sees what the
    modes do not know.  With "cpu" as the device, whatever would make a GPU wait is reported, except
    copies.  Stalls outside the user's code are left out, and what other threads do: the backward
    pass on a GPU, say.  For one thread at a time, as warnings are global.
    """
    device = torch.device(device)
    counter = StallCounter(device)
    with stall_modes(counter, batch):
        step(batch)
    if device.type == "cuda":
        with synchronisations_warned(counter):
            step(batch)
    return counter.stalls()


@contextmanager
def stall_modes(
    counter: StallCounter, batch: Any = (), *, only_moved: bool = False
) -> Iterator[None]:
    """Count stalls of what this thread does inside the block; `batch` is what a step is given.

    On the CPU every tensor might be on a GPU; with `only_moved` only those are taken for it that
    were moved by ``.to(...)`` or ``.cuda()``, that belong to a graph, and what was made of them.
    Then tensors of the host are also counted if they are small, and arrays that are copied.
    """
    calls = _Calls(counter, batch, only_moved=only_moved)
    with calls, _Operations(counter, calls):
        yield


class StallCounter:
    """Counts stalls by kind, operation and the user's line."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._found: dict[tuple[Kind, str, str], tuple[int, int]] = {}

    def add(self, kind: Kind, operation: str, line: str, nbytes: int = 0) -> None:
        """Count a stall, unless no line of the user's is on the stack."""
        # `x.cpu().numpy()` is one copy.
        again = operation == ".numpy()" and (kind, ".cpu()", line) in self._found
        if line and not again:
            count, before = self._found.get((kind, operation, line), (0, 0))
            self._found[kind, operation, line] = (count + 1, before + nbytes)

    def synchronisation(self, operation: str) -> None:
        """Count a synchronisation of the code that is running."""
        frame = sys._getframe(1)
        # torch's optimisers keep their step counts on the host, wherever the weights are.
        if self.device.type == "cpu" and any(
            one.f_code.co_filename.startswith(_TORCH_OPTIMISERS) for one, _ in walk_stack(frame)
        ):
            return
        line = user_line(frame)
        operation = _as_written(line) if operation == ".item()" else operation
        self.add("synchronisation", operation, line)

    def stalls(self) -> tuple[Stall, ...]:
        """Return what was counted, the most bytes and then the most frequent first."""
        stalls = [Stall(*key, count, nbytes) for key, (count, nbytes) in self._found.items()]
        return tuple(sorted(stalls, key=lambda stall: (-stall.nbytes, -stall.count)))


def _as_written(line: str) -> str:
    """Return by which call a value is requested, as far as the source text shows."""
    text = source_of(line)
    for written, name in (("item(", ".item()"), ("float(", "float()"), ("int(", "int()")):
        if written in text:
            return name
    if "bool(" in text or text.startswith(("if ", "while ", "assert ", "elif ")):
        return "bool()"
    return ".item()"


class _Calls(TorchFunctionMode):
    """Sees what the user called, and follows tensors of the device and those made on the host.

    `name` is the function of torch under way, and `counts` says whether it is called on what would
    be on a device.
    """

    def __init__(self, counter: StallCounter, batch: Any, *, only_moved: bool) -> None:
        super().__init__()
        self.name, self.counts = "", True
        self._counter, self._only_moved = counter, only_moved
        self._on_cpu = counter.device.type == "cpu"
        self._moved: Any = WeakIdKeyDictionary()
        self._made: Any = WeakIdKeyDictionary()
        """Function and line that made a tensor of the host."""
        given = leaves(batch)
        self._made.update((leaf, _BATCH) for leaf in given if isinstance(leaf, torch.Tensor))
        self._arrays = {leaf.ctypes.data for leaf in given if isinstance(leaf, np.ndarray)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.name = getattr(func, "__name__", "")
        given = _tensors((args, kwargs))
        on_device = self.name in ("to", "cuda") or any(map(self._is_on_device, given))
        self.counts = on_device or not (self._on_cpu and self._only_moved)
        try:
            if on_device and self.name in _ONLY_CALLS[self._on_cpu]:
                self._counter.synchronisation(VALUE_METHODS[self.name])
            result = func(*args, **kwargs)
            if self._only_moved or not self._on_cpu:
                self._report_copied(args, kwargs, result)
                if on_device and self._on_cpu:  # what is made of a tensor there is there
                    self._moved.update((leaf, True) for leaf in _tensors(result))
                else:
                    self._remember_made(args, kwargs, given, result)
        finally:
            self.name, self.counts = "", True
        return result

    def _is_on_device(self, tensor: torch.Tensor) -> bool:
        if not self._on_cpu:
            return tensor.device.type == self._counter.device.type
        return not self._only_moved or tensor.requires_grad or tensor in self._moved

    def _report_copied(self, args: Any, kwargs: Any, result: Any) -> None:
        """Report tensors of the host that a call copies; an index of a tensor there is copied too.

        With `only_moved`, the same function of the user's has to make and move it: others may move
        what a loader made.
        """
        copied: Any = ()
        if is_copy_to_device(self.name, args, kwargs):
            copied = args[:1] if result.device.type == self._counter.device.type else ()
        elif self.name in ("copy_", "__getitem__") and self._is_on_device(args[0]):
            copied = args[1:], kwargs
        for one in _tensors(copied):
            here = user_line(sys._getframe())
            operation, line = self._made.get(one, ("", ""))
            if self._only_moved:
                counts = operation and line.partition(" ")[2] == here.partition(" ")[2]
            else:
                counts = operation != _BATCH[0] and one.nbytes >= LARGE_BYTES
            if counts and one.device.type == "cpu":
                operation = operation or "a tensor on the host"
                self._counter.add("host tensor", operation, line or here, one.nbytes)

    def _remember_made(self, args: Any, kwargs: Any, given: Any, result: Any) -> None:
        """Remember what made tensors on the host; report copies of arrays and Python values."""
        name, device = self.name, kwargs.get("device")
        made = [leaf for leaf in _tensors(result) if leaf.device.type == "cpu"]
        origins = [self._made.get(one) for one in given]
        origin = next(filter(None, origins), None)
        if _BATCH in origins or (self._arrays and self._arrays & {one.data_ptr() for one in made}):
            origin, made = _BATCH, made or given[:1]  # whatever is made of it counts as the batch
        elif not self._only_moved:
            if origin is None and any(one.nbytes >= LARGE_BYTES for one in made):
                line = user_line(sys._getframe())
                origin = _factory(name, line), line
        elif name == "__setitem__" or (name.endswith("_") and None in origins):
            self._made.pop(given[0], None)  # its values come from elsewhere
            return
        elif name in FACTORIES:
            if name == "tensor" and self._is_array(result, args, kwargs):
                return
            # A loader may make some too, as `default_collate` does with numbers.
            line = direct_line(sys._getframe()) if device is None and None not in origins else ""
            origin = (f"torch.{name}", line) if line else None
        elif None in origins:
            return
        if origin is not None:
            self._made.update((one, origin) for one in made)

    def _is_array(self, result: torch.Tensor, args: Any, kwargs: Any) -> bool:
        """Return whether `torch.tensor` copied an array; report that, and values for a device."""
        data, device = (*args, kwargs.get("data"))[0], kwargs.get("device")
        is_array, what = isinstance(data, np.ndarray), "torch.tensor"
        counts = device is not None and str(device) != device
        if is_array:
            counts, what = device is None and data.ndim > 0, COPIED_ARRAY
            counts = counts and str(result.dtype) == f"torch.{data.dtype}"
        if counts:
            self._counter.add("host tensor", what, direct_line(sys._getframe()), result.nbytes)
        return is_array


def is_copy_to_device(name: str, args: Any, kwargs: Any) -> bool:
    """Return whether a call is ``.to(device)`` or ``.cuda()``."""
    given = (*args[1:], *kwargs.values())
    is_to = name == "to" and any(isinstance(one, (str, torch.device)) for one in given)
    return is_to or name == "cuda"


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the operations on tensors that came of the calls, and counts those that synchronise."""

    def __init__(self, counter: StallCounter, calls: _Calls) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counter, self._calls, self._device = counter, calls, counter.device.type

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        if self._calls.counts and any(one.device.type == self._device for one in given):
            operation = self._synchronising(func.overloadpacket.__name__, args, kwargs)
            if operation:
                self._counter.synchronisation(operation)
        return func(*args, **kwargs)

    def _synchronising(self, name: str, args: Any, kwargs: Any) -> str:
        """Return what to call an operation that synchronises; "" for others."""
        called, on_cpu = self._calls.name, self._device == "cpu"
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            target = args[0].device if name == "copy_" else kwargs.get("device") or source.device
            if not on_cpu and source.device.type == self._device and target.type == "cpu":
                return VALUE_METHODS.get(called, f".{called}() to the CPU")
        elif name in ("_local_scalar_dense", "item"):  # the latter of tensors of inference mode
            # On the CPU `.tolist()` and `.cpu()` are known by their call.
            if not (on_cpu and called in ("tolist", "numpy")):
                return VALUE_METHODS.get(called, ".item()")
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            indices = [i for i in args[1] if isinstance(i, torch.Tensor)]
            masks = [i for i in indices if i.dtype in (torch.bool, torch.uint8)]
            if masks and not _is_masked_fill(args, kwargs, len(masks) == len(indices) == 1):
                return "a boolean mask"
        elif name != "repeat_interleave" or kwargs.get("output_size") is None:
            return VALUE_SHAPED.get(name, "")
        return ""


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _is_masked_fill(args: Any, kwargs: Any, one_mask: bool) -> bool:
    """Return whether it is ``x[mask] = number``, which torch does by `masked_fill_`.

    That does not synchronise (``canDispatchToMaskedFill`` in TensorAdvancedIndexing.cpp).
    """
    value = args[2] if len(args) > 2 else None
    accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if not isinstance(value, torch.Tensor) or accumulates or not one_mask:
        return False
    return value.numel() == 1 and value.device.type == "cpu"


def _factory(name: str, line: str) -> str:
    """Return what made a tensor."""
    if not name.startswith("lift_fresh"):  # which torch calls on tensors made of arrays and lists
        return f"torch.{name}"
    text = source_of(line)
    made = (f"torch.{n}" for n in ("from_numpy", "as_tensor", "tensor") if f"{n}(" in text)
    return next(made, "a tensor on the host")


@contextmanager
def synchronisations_warned(counter: StallCounter) -> Iterator[None]:
    """Let torch warn of synchronisations inside the block, and count those not known yet."""
    before = torch.cuda.get_sync_debug_mode()
    show: Callable[..., None] = warnings.showwarning
    known = {stall.where for stall in counter.stalls() if stall.kind == "synchronisation"}

    def collect(message: Any, category: Any, *others: Any, **options: Any) -> None:
        if "synchroniz" not in str(message):
            show(message, category, *others, **options)
        elif (line := user_line(sys._getframe(1))) not in known:
            # Copies that block are warned of, too.
            copies = any(word in source_of(line) for word in (".to(", ".cuda(", ".copy_("))
            operation = BLOCKING_COPY if copies else "a synchronising operation"
            counter.add("synchronisation", operation, line)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = collect
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
