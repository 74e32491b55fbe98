"""`CUDAPrefetcher`: any iterable of batches, on a device before they are wanted."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from fastdata.bounds import check_int
from fastdata.errors import OptionError
from fastdata.prefetch.ahead import Ahead, Background, ItemQueue
from fastdata.prefetch.mover import Mover, Sent
from fastdata.prefetch.streams import DeviceStreams, streams_of
from fastdata.prefetch.tree import leaves, map_leaves
from fastdata.waits import join_threads

__all__ = ["CUDAPrefetcher"]

_UNKNOWN = object()
"""In place of a state, where the iterable has no `state_dict`."""


class CUDAPrefetcher:
    """Brings the batches of an iterable to a GPU while the one before is computed with.

    Each ``iter()`` is one pass over the iterable.  Batches are copied on a stream of their
    own, `depth` of them behind the one that the loop has; what the loop submits to its
    current stream waits for them on the GPU, the loop itself does not.

    Parameters
    ----------
    iterable : iterable of batches
        A stock `DataLoader`, a `fastdata.Loader` without ``device``, a list, a generator
        (which gives one pass)...  A batch is a tensor or NumPy array, or any nesting of
        them in dicts, lists, tuples, named tuples and dataclasses.  Arrays become tensors;
        strings, numbers, None and whatever else is in a batch are handed on as they are.
    device : torch.device or str
        A CUDA device, by default the current one.  "cpu": batches are made in a thread,
        `depth` ahead, and stay on the CPU.  Other devices: copied when they are asked for.
    transform : callable, optional
        From batch to batch, on the device: called in the thread that iterates, on the copying
        stream, or in the thread that makes batches for the CPU.
    depth : int
        Batches on their way behind the one that is handed out.  One hides the copy of a
        batch behind one step; more cost memory, and help where batches come unevenly.
    static : bool
        For CUDA graphs: every batch of every pass is put into the same tensors, the first
        one's.  **A batch is then valid until the next** ``next()``, which overwrites it; it
        waits for what the loop has submitted before to the stream that was current when it
        got the batch.  All batches have to be of the shapes of the first.

    Attributes
    ----------
    iterable : iterable
    device : torch.device
        With the index it has.
    transform, depth
        As given.

    Raises
    ------
    OptionError
        If there is no such device; where there is no GPU, ``device="cpu"`` does the same
        without one.  While iterating with `static`: if a batch is not like the first.

    Notes
    -----
    *Lifetime.*  A tensor that is kept stays as it is, however long, on the stream that was
    current when it was handed out (and read anew each time).  Before it is used on yet
    another stream, that one has to wait, and ``record_stream`` be called, as for any
    tensor.  The iterable may fill its host memory again once it is asked for the batch
    after the next only if nobody holds that batch: copies from it hold it until they are done.

    *Memory.*  Copies run in the background from page-locked memory only
    (``pin_memory=True``).  Other memory is copied to a page-locked block first, of which
    there are as many as copies under way; that is logged once.  The host gets at most four
    steps ahead of the GPU.

    *Errors* of the iterable or of `transform` are raised in their place, after all batches
    before; the pass is then over.  Leaving a pass early drops what is on its way.

    *Threads and processes.*  A prefetcher and its passes are for one thread at a time; with
    ``device="cpu"`` the iterable is iterated over in another thread.  Not for forked processes.

    Length and public attributes are the iterable's (``prefetcher.sampler``,
    ``set_epoch``...).  ``state_dict()`` of an iterable that has one speaks of the batches
    that were handed out, not of those that were taken from it ahead.

    Sources: "CUDA semantics" and `torch.Tensor.record_stream` in torch's documentation.

    Examples
    --------
    >>> loader = torch.utils.data.DataLoader(dataset, 64, pin_memory=True)  # doctest: +SKIP
    >>> for images, labels in fastdata.CUDAPrefetcher(loader): ...          # doctest: +SKIP
    """

    def __init__(
        self,
        iterable: Any,
        device: torch.device | str = "cuda",
        transform: Callable[[Any], Any] | None = None,
        *,
        depth: Any = 1,
        static: bool = False,
    ) -> None:
        if not isinstance(iterable, Iterable) and not hasattr(iterable, "__getitem__"):
            raise OptionError(
                f"a prefetcher takes an iterable of batches, not {type(iterable).__name__}"
            )
        depth = check_int("depth", depth)
        if transform is not None and not callable(transform):
            raise OptionError(f"transform is called with a batch, but {transform!r} is no callable")
        self.iterable = iterable
        streams = streams_of(device)
        self.device = streams.device
        self.transform = transform
        self.depth = depth
        self._streams = streams
        self._mover = Mover(streams)
        # One for all passes: a captured graph reads from the same addresses in every epoch.
        self._fixed = FixedBatch(streams) if static else None
        self._latest: _State | None = None
        self._threads: list[tuple[weakref.ref[_Pass], threading.Thread]] = []

    def __len__(self) -> int:
        """Batches of a pass, if the iterable knows."""
        return len(self.iterable)

    def __iter__(self) -> Iterator[Any]:
        in_thread = self.device.type == "cpu"
        self._join_dropped()
        # A mover is for one thread, and passes may be several.
        mover = Mover(self._streams) if in_thread else self._mover
        source = _Source(self.iterable, self.transform, mover)
        self._latest = _State(source.state())
        new = _Pass(source, self._latest, self.depth, in_thread=in_thread, fixed=self._fixed)
        if new.thread is not None:
            self._threads.append((weakref.ref(new), new.thread))
        return new

    def _join_dropped(self) -> None:
        """Wait for threads of passes that were left: they may be in the midst of the iterable.

        One with workers that stay gives the same iterator to the next pass.
        """
        for dropped, thread in self._threads:
            if dropped() is None:
                join_threads([thread], "the thread of a pass that was left to end")
        self._threads = [pair for pair in self._threads if pair[1].is_alive()]

    def _state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = _UNKNOWN if self._latest is None else self._latest.state
        return self.iterable.state_dict(*args, **kwargs) if state is _UNKNOWN else state

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "iterable":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = getattr(self.iterable, name)
        if name == "state_dict":
            return self._state_dict
        if name in ("load_state_dict", "set_epoch"):
            return self._forgetting_state(value)
        return value

    def _forgetting_state(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of the iterable that changes its state."""

        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            self._latest = None
            return result

        return call

    def __repr__(self) -> str:
        return f"CUDAPrefetcher({self.iterable!r}, {str(self.device)!r}, depth={self.depth})"


