"""Bringing batches to a device, ahead of the loop that wants them.

    source --pull--> Mover.send: staging, side stream --Ahead--> Mover.take: consumer's stream

      prefetcher.py  CUDAPrefetcher: the public class, for any iterable
      ahead.py       Ahead and Background: a bounded queue, errors in their place
      mover.py       one batch: copied on a side stream, waited for, kept safe
      streams.py     the calls of CUDA; none, for devices without streams
      tree.py        tensors in nested batches

Knows nothing of loaders: whatever can be iterated over is a source.
"""

from fastdata.prefetch.prefetcher import CUDAPrefetcher

__all__ = ["CUDAPrefetcher"]
