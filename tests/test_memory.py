"""How much memory is left, in containers made up of files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from fastdata.processes.resources import available_bytes, available_on, format_bytes


def group(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


V2 = {"memory.max": "1000000", "memory.current": "700000"}
V1 = {"memory/memory.limit_in_bytes": "1000000", "memory/memory.usage_in_bytes": "700000"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (V2, 300_000),
        ({**V2, "memory.stat": "anon 5\ninactive_file 200000\nfile 9\n"}, 500_000),
        ({**V2, "memory.current": "1200000"}, 0),
        (V1, 300_000),
        ({**V1, "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 50000\n"}, 350_000),
    ],
)
def test_a_container_leaves_what_its_limit_leaves(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    assert available_bytes(group(tmp_path, files)) == expected


@pytest.mark.parametrize("files", [{}, {**V2, "memory.max": "max\n"}, {**V2, "memory.max": "?"}])
def test_without_a_limit_it_is_what_the_machine_has(
    tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Memory:
        available = 12_345

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    assert available_bytes(group(tmp_path, files)) == 12_345
    assert available_bytes(group(tmp_path, V2)) == 12_345


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
