"""Batches by NVIDIA DALI: its decoder and its resize, with fastdata's order, draws and batches.

    Request --FeedJob--> Feed: bytes, numbers --Graph--> pixels --Flights--> batch
                 |                               |                      |
        fastdata's threads                DALI's threads       a thread of its own

    geometry.py   what DALI is told to do, of what transforms have planned
    loading.py    stored bytes, as DALI takes them: cut, checked, or pixels
    feeding.py    what is fed for a batch; another sample in place of a corrupt one
    graph.py      a DALI pipeline, driven by hand
    flights.py    batches on their way through DALI, and what becomes of them if it fails
    stream.py     batches in order, some ahead
    backend.py    DaliBackend: all of the above

DALI's own shuffling, sharding, random numbers and epochs are not used: what a batch is
made of, and where each crop lies, is decided by the same code as for every other backend.

DALI is imported when a backend is made, and only there.
"""

from fastdata.backends.dali.backend import DaliBackend

__all__ = ["DaliBackend"]
