"""The compiled library for AArch64 in the place of this processor's: a plugin of pytest.

pytest -p arm_library, with FASTDATA_ARM_SERVER, a command that starts server.c

Tests that call the library by `fastdata.native.library` then call the one for AArch64, which runs
in an emulator.  What its calls read and write is sent there and back.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fastdata.native import library as native
from fastdata.native.library import CROP, JPEG, RAW

ARGUMENTS = 12
REQUEST = struct.Struct(f"=c63s{ARGUMENTS}q")
UPPER_UNKNOWN = 0xFFFFFFFF
"""Nothing says what is in the upper half of a result of 32 bits."""


class ArmLibrary:
    """The functions that `fastdata.native.library` calls, with this process's addresses.

    For any number of threads, one at a time.
    """

    def __init__(self, command: list[str]) -> None:
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = threading.Lock()
        self._results: dict[int, Any] = {}

    def close(self) -> None:
        """End its process."""
        self._server.communicate()

    def fd_version(self) -> int:
        """Return the version of the library's interface."""
        with self._memory():
            return self._call("fd_version") & UPPER_UNKNOWN

    def fd_is_fast(self) -> int:
        """Return whether the library says that it is to be used there."""
        with self._memory():
            return self._call("fd_is_fast") & UPPER_UNKNOWN

    def fd_use_portable(self, only: int) -> None:
        """Leave the code for the processor's vectors alone, or do not."""
        with self._memory():
            self._call("fd_use_portable", only)

    def fd_render_crops(
        self,
        crops: int,
        count: int,
        out: int,
        height: int,
        width: int,
        channels: int,
        planar: int,
    ) -> None:
        """Make crops."""
        table = np.frombuffer(_memory_at(crops, count * CROP.itemsize), CROP)
        size = count * height * width * channels
        with self._memory():
            there = table.copy()
            for at in np.flatnonzero(np.isin(table["codec"], (RAW, JPEG))):
                stored = ctypes.string_at(int(table["data"][at]), int(table["size"][at]))
                there["data"][at] = self._put(stored)
            asked, made = self._put(there.tobytes()), self._put(ctypes.string_at(out, size))
            self._call("fd_render_crops", asked, count, made, height, width, channels, planar)
            table["status"] = np.frombuffer(self._get(asked, there.nbytes), CROP)["status"]
            ctypes.memmove(out, self._get(made, size), size)

    def fd_look_up(
        self,
        pixels: int,
        count: int,
        plane: int,
        channels: int,
        table: int | None,
        item: int,
        out: int,
    ) -> None:
        """Look pixels up in a table, into planes."""
        values = count * plane * channels
        with self._memory():
            stored = self._put(ctypes.string_at(pixels, values))
            known = (
                0 if table is None else self._put(ctypes.string_at(table, 256 * channels * item))
            )
            made = self._put(bytes(values * item))
            self._call("fd_look_up", stored, count, plane, channels, known, item, made)
            ctypes.memmove(out, self._get(made, values * item), values * item)

    def fd_gather_rows(self, memory: int, offsets: int, count: int, length: int, out: int) -> None:
        """Copy rows."""
        with self._memory():
            places = np.frombuffer(ctypes.string_at(offsets, 8 * count), np.int64)
            stored = self._put(ctypes.string_at(memory, int(places.max(initial=0)) + length))
            made = self._put(bytes(count * length))
            self._call("fd_gather_rows", stored, self._put(places.tobytes()), count, length, made)
            ctypes.memmove(out, self._get(made, count * length), count * length)

    def fd_transcode_jpeg(self, data: bytes, size: int, interval: int, out_size: Any) -> int | None:
        """Code a JPEG anew; `out_size` is what `ctypes.byref` returns."""
        return self._file("fd_transcode_jpeg", data[:size], (size, interval), out_size)

    def fd_encode_jpeg(self, pixels: int, *arguments: Any) -> int | None:
        """Encode pixels: height, width and channels, quality, interval, and `ctypes.byref`."""
        height, width, channels = arguments[:3]
        stored = ctypes.string_at(pixels, height * width * channels)
        return self._file("fd_encode_jpeg", stored, arguments[:-1], arguments[-1])

    def fd_resize_jpeg(self, data: bytes, size: int, *arguments: Any) -> int | None:
        """Resize a JPEG; the last argument is what `ctypes.byref` returns."""
        numbers = (size, *arguments[:-1])
        return self._file("fd_resize_jpeg", data[:size], numbers, arguments[-1])

    def _file(self, name: str, data: bytes, numbers: tuple[int, ...], out_size: Any) -> int | None:
        """Call what makes a file of bytes and numbers, and has its length written."""
        with self._memory():
            length = self._put(bytes(8))
            made = self._call(name, self._put(data), *numbers, length)
            if not made:
                return None
            count = int.from_bytes(self._get(length, 8), "little")
            result = ctypes.create_string_buffer(self._get(made, count), count)
            self._call("fd_free", made)
        out_size._obj.value = count
        self._results[ctypes.addressof(result)] = result
        return ctypes.addressof(result)

    def fd_free(self, address: int) -> None:
        """Free a result."""
        del self._results[address]

    @contextmanager
    def _memory(self) -> Iterator[None]:
        """Make calls together, and free afterwards what they were given."""
        with self._lock:
            try:
                yield
            finally:
                self._ask(b"f")

    def _call(self, name: str, *arguments: int) -> int:
        return self._ask(b"c", *arguments, name=name)

    def _put(self, data: bytes) -> int:
        return self._ask(b"p", len(data), data=data)

    def _ask(self, kind: bytes, *arguments: int, name: str = "", data: bytes = b"") -> int:
        self._send(kind, name, arguments, data)
        return int.from_bytes(self._receive(8), "little")

    def _get(self, address: int, size: int) -> bytes:
        self._send(b"g", "", (address, size), b"")
        return self._receive(size)

    def _send(self, kind: bytes, name: str, arguments: tuple[int, ...], data: bytes) -> None:
        padded = (*arguments, *(0,) * (ARGUMENTS - len(arguments)))
        assert self._server.stdin is not None
        try:
            self._server.stdin.write(REQUEST.pack(kind, name.encode(), *padded) + data)
            self._server.stdin.flush()
        except BrokenPipeError:
            self._ended()

    def _receive(self, size: int) -> bytes:
        assert self._server.stdout is not None
        data = self._server.stdout.read(size)
        if len(data) < size:
            self._ended()
        return data

    def _ended(self) -> None:
        raise RuntimeError(f"the library's process ended: exit code {self._server.wait()}")


def _memory_at(address: int, size: int) -> memoryview:
    """Return memory of this process, which can be written to."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def pytest_configure(config: Any) -> None:
    """Put it into its place, before any test module looks."""
    arm: Any = ArmLibrary(shlex.split(os.environ["FASTDATA_ARM_SERVER"]))
    config.add_cleanup(arm.close)
    assert arm.fd_version() == native.VERSION
    assert arm.fd_is_fast()
    arm.of_this_processor = native.loaded_library()
    native.library = native.loaded_library = functools.cache(lambda: arm)
