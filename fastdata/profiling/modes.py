"""Two of torch's modes that see a step: what the user called, and what operations came of it."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fastdata.prefetch.tree import leaves
from fastdata.profiling.places import Places, caller, note, text_of
from fastdata.profiling.where import user_line

__all__ = ["LARGE_BYTES", "Calls", "Operations"]

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


class Calls(TorchFunctionMode):
    """What the user called: the outermost function of torch."""

    def __init__(self, found: Places, device: torch.device) -> None:
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
                note(self._found, METHODS[name], self._device)
            return func(*args, **(kwargs or {}))
        finally:
            self.name = outermost


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What came of it: operations on tensors."""

    def __init__(self, found: Places, calls: Calls, device: torch.device, batch: Any) -> None:
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
                note(self._found, METHODS.get(called, ".item()"), self._device)
        elif name in VALUE_SHAPED and here:
            note(self._found, VALUE_SHAPED[name], self._device)
        elif name == "repeat_interleave" and here and kwargs.get("output_size") is None:
            note(self._found, "repeat_interleave", self._device)
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_") and here:
            chosen = [i for i in args[1] if isinstance(i, torch.Tensor)]
            masks = [i for i in chosen if i.dtype in (torch.bool, torch.uint8)]
            if masks and not _fills(args, kwargs, len(masks) == len(chosen) == 1):
                note(self._found, "a boolean mask", self._device)
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
            note(self._found, METHODS.get(called, f".{called}() to the CPU"), self._device)
        elif source.device.type == "cpu" and target.type == self._device.type:
            nbytes = source.nbytes
            if nbytes < LARGE_BYTES:
                return
            operation, where = self._origins.get(
                source.untyped_storage().data_ptr(), self._origins.get(source.data_ptr(), ("", ""))
            )
            if operation != BATCH:
                where = where or user_line(caller())
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
            where = user_line(caller())
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


def _factory(name: str, where: str) -> str:
    """Return what made a tensor."""
    if name != "lift_fresh":  # what torch does to arrays and lists, when they have become tensors
        return f"torch.{name}"
    text = text_of(where)
    made = (f"torch.{n}" for n in ("from_numpy", "as_tensor", "tensor") if f"{n}(" in text)
    return next(made, "a tensor on the host")
