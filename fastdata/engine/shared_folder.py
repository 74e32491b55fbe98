"""Whether ``/dev/shm`` can be used: locks between processes and stock workers' batches lie there.

fastdata's own loaders do without it (`fastdata.engine.sharing`); packing in several processes and
the stock `DataLoader` do not, and what they raise says nothing of it.
"""

from __future__ import annotations

import os
import tempfile

__all__ = ["shared_folder_fault"]

_FOLDER = "/dev/shm"
_BYTES = 1 << 16


def shared_folder_fault() -> str:
    """Return what is wrong with ``/dev/shm`` and how to mend it; "" if nothing is."""
    if not os.path.isdir("/proc/self"):
        return ""  # not Linux: nothing of the kind
    try:
        with tempfile.TemporaryFile(dir=_FOLDER) as file:
            file.write(bytes(_BYTES))
            file.flush()
    except FileNotFoundError:
        fault = "is missing"
    except OSError as error:
        fault = f"cannot be written to ({error.strerror})"
    else:
        return ""
    return (
        f"worker processes need {_FOLDER}, which {fault}. Mount it or make it larger: "
        f"`mount -t tmpfs tmpfs {_FOLDER}`, `mount -o remount,rw,size=4G {_FOLDER}`, or "
        "`docker run --shm-size=4g`"
    )
