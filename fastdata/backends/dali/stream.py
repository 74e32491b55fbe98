"""Batches by DALI in the order of their requests, some ahead.

    Stream of FeedJobs (threads that load) --> Flights (a thread that drives DALI) --> batches

The thread in the middle keeps DALI busy while the training loop computes, and waits for it
in its stead.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Iterable
from functools import cache, partial
from typing import Any

from fastdata.backends.dali.feeding import FeedJob, LoadWork
from fastdata.backends.dali.flights import Flights, Landed
from fastdata.backends.dali.graph import Graphs
from fastdata.engine.batches import BatchMaker
from fastdata.engine.job import Request
from fastdata.engine.stream import Stream
from fastdata.engine.workers import ThreadWorkers
from fastdata.prefetch.background import Background
from fastdata.prefetch.streams import DeviceStreams

__all__ = ["FEEDS_AHEAD", "DaliStream"]

FEEDS_AHEAD = 2
"""Feeds in the making, so that DALI need not wait for one."""


_open: weakref.WeakSet[DaliStream] = weakref.WeakSet()
_forsaken: list[DaliStream] = []
"""Streams of a parent process: to let one die would wait for threads that are not here."""


@cache
def _close_at_exit() -> None:
    """Have streams that are still open at the end of the program closed.

    Registered after DALI has registered its own end, which is thereby later, and fails
    where a pipeline is being made.
    """
    atexit.register(_close_all, os.getpid())


def _close_all(owner: int) -> None:
    if os.getpid() == owner:
        for stream in list(_open):
            stream.close()


class DaliStream:
    """A `fastdata.engine.job.BatchStream`.

    Parameters
    ----------
    maker : BatchMaker
    num_threads : int
        Of DALI's; at most as many load for it.
    ahead : int
        Batches that are made and wait to be taken, at most.
    read_ahead : int
        Samples whose bytes are asked for from the disk before they are loaded.
    streams : DeviceStreams, optional
        Of the GPU; None: the CPU.

    Attributes
    ----------
    request : Request or None
        What the batch that was taken last is the answer to.

    Notes
    -----
    For one thread at a time.  An error of a batch is raised in its place, as itself; it is
    then the end.  In a forked process a stream of the parent is of no use, and harmless.
    """

    def __init__(
        self,
        maker: BatchMaker,
        *,
        num_threads: int,
        ahead: int,
        read_ahead: int,
        streams: DeviceStreams | None = None,
    ) -> None:
        self._maker = maker
        self._ahead = ahead
        self._streams = streams
        # Made once: torch keeps free memory for each stream by itself.
        self._side = streams.side() if streams else None
        self.request: Request | None = None
        self._feeds = Stream(
            partial(FeedJob, maker),
            ThreadWorkers(LoadWork(maker.work), num_threads),
            ahead=FEEDS_AHEAD,
            read_ahead=read_ahead,
        )
        self._graphs = Graphs(
            num_threads=num_threads, device_id=streams.device.index if streams else None
        )
        self._flights: Flights | None = None
        self._made: Background | None = None
        self._owner = os.getpid()
        _open.add(self)
        _close_at_exit()

    @property
    def ready(self) -> int:
        """Batches that are made and not yet taken."""
        return self._made.ready if self._made is not None else 0

    def begin(self, requests: Iterable[Request]) -> None:
        """Drop what is in the making and make the batches of `requests`."""
        self.stop()
        self._feeds.begin(requests)
        self._flights = Flights(self._feeds, self._maker, self._graphs, self._streams, self._side)
        self._made = Background(self._flights.pull, self._ahead)

    def stop(self) -> None:
        """Drop what is in the making; DALI's pipelines stay."""
        if os.getpid() != self._owner:
            _forsaken.append(self)
            return
        made, self._made = self._made, None
        if made is not None:
            made.close()
        self._feeds.stop()
        flights, self._flights = self._flights, None
        if flights is not None:
            flights.close()

    def __next__(self) -> Any:
        if self._made is None:
            raise StopIteration
        batch = next(self._made)
        landed: Landed = self._made.tag
        self.request = landed.request
        self._maker.count(landed.done)
        return batch

    def close(self) -> None:
        """End all threads, fastdata's and DALI's.  Idempotent."""
        self.stop()
        if os.getpid() == self._owner:
            self._feeds.close()
            self._graphs.close()
            _open.discard(self)
