"""Batches at the same device addresses at every step, as a captured CUDA graph needs them."""

from __future__ import annotations

from typing import Any

import torch

from fastdata.errors import OptionError
from fastdata.prefetch.streams import DeviceStreams
from fastdata.prefetch.tree import leaves, map_leaves

__all__ = ["FixedBatch"]


class FixedBatch:
    """Device memory that one batch after another is copied into.

    The copy is from device to device, on the stream that is current, behind what the one
    before it was used for there.  If that was another stream, this one waits for it.

    Parameters
    ----------
    streams : DeviceStreams

    Notes
    -----
    For one thread at a time.
    """

    def __init__(self, streams: DeviceStreams) -> None:
        self._streams = streams
        self._tensors: list[torch.Tensor] = []
        self._stream: Any = None

    def fill(self, batch: Any) -> Any:
        """Return `batch`, which was just taken, in the tensors of the first one.

        Raises
        ------
        OptionError
            If its tensors are not of the number, shapes and dtypes of the first one's.
        """
        streams = self._streams
        given = [leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]
        current = streams.current()
        if not self._tensors:
            self._tensors = [streams.twin(tensor) for tensor in given]
        elif self._stream != current:
            streams.wait(current, streams.mark(self._stream))
            for tensor in self._tensors:  # which are the first stream's
                streams.use(tensor, current)
        self._stream = current
        _check_same(self._tensors, given)
        for target, source in zip(self._tensors, given, strict=True):
            streams.copy_within(target, source)
        supply = iter(self._tensors)
        return map_leaves(
            lambda leaf: next(supply) if isinstance(leaf, torch.Tensor) else leaf, batch
        )


def _check_same(expected: list[torch.Tensor], given: list[torch.Tensor]) -> None:
    kinds = [[(tuple(t.shape), t.dtype) for t in tensors] for tensors in (expected, given)]
    if kinds[0] == kinds[1]:
        return
    texts = [
        ", ".join(f"{str(dtype).removeprefix('torch.')} {list(shape)}" for shape, dtype in kind)
        for kind in kinds
    ]
    raise OptionError(
        f"static=True needs every batch like the first one, which was {texts[0]}; this one is "
        f"{texts[1]}. Leave out a short last batch (drop_last=True), and pad what varies"
    )
