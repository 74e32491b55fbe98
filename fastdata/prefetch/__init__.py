"""Bringing batches to a device, ahead of the loop that wants them.

    source --pull--> Ahead --send--> Mover: staging, side stream --take--> consumer's stream

      prefetcher.py  CUDAPrefetcher: the public face, for any iterable
      ahead.py       some batches on their way, in order, errors in their place
      mover.py       one batch: copied on a side stream, waited for, kept safe
      staging.py     page-locked memory for what lies in pageable memory
      streams.py     all that is asked of CUDA; nothing, for devices without streams
      fixed.py       the same device addresses at every step, for CUDA graphs
      background.py  the same for the CPU: a thread
      tree.py        tensors in nested batches

Knows nothing of loaders: whatever can be iterated over is a source.
"""

from fastdata.prefetch.prefetcher import CUDAPrefetcher

__all__ = ["CUDAPrefetcher"]
