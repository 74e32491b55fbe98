"""What a tuned result depends on: it is used where all of this is the same, and nowhere else.

The machine
    Host name, processor, cores of this process (affinity and CPU quota), memory limit,
    how many processes share it (``LOCAL_WORLD_SIZE``), GPUs and their driver, versions of
    fastdata, Python, torch, OpenCV and DALI, and whether the compiled library is used.
The work
    Content of the dataset (`Dataset.digest`) and its fields, transforms with the code of
    callables among them (`fastdata.tuning.describing`), batch size, dtype, kind of device,
    decoder, cache, and whether the order is random.

Not in it: what tuning chooses; seed, rank and what else leaves rates as they are, so that all
ranks find the same; where the file lies and whether it is LMDB or HDF5.

A torch Dataset that is not packed has no digest: it is described by its class, length and
attributes, or by its own attribute ``digest``.  Where that cannot be done for sure, there is no
key, and nothing is kept.
"""

from __future__ import annotations

import logging
import platform
import sys
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from torch.utils.data import IterableDataset

from fastdata import __version__
from fastdata.codecs.decoders import jpeg_decoder
from fastdata.engine import memory
from fastdata.engine.cores import available_cores, cpu_quota, local_processes
from fastdata.engine.tasks import is_packed
from fastdata.formats.layout import canonical_json
from fastdata.native.library import compiled
from fastdata.transforms.pipeline import listed
from fastdata.tuning.describing import UndescribableError, describe, named

if TYPE_CHECKING:
    from fastdata.options import LoaderOptions

__all__ = ["Key", "described_data", "key_of", "machine", "work"]

log = logging.getLogger("fastdata")

DRIVER = Path("/proc/driver/nvidia")

DALI = ("nvidia-dali-cuda120", "nvidia-dali-cuda130", "nvidia-dali-cuda110")


@dataclass(frozen=True)
class Key:
    """Under what a result is kept; plain JSON types.

    Attributes
    ----------
    machine : dict
        See `machine`.
    work : dict
        See `work`.
    name : str
        What people call the data: its path, or a class.  Not compared.
    """

    machine: dict[str, Any]
    work: dict[str, Any]
    name: str = field(default="", compare=False)

    @cached_property
    def digest(self) -> str:
        """32 hex digits: XXH3-128 of the canonical JSON of both."""
        return xxhash.xxh3_128_hexdigest(canonical_json([self.machine, self.work]))


def key_of(data: Any, options: LoaderOptions) -> Key | None:
    """Return under what a result for a loader of `data` with `options` is kept.

    Parameters
    ----------
    data : packed data or torch Dataset
        Opened, not a path.
    options : LoaderOptions
        As the loader was asked for: settings that tuning chooses do not matter.

    Returns
    -------
    Key or None
        None where something cannot be told for sure; why is logged at INFO, once a process.

    Notes
    -----
    Takes about a millisecond, for a dataset whose digest is stored; of several opened as one the
    digest is computed.  CUDA is not initialised.
    """
    try:
        return Key(machine(), work(data, options), name_of(data))
    except UndescribableError as error:
        _say_once(str(error))
        return None


def machine() -> dict[str, Any]:
    """Return what rates depend on besides the work, as plain JSON types."""
    return {
        "host": platform.node(),
        "cpu": _processor(),
        "cores": available_cores(),
        "cpu_quota": cpu_quota(),
        "memory_limit_bytes": memory.limit_bytes(),
        "local_processes": local_processes(),
        "gpu": _gpus(),
        "versions": {
            "fastdata": __version__,
            "python": platform.python_version(),
            "interpreter_lock": getattr(sys, "_is_gil_enabled", lambda: True)(),
            "torch": torch.__version__,
            "opencv": _opencv(),
            "dali": _dali(),
        },
        "compiled_library": compiled(),
    }


