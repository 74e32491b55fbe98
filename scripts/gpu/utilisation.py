"""How busy the driver says a GPU is: NVML by its Python package, else nvidia-smi.

It is the share of time in which anything at all ran on the GPU, sampled by the driver over
some tenths of a second: a kernel on one of its many processors counts as busy.  So it says that a
GPU was waiting, and never that it was well used.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import threading
from statistics import fmean
from types import TracebackType
from typing import Any

import torch

__all__ = ["Utilisation", "gpu_address", "query"]

EVERY_SECONDS = 0.1


def gpu_address(device: torch.device) -> str:
    """Return how NVML and nvidia-smi know a CUDA device, which may have another number there."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        return str(device.index or 0)
    return str(uuid) if str(uuid).startswith("GPU-") else f"GPU-{uuid}"


def query(address: str, fields: str) -> list[str]:
    """Return what nvidia-smi says of some fields of a GPU; nothing where it is not there."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return []
    return [word.strip() for word in lines[0].split(",")]


class Utilisation:
    """Samples a GPU while a context lasts.

    Parameters
    ----------
    address : str
        As of `gpu_address`; empty where there is no GPU.
    every_seconds : float

    Attributes
    ----------
    samples : list of float
        In percent.
    source : str
        Who said so; empty where nobody can.
    """

    def __init__(self, address: str, every_seconds: float = EVERY_SECONDS) -> None:
        self.samples: list[float] = []
        self.source = ""
        self._address = address
        self._every_seconds = every_seconds
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None

    @property
    def percent(self) -> float | None:
        """The mean of the samples; None without any."""
        return fmean(self.samples) if self.samples else None

    def __enter__(self) -> Utilisation:
        if not self._address:
            return self
        opened = open_nvml(self._address)
        if opened is not None:
            self.source = "NVML"
            self._start(self._ask_nvml, *opened)
        elif (program := shutil.which("nvidia-smi")) is not None:
            self.source = "nvidia-smi"
            command = [program, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
            every = f"--loop-ms={round(1000 * self._every_seconds)}"
            self._process = subprocess.Popen(
                [*command, every, "-i", self._address],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self._start(self._read_lines)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._process is not None:
            self._process.terminate()
        if self._thread is not None:
            self._thread.join()
        if self._process is not None:
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def _start(self, target: Any, *arguments: Any) -> None:
        self._thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._thread.start()

    def _ask_nvml(self, nvml: Any, handle: Any) -> None:
        while not self._stop.wait(self._every_seconds):
            try:
                self.samples.append(float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
            except nvml.NVMLError:
                return  # it has no such sensor, as a part of a GPU (MIG) has none

    def _read_lines(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self.samples.append(float(line))
            except ValueError:
                return  # "[N/A]"


def open_nvml(address: str) -> tuple[Any, Any] | None:
    """Return the package pynvml and its handle of a GPU; None where there is none."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        if address.startswith("GPU-"):
            return nvml, nvml.nvmlDeviceGetHandleByUUID(address)
        return nvml, nvml.nvmlDeviceGetHandleByIndex(int(address))
    except nvml.NVMLError:
        return None
