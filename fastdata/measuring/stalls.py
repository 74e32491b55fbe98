"""What a step does that makes a device wait: synchronisations, and large tensors from the host.

A GPU is fed by a host that is ahead of it.  ``loss.item()`` makes the host wait until the GPU has
done everything, and then the GPU wait for the host; so does every operation whose shape depends
on values (``nonzero``, a boolean mask), and any copy to the host.  And what is made on the host
(``torch.randperm(n)`` without ``device=``) has to be copied.

Two modes of torch see all of it in one step: `TorchFunctionMode`, what the user called, and
`TorchDispatchMode`, the operations that came of it.  On CUDA torch's own
``torch.cuda.set_sync_debug_mode`` is used as well, for what the modes do not know.  On the CPU,
where nothing waits, the same places are reported as ones that would make a GPU wait.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
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

FACTORIES = (
    *("rand", "randn", "randint", "randperm", "normal", "zeros", "ones", "empty", "full"),
    *("arange", "linspace", "eye", "tensor"),
)
"""Functions that make a tensor on the host, unless they are given a device."""

Kind: TypeAlias = Literal["synchronisation", "host tensor"]

_BATCH = "the batch"
_TORCH_OPTIMISERS = f"{torch.__path__[0]}/optim/"


@dataclass(frozen=True, slots=True)
class Stall:
    """A place in the step where the device has to wait for the host.

    The host waits for all work of the device; or a large tensor is made on the host and copied.
    """

    kind: Literal["synchronisation", "host tensor"]
    operation: str
    """``.item()``, ``nonzero``, ``torch.randperm``..."""
    where: str
    """``FILE:LINE function`` of the user's code."""
    count: int = 1
    """Times a step."""
    nbytes: int = 0
    """Bytes copied a step; 0 for a synchronisation of a few bytes."""


