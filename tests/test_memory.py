"""How much memory is left, and how it is shown."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest
import torch

from fastdata.processes.resources import available_on, format_bytes


def test_the_cpus_memory_is_the_hosts() -> None:
    assert 0 < available_on(torch.device("cpu")) <= psutil.virtual_memory().total


@pytest.mark.gpu
def test_a_gpus_memory(cuda: torch.device) -> None:
    before = available_on(cuda)
    held = torch.empty(1 << 28, dtype=torch.uint8, device=cuda)
    assert before - available_on(cuda) >= held.nbytes // 2
    del held
    assert before - available_on(cuda) < 1 << 27, "torch keeps it, and it can be taken"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(999, "999B"), (12.34e9, "12.3GB"), (5e12, "5.00TB")],
)
def test_bytes_in_words(nbytes: float, text: str) -> None:
    assert format_bytes(nbytes) == text


FAULTS = """
import contextlib, ctypes, resource
from fastdata.processes.resources import memory_kept

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
    ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        memory = libc.malloc(4 << 20)
        ctypes.memset(memory, 1, 4 << 20)
        libc.free(memory)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with memory_kept():
    kept = faults()
print(kept, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_memory_that_a_cluster_gives_back_is_kept() -> None:
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"}
    ran = subprocess.run(
        [sys.executable, "-c", FAULTS], env=environment, stdout=subprocess.PIPE, text=True
    )
    kept, usual = map(int, ran.stdout.split())
    pages = 20 * (4 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert kept < pages / 4 < usual
