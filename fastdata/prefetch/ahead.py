"""Some batches on their way, in the order of their source."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from fastdata.prefetch.mover import Mover, Sent

__all__ = ["Ahead", "Pulled", "send"]


class Pulled(NamedTuple):
    """A batch as it comes from its source.

    Attributes
    ----------
    batch : Any
    transform : callable or None
        Of the batch, to be run on the device.
    tag : Any
        Whatever the source wants to know again when the batch is handed out.
    """

    batch: Any
    transform: Callable[[Any], Any] | None
    tag: Any


def send(mover: Mover, pulled: Pulled) -> Sent:
    """Send a batch on its way; raises what its transform raises.

    But `StopIteration`, which would be taken for the end: as in a generator (PEP 479) that
    is a `RuntimeError`.
    """
    try:
        return mover.send(pulled.batch, pulled.transform)
    except StopIteration as error:
        raise RuntimeError("a transform raised StopIteration") from error


class Ahead:
    """Hands out batches of a source, which are sent some time before.

    Parameters
    ----------
    pull : callable
        Returns the next batch as `Pulled`; raises `StopIteration` after the last.
    mover : Mover
    depth : int
        Batches on their way behind the one that is handed out.
    may_pull : callable, optional
        Whether to pull another one now, if none has to be.

    Attributes
    ----------
    tag : Any
        That of the batch that was handed out last.

    Notes
    -----
    An error of the source, or of a transform, is raised in its place: after all batches
    before it.  It is then the end.  For one thread at a time.
    """

    def __init__(
        self,
        pull: Callable[[], Pulled],
        mover: Mover,
        depth: int,
        may_pull: Callable[[], bool] = lambda: True,
    ) -> None:
        self._pull = pull
        self._mover = mover
        self._depth = depth
        self._may_pull = may_pull
        self._sent: deque[tuple[Sent, Any]] = deque()
        self._error: Exception | None = None
        self._ended = False
        self.tag: Any = None

    def __len__(self) -> int:
        """Batches on their way."""
        return len(self._sent)

    def __next__(self) -> Any:
        # All pulling is done before a batch is taken out: where Ctrl-C strikes, none is lost.
        while not self._ended and len(self._sent) <= self._depth:
            if self._sent and not self._may_pull():
                break
            self._send_next()
        if not self._sent:
            self._mover.finish()
            error, self._error = self._error, None
            if error is not None:
                raise error
            raise StopIteration
        sent, tag = self._sent[0]
        batch = self._mover.take(sent)
        self._sent.popleft()
        self.tag = tag
        return batch

    def _send_next(self) -> None:
        try:
            pulled = self._pull()
        except StopIteration:
            self._ended = True
            return
        except Exception as error:
            self._ended, self._error = True, error
            return
        try:
            self._sent.append((send(self._mover, pulled), pulled.tag))
        except Exception as error:
            self._ended, self._error = True, error

    def drop(self) -> None:
        """Forget what is on its way; the source may be pulled from again."""
        self._sent.clear()
        self._ended, self._error = False, None

    def close(self) -> None:
        """Drop what is on its way, for good.  Idempotent."""
        self.drop()
        self._ended = True
        self._mover.finish()