def work(data: Any, options: LoaderOptions) -> dict[str, Any]:
    """Return what the loader is to do, as plain JSON types.

    Raises
    ------
    UndescribableError
        If that cannot be told for sure.
    """
    target = options.target
    transform = options.transform
    if transform is None and is_packed(data):
        transform = getattr(data, "transform", None)
    return {
        "dataset": described_data(data),
        "batch_size": _batch_size(options),
        "order": _order(options),
        "transform": describe(listed(transform)),
        "dtype": None if options.dtype is None else str(options.dtype),
        "device": None if target is None else target.type,
        "decoder": [options.decoder, jpeg_decoder(options.decoder).name],
        "cache": [options.cache, options.cache_scope],
        "others": describe(options.others),
        "started": _start_method(options),
    }


def name_of(data: Any) -> str:
    """Return what people call the data."""
    paths = getattr(data, "paths", None)
    if is_packed(data) and paths:
        # Of a folder of shards, the folder.
        folder = Path(paths[0]).parent
        whole = len(paths) > 1 and all(Path(path).parent == folder for path in paths)
        return str(folder) if whole else ", ".join(map(str, paths))
    return f"{type(data).__module__}.{type(data).__qualname__}"


def described_data(data: Any) -> dict[str, Any]:
    """Return what a dataset is, as plain JSON types: the part of `work` that is the data's own.

    Parameters
    ----------
    data : packed data or torch Dataset

    Raises
    ------
    UndescribableError
        If that cannot be told for sure.
    """
    if is_packed(data):
        return {"digest": data.digest, "schema": data.schema.to_json(), "samples": len(data)}
    if isinstance(data, IterableDataset) and not hasattr(data, "digest"):
        # Where its samples come from stands in its code, if anywhere.
        raise UndescribableError(
            f"{type(data).__name__} is an IterableDataset, of which nobody knows what it will "
            "yield; give it an attribute `digest`, a str that changes when its samples do"
        )
    try:
        described = describe(data)
    except UndescribableError as error:
        raise UndescribableError(
            f"{error}. Give {type(data).__name__} an attribute `digest`, a str that changes when "
            "its samples do"
        ) from None
    return {"torch": described, "samples": len(data) if hasattr(data, "__len__") else None}


def _batch_size(options: LoaderOptions) -> int:
    if options.batch_sampler is None:
        return options.batch_size
    size = getattr(options.batch_sampler, "batch_size", None)
    if type(size) is not int:
        raise UndescribableError(
            f"{type(options.batch_sampler).__name__} is a batch_sampler without an attribute "
            "`batch_size`, so how large batches are cannot be told"
        )
    return size


def _order(options: LoaderOptions) -> Any:
    """Return how samples are spread over the file, as far as it decides on reading."""
    if isinstance(options.shuffle, bool | str):
        order: Any = options.shuffle
    else:
        order = describe(options.shuffle)
    for name in ("sampler", "batch_sampler"):
        given = getattr(options, name)
        if given is not None:
            order = {name: named(type(given))}
    return "weights" if options.weights is not None else order


def _start_method(options: LoaderOptions) -> str | None:
    """Return how worker processes are asked to be started; None where nothing is said."""
    given = options.multiprocessing_context
    return given if given is None or isinstance(given, str) else given.get_start_method()


def _processor() -> str:
    """Return the processor's name; reads no further than it stands, as cores may be many."""
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpus() -> Any:
    """Return names and driver of the machine's GPUs; None without CUDA.

    By the driver's files: asking CUDA would start it in this process, and then it could not be
    used in workers that are forked.  All GPUs of the machine, whichever of them this rank has.
    """
    if not torch.cuda.is_available():
        return None
    try:
        names = [
            line.partition(":")[2].strip()
            for file in sorted(DRIVER.glob("gpus/*/information"))
            for line in file.read_text().splitlines()
            if line.startswith("Model")
        ]
        driver = (DRIVER / "version").read_text().splitlines()[0]
    except (OSError, IndexError):
        names, driver = [], ""
    build = torch.version.cuda or torch.version.hip
    return {"names": sorted(names), "driver": driver, "cuda": build}


@cache
def _dali() -> str | None:
    """Return the version of DALI that is installed; installing while running does not count."""
    for name in DALI:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _opencv() -> str:
    import cv2

    return str(cv2.__version__)


@cache
def _say_once(why: str) -> None:
    log.info("no tuned result can be kept or used for this loader: %s", why)
