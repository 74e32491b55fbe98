"""Batches by NVIDIA DALI: its decoder and its resize, with fastdata's order, draws and batches.

    Request --FeedJob--> Feed: bytes, numbers --Graph--> pixels --Runs--> batch
                 |                               |                   |
        fastdata's threads                DALI's threads    a thread of its own

    graph.py     a DALI pipeline: its steps, what it is fed, and how it is run
    feeding.py   stored bytes as DALI takes them; another sample in place of a corrupt one
    backend.py   DaliBackend: batches on their way through DALI, and where it fails

DALI's own shuffling, sharding, random numbers and epochs are not used: what a batch is
made of, and where each crop lies, is decided by the same code as for every other backend.

DALI is imported when a backend is made, and only there.
"""

from fastdata.dali.backend import DaliBackend

__all__ = ["DaliBackend"]