class _State:
    """The state of the iterable when the batch that was handed out last had been taken from it.

    It outlives its pass.
    """

    def __init__(self, state: Any) -> None:
        self.state = state


class _Source:
    """One pass over an iterable, each batch with the state after it."""

    def __init__(self, iterable: Any, transform: Callable[[Any], Any] | None, mover: Mover) -> None:
        self._state_dict = getattr(iterable, "state_dict", None)
        self._iterator = iter(iterable)
        self._transform = transform
        self.mover = mover

    def state(self) -> Any:
        """Return a copy of the state: some iterables give out what they go on to change."""
        return _UNKNOWN if self._state_dict is None else copy.deepcopy(self._state_dict())

    def send(self) -> tuple[Sent, Any]:
        """Send the next batch on its way; return it and the state after it."""
        batch = next(self._iterator)
        try:
            state = self.state()
        except StopIteration as error:
            raise RuntimeError("the iterable's state_dict raised StopIteration") from error
        return self.mover.send(batch, self._transform), state

    def make(self) -> tuple[Any, Any]:
        """Return the next batch, finished, and the state after it: for a thread, on the CPU."""
        sent, state = self.send()
        return self.mover.take(sent), state


class _Sending(Ahead):
    """Batches of a source on their way to a device."""

    def __init__(self, source: _Source, depth: int) -> None:
        super().__init__(depth)
        self._source = source

    def pull(self) -> tuple[Sent, Any]:
        """Send the next batch."""
        return self._source.send()

    def finish(self, item: Any) -> Any:
        """Return a batch that was sent."""
        return self._source.mover.take(item)

    def at_end(self) -> None:
        """Wait for the last copies, and release host memory."""
        self._source.mover.finish()


class _Pass(Iterator[Any]):
    """What ``iter(prefetcher)`` returns."""

    def __init__(
        self,
        source: _Source,
        latest: _State,
        depth: int,
        *,
        in_thread: bool,
        fixed: FixedBatch | None,
    ) -> None:
        self._latest = latest
        self._source: _Source | None = source
        self._fixed = fixed
        self._batches: ItemQueue
        self.thread: threading.Thread | None = None
        """That makes batches for the CPU."""
        if in_thread:
            self._batches = background = Background(source.make, depth)
            self.thread = background.thread
        else:
            self._batches = _Sending(source, depth)

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except BaseException as error:
            if isinstance(error, StopIteration) and self._source is not None:
                self._latest.state = self._source.state()  # the next epoch's beginning, perhaps
            if isinstance(error, Exception):
                self._source = None
            raise
        self._latest.state = self._batches.tag
        return batch if self._fixed is None else self._fixed.fill(batch)

    def close(self) -> None:
        """Drop what is on its way; a thread has ended when this returns.  Idempotent."""
        self._source = None
        self._batches.close()


class FixedBatch:
    """Device memory that one batch after another is copied into, for captured CUDA graphs.

    The copy is from device to device, on the stream that is current, behind what the one
    before it was used for there.  If that was another stream, this one waits for it.  For one
    thread at a time.
    """

    def __init__(self, streams: DeviceStreams) -> None:
        self._streams = streams
        self._tensors: list[torch.Tensor] = []
        self._stream: Any = None

    def fill(self, batch: Any) -> Any:
        """Return `batch`, which was just taken, in the tensors of the first one."""
        streams = self._streams
        tensors = [leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]
        current = streams.current()
        if not self._tensors:
            self._tensors = [streams.twin(tensor) for tensor in tensors]
        elif self._stream != current:
            streams.wait(current, streams.mark(self._stream))
            for tensor in self._tensors:  # which are the first stream's
                streams.use(tensor, current)
        self._stream = current
        _check_same(self._tensors, tensors)
        for target, source in zip(self._tensors, tensors, strict=True):
            streams.copy_within(target, source)
        supply = iter(self._tensors)
        return map_leaves(
            lambda leaf: next(supply) if isinstance(leaf, torch.Tensor) else leaf, batch
        )


def _check_same(expected: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
    kinds = [[(tuple(t.shape), t.dtype) for t in some] for some in (expected, tensors)]
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