@boundary
def find_stalls(step: Step, batch: Any, device: torch.device | str) -> tuple[Stall, ...]:
    """Run one step, and return where it makes a device wait, the most bytes first.

    The step is really run, once (on CUDA twice): it trains as any other step does.  With "cpu" as
    the device, whatever would make a GPU wait is reported, except copies, of which there are
    none.  Stalls outside the user's code are left out.

    For one thread at a time, as warnings are global.  Other threads of the step are not seen; nor
    is a backward pass on a GPU, which has a thread of its own.  Whatever the step raises is raised.

    Sources: "Extending PyTorch" (modes) and `torch.cuda.set_sync_debug_mode` in torch's
    documentation.
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
    calls = _Calls(counter, only_moved=only_moved)
    with calls, _Operations(counter, calls, batch):
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
        if self.device.type == "cpu" and _runs_in(frame, _TORCH_OPTIMISERS):
            return
        line = user_line(frame)
        self.add(
            "synchronisation", _as_written(line) if operation == ".item()" else operation, line
        )

    def synchronising_lines(self) -> set[str]:
        """Return the lines of the synchronisations so far."""
        return {line for kind, _, line in self._found if kind == "synchronisation"}

    def stalls(self) -> tuple[Stall, ...]:
        """Return what was counted, the most bytes and then the most frequent first."""
        stalls = [Stall(*key, count, nbytes) for key, (count, nbytes) in self._found.items()]
        return tuple(sorted(stalls, key=lambda stall: (-stall.nbytes, -stall.count)))


def _runs_in(frame: FrameType | None, folder: str) -> bool:
    """Return whether a function of a folder is on the stack."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(folder):
            return True
        frame = frame.f_back
    return False


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
    """Sees what the user called; `name` is the outermost function of torch under way.

    `counts` says whether it is called on what would be on a device.
    """

    def __init__(self, counter: StallCounter, *, only_moved: bool = False) -> None:
        super().__init__()
        self.name = ""
        self.counts = True
        self._counter = counter
        self._only_moved = only_moved
        self._moved: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._made: Any = WeakIdKeyDictionary()
        """Function and line that made a tensor of the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        outermost, self.name = self.name, self.name or name
        if self._only_moved and not outermost:
            return self._followed(name, func, args, kwargs or {})
        try:
            if (
                not outermost
                and name in _ONLY_CALLS[self._counter.device.type == "cpu"]
                and args
                and isinstance(args[0], torch.Tensor)
            ):
                self._counter.synchronisation(VALUE_METHODS[name])
            return func(*args, **(kwargs or {}))
        finally:
            self.name = outermost

    def _followed(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function, and follow tensors of the device, and those that are made on the host.

        What is made of a tensor of the device is on the device.
        """
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on_cpu = self._counter.device.type == "cpu"
        moved = name in ("to", "cuda") or any(map(self._is_on_device, given))
        self.counts = moved or not on_cpu
        try:
            if moved and name in _ONLY_CALLS[on_cpu]:
                self._counter.synchronisation(VALUE_METHODS[name])
            self._report_made(name, args, kwargs)
            result = func(*args, **kwargs)
        finally:
            self.name, self.counts = "", True
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if moved:
            self._moved.update((leaf, True) for leaf in made)
        else:
            self._remember_made(name, args, kwargs, given, made)
        return result

    def _is_on_device(self, tensor: torch.Tensor) -> bool:
        if self._counter.device.type != "cpu":
            return tensor.device.type == self._counter.device.type
        return tensor.requires_grad or tensor in self._moved

    def _remember_made(self, name: str, args: Any, kwargs: Any, given: Any, made: Any) -> None:
        """Remember what made tensors on the host; report copies of arrays and Python values."""
        origins = [self._made.get(one) for one in given]
        if name == "__setitem__" or (name.endswith("_") and None in origins):
            self._made.pop(given[0], None)  # its values come from elsewhere
            return
        device = kwargs.get("device")
        if name == "tensor":
            line, data = direct_line(sys._getframe(3)), (*args, kwargs.get("data"))[0]
            if isinstance(data, np.ndarray):
                kept = str(made[0].dtype) == f"torch.{data.dtype}"
                if data.ndim and kept and device is None:
                    self._counter.add("host tensor", COPIED_ARRAY, line, made[0].nbytes)
                return
            if device is not None and str(device) != device:
                self._counter.add("host tensor", "torch.tensor", line, made[0].nbytes)
        if name in FACTORIES and device is None and None not in origins:
            origins = [(name, user_line(sys._getframe(3)))]
        if origins and None not in origins:
            self._made.update((leaf, origins[0]) for leaf in made if leaf.device.type == "cpu")

    def _report_made(self, name: str, args: Any, kwargs: Any) -> None:
        """Report a tensor that the same function of the user's has made, and moves now.

        An index of a tensor of the device is moved, too.
        """
        moved: Any = ()
        if is_copy_to_device(name, args, kwargs):
            moved = args[:1]
        elif name == "__getitem__" and self._is_on_device(args[0]):
            moved = tree_leaves(args[1])
        for one in moved:
            made, line = (
                self._made.get(one, ("", "")) if isinstance(one, torch.Tensor) else ("", "")
            )
            here = user_line(sys._getframe(3))
            if made and line.partition(" ")[2] == here.partition(" ")[2]:
                self._counter.add("host tensor", f"torch.{made}", line, one.nbytes)


