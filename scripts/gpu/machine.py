"""What figures depend on and nobody chose: the GPU, the processor, the versions."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import fastdata
from bench_parts import hardware
from fastdata.native.library import compiled
from utilisation import gpu_address, query

__all__ = ["about", "headline"]

PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "nvidia-dali-cuda120",
    "nvidia-dali-cuda130",
    "nvidia-ml-py",
    "opencv-python-headless",
    "lmdb",
)
ASKED = {
    "driver": "driver_version",
    "power_limit_w": "power.limit",
    "sm_clock_max_mhz": "clocks.max.sm",
    "pcie_generation_max": "pcie.link.gen.max",
    "pcie_width": "pcie.link.width.current",
}
"""What nvidia-smi is asked of a GPU.  Its link slows down when idle: the fastest one it tells."""


def about(device: torch.device) -> dict[str, Any]:
    """Return the machine and the versions, as JSON has them."""
    found: dict[str, Any] = {
        "hardware": hardware(),
        "versions": versions(),
        "compiled_library": compiled(),
    }
    if device.type == "cuda":
        found["gpu"] = gpu(device)
    return found


def versions() -> dict[str, str]:
    """Return versions of what is installed."""
    known = {"python": sys.version.split()[0], "fastdata": fastdata.__version__}
    for name in PACKAGES:
        try:
            known[name] = version(name)
        except PackageNotFoundError:
            continue
    if torch.version.cuda:
        known["cuda"] = torch.version.cuda
        known["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return known


def gpu(device: torch.device) -> dict[str, Any]:
    """Return what is known of a GPU."""
    properties = torch.cuda.get_device_properties(device)
    known: dict[str, Any] = {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "processors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
    }
    told = query(gpu_address(device), ",".join(ASKED.values()))
    if len(told) == len(ASKED):
        known |= dict(zip(ASKED, told, strict=True))
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        known["visible_devices"] = os.environ["CUDA_VISIBLE_DEVICES"]
    return known


def headline(found: dict[str, Any]) -> str:
    """Return it in a line or two."""
    machine = found["hardware"]
    lines = [f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB"]
    if "gpu" in found:
        card = found["gpu"]
        lines.insert(
            0, f"{card['name']}, {card['memory_gib']} GiB, driver {card.get('driver', '?')}"
        )
    lines.append(", ".join(f"{name} {what}" for name, what in found["versions"].items()))
    if not found["compiled_library"]:
        lines.append(
            "without fastdata's compiled library: the CPU's paths are slower than they could be"
        )
    return "\n".join(lines)