def is_copy_to_device(name: str, args: Any, kwargs: Any) -> bool:
    """Return whether a call is ``.to(device)`` or ``.cuda()``."""
    given = (*args[1:], *kwargs.values())
    is_to = name == "to" and any(isinstance(one, (str, torch.device)) for one in given)
    return is_to or name == "cuda"


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the operations on tensors that came of the calls."""

    def __init__(self, counter: StallCounter, calls: _Calls, batch: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counter = counter
        self._calls = calls
        self._device = counter.device
        # Operation and line that made large tensors on the host, by the address of their memory.
        self._origins: dict[int, tuple[str, str]] = {}
        for leaf in leaves(batch):
            address = leaf.data_ptr() if isinstance(leaf, torch.Tensor) else leaf.ctypes.data
            self._origins[address] = (_BATCH, "")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        self._report(name, args, kwargs, inputs)
        result = func(*args, **kwargs)
        if self._device.type != "cpu":
            self._remember_origin(name, inputs, result)
        return result

    def _report(self, name: str, args: Any, kwargs: Any, inputs: list[torch.Tensor]) -> None:
        """Report an operation that synchronises or copies."""
        on_device = any(t.device.type == self._device.type for t in inputs)
        on_cpu = self._device.type == "cpu"
        synchronisation = self._counter.synchronisation
        if name in ("_to_copy", "copy_"):
            if not on_cpu:
                self._report_copy(name, args, kwargs)
        elif not on_device or not self._calls.counts:
            return
        elif name in ("_local_scalar_dense", "item"):  # the latter of tensors of inference mode
            # On the CPU `.tolist()` and `.cpu()` are known by their call.
            if not (on_cpu and self._calls.name in ("tolist", "numpy")):
                synchronisation(VALUE_METHODS.get(self._calls.name, ".item()"))
        elif name in VALUE_SHAPED:
            synchronisation(VALUE_SHAPED[name])
        elif name == "repeat_interleave" and kwargs.get("output_size") is None:
            synchronisation("repeat_interleave")
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            indices = [i for i in args[1] if isinstance(i, torch.Tensor)]
            masks = [i for i in indices if i.dtype in (torch.bool, torch.uint8)]
            if masks and not _is_masked_fill(args, kwargs, len(masks) == len(indices) == 1):
                synchronisation("a boolean mask")

    def _report_copy(self, name: str, args: Any, kwargs: Any) -> None:
        """Report a copy between the host and the device."""
        if name == "copy_":
            target, source = args[0].device, args[1]
        else:
            source = args[0]
            target = kwargs.get("device") or source.device
        if source.device.type == self._device.type and target.type == "cpu":
            called = self._calls.name
            self._counter.synchronisation(VALUE_METHODS.get(called, f".{called}() to the CPU"))
        elif source.device.type == "cpu" and target.type == self._device.type:
            if source.nbytes < LARGE_BYTES:
                return
            operation, line = self._origin_of(source) or ("a tensor on the host", "")
            if operation != _BATCH:
                line = line or user_line(sys._getframe(1))
                self._counter.add("host tensor", operation, line, source.nbytes)

    def _origin_of(self, tensor: torch.Tensor) -> tuple[str, str] | None:
        storage = self._origins.get(tensor.untyped_storage().data_ptr())
        return storage or self._origins.get(tensor.data_ptr())

    def _remember_origin(self, name: str, inputs: list[torch.Tensor], result: Any) -> None:
        """Remember what made a large tensor on the host."""
        outputs = [
            t
            for t in tree_leaves(result)
            if isinstance(t, torch.Tensor) and t.device.type == "cpu" and t.nbytes >= LARGE_BYTES
        ]
        if not outputs:
            return
        origin = None
        for tensor in inputs:
            known = self._origin_of(tensor) if tensor.device.type == "cpu" else None
            # Whatever is made of the batch counts as the batch.
            if known is not None and (origin is None or known[0] == _BATCH):
                origin = known
        if origin is None:
            line = user_line(sys._getframe(1))
            origin = (_factory(self._calls.name or name, line), line)
        for tensor in outputs:
            self._origins[tensor.untyped_storage().data_ptr()] = origin


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
    if name != "lift_fresh":  # which torch calls on tensors made of arrays and lists
        return f"torch.{name}"
    text = source_of(line)
    made = (f"torch.{n}" for n in ("from_numpy", "as_tensor", "tensor") if f"{n}(" in text)
    return next(made, "a tensor on the host")


@contextmanager
def synchronisations_warned(counter: StallCounter) -> Iterator[None]:
    """Let torch warn of synchronisations inside the block, and count those not known yet."""
    before = torch.cuda.get_sync_debug_mode()
    show: Callable[..., None] = warnings.showwarning
    lines: list[str] = []

    def collect(message: Any, category: Any, *others: Any, **options: Any) -> None:
        if "synchroniz" not in str(message):
            show(message, category, *others, **options)
            return
        lines.append(user_line(sys._getframe(1)))

    known = counter.synchronising_lines()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = collect
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for line in lines:
        if line not in known:
            text = source_of(line)  # copies that block are warned of, too
            copies = any(word in text for word in (".to(", ".cuda(", ".copy_("))
            operation = BLOCKING_COPY if copies else "a synchronising operation"
            counter.add("synchronisation", operation, line)
