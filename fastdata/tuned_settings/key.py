"""What tuned settings depend on, and which are used for a loader: those of the same key.

The machine
    Host name, processor, cores of this process (affinity and CPU quota), memory limit,
    how many processes share it (``LOCAL_WORLD_SIZE``), GPUs and their driver, versions of
    fastdata, Python, torch, OpenCV and DALI, and whether the compiled library is used.
The work
    Content of the dataset (`Dataset.digest`) and its fields, transforms, batch size, dtype, kind
    of device, backend, decoder, cache, and whether the order is random.

Not in it: what tuning chooses; seed, rank and what else leaves rates as they are, so that all
ranks find the same; where the file lies and whether it is LMDB or HDF5.

Settings of another key would cost speed and nothing else.  So transforms, callables and datasets
that are not packed are compared by their name, the source of their code, and what their ``repr``
shows (`identity_of`); what code reads elsewhere is not seen.  A dataset may tell its identity by
an attribute ``digest``.  What has no name for sure has no key, and nothing is kept.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import cv2
import numpy as np
import torch
import xxhash
from torch.utils.data import IterableDataset

from fastdata import __version__
from fastdata.codecs.decoders import jpeg_decoder
from fastdata.engine.contracts import is_packed
from fastdata.errors import FastdataError
from fastdata.native.library import compiled
from fastdata.options import LoaderOptions
from fastdata.processes.resources import available_cores, cpu_quota, limit_bytes, local_processes
from fastdata.transforms.pipeline import as_tuple
from fastdata.tuned_settings.store import Entry, Key, find, is_used, log_once

__all__ = [
    "UnnamedError",
    "dataset_identity",
    "identity_of",
    "key_of",
    "machine",
    "resolve_auto_settings",
]

log = logging.getLogger("fastdata")

MOST_WORKERS = 16
"""Workers a core; no result that was measured has more."""

MOST_AHEAD = 64
"""Batches ahead; tuning doubles the usual number at most a few times."""

DRIVER = Path("/proc/driver/nvidia")

DALI = ("nvidia-dali-cuda120", "nvidia-dali-cuda130", "nvidia-dali-cuda110")

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SCRIPT = re.compile(r"\b(__main__|__mp_main__|fastdata_user_script)\.")

_DEEPEST = 3
"""Levels of attributes and containers that are looked into, below the first."""

_ENDS = 8
"""Items at each end of a container that are looked at."""


class UnnamedError(FastdataError, ValueError):
    """There is something of which two processes could not tell whether it is the same."""


def key_of(data: Any, options: LoaderOptions) -> Key | None:
    """Return the key of a loader of opened `data` with `options`, as they were given.

    None where something has no name for sure; why is logged at INFO, once a process.  Takes
    about a millisecond, for a dataset whose digest is stored; of several opened as one the digest
    is computed.  CUDA is not initialised.
    """
    try:
        return Key(machine(), work(data, options), name_of(data))
    except UnnamedError as error:
        why = str(error)
        log_once(why, logging.INFO, "no tuned result can be kept or used for this loader: %s", why)
        return None


def resolve_auto_settings(data: Any, options: LoaderOptions) -> LoaderOptions:
    """Return `options` with "auto" replaced as a kept result says, if one fits.

    A result is one of settings that were measured together: it is used only where `num_workers`
    is "auto", and not where another `worker_method` is given than it has.  `prefetch_factor`,
    `pin_memory` and `persistent_workers` that are given stay.  What no result decides stays
    "auto".  No result changes which backend makes the batches, nor what is in them.

    A number of streams that is kept is told to the stores that `data` comes out of, where none was
    given (`Supply.use_streams`).

    What is used, and when it was measured, is logged at INFO once a process and key.  Whatever is
    wrong with what is kept, this raises nothing.  ``FASTDATA_TUNED=0`` uses nothing.  It costs
    microseconds where nothing is kept.
    """
    if options.num_workers != "auto" or not is_used():
        return options
    try:
        key = key_of(data, options)
        entry = None if key is None else find(key)
        if entry is None or not _fits(entry, data, options):
            return options
    except Exception as error:
        # A key calls code of the user's, and no program is to fail for want of tuning.
        why = f"{type(error).__name__}: {error}"
        message = "no tuned result is looked for, as an error came up: %s"
        log_once(why, logging.WARNING, message, why)
        return options
    settings, measured = entry.tuned.settings, entry.measured_at.date().isoformat()
    message = "tuned settings for %s: %s (measured %s; FASTDATA_TUNED=0 does without)"
    log_once(entry.key.digest, logging.INFO, message, entry.key.name, entry.tuned, measured)
    if entry.tuned.streams is not None:
        for one in getattr(data, "_supplied", ()):
            one.supply.use_streams(entry.tuned.streams)
    names = ["prefetch_factor", "pin_memory", "persistent_workers"]
    if settings.backend != "torch":
        names.append("worker_method")
    auto = {name: getattr(settings, name) for name in names if getattr(options, name) == "auto"}
    return dataclasses.replace(options, num_workers=settings.num_workers, **auto)


def _fits(entry: Entry, data: Any, options: LoaderOptions) -> bool:
    """Return whether a result of the right key can be used with these options."""
    settings = entry.tuned.settings
    cores, why = available_cores(), ""
    if settings.num_workers > MOST_WORKERS * cores:
        why = f"it has {settings.num_workers} workers, but this process may use {cores} cores"
    elif settings.prefetch_factor > MOST_AHEAD:
        why = f"it has a prefetch_factor of {settings.prefetch_factor}; tuning finds less"
    if why:
        log.warning("%s is not used: %s", entry.path, why)
        return False
    if not is_packed(data):
        return settings.backend == "torch"
    wanted = "dali" if options.backend == "dali" else "cpu"
    return settings.backend == wanted and options.worker_method in ("auto", settings.worker_method)


# -- what a key is made of ---------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Return what rates depend on besides the work, as plain JSON types."""
    return {
        "host": platform.node(),
        "cpu": _processor(),
        "cores": available_cores(),
        "cpu_quota": cpu_quota(),
        "memory_limit_bytes": limit_bytes(),
        "local_processes": local_processes(),
        "gpu": _gpus(),
        "versions": {
            "fastdata": __version__,
            "python": platform.python_version(),
            "interpreter_lock": getattr(sys, "_is_gil_enabled", lambda: True)(),
            "torch": torch.__version__,
            "opencv": cv2.__version__,
            "dali": _dali(),
        },
        "compiled_library": compiled(),
    }


def work(data: Any, options: LoaderOptions) -> dict[str, Any]:
    """Return what the loader is to do, as plain JSON types."""
    target, started = options.target, options.multiprocessing_context
    transform = options.transform
    if transform is None and is_packed(data):
        transform = getattr(data, "transform", None)
    return {
        "dataset": dataset_identity(data),
        "batch_size": _batch_size(options),
        "order": _order(options),
        "transform": [identity_of(each) for each in as_tuple(transform)],
        "dtype": None if options.dtype is None else str(options.dtype),
        "device": None if target is None or target.type == "cpu" else target.type,
        "backend": "dali" if options.backend == "dali" else "cpu",
        "decoder": [options.decoder, jpeg_decoder(options.decoder).name],
        "cache": [options.cache, options.cache_scope],
        "others": identity_of(options.dataloader_options),
        "started": getattr(started, "get_start_method", lambda: started)(),
    }


def name_of(data: Any) -> str:
    """Return the path of packed data, or the class of other data."""
    paths = getattr(data, "paths", None)
    if is_packed(data) and paths:
        # Of a folder of shards, the folder.
        folder = Path(paths[0]).parent
        whole = len(paths) > 1 and all(Path(path).parent == folder for path in paths)
        return str(folder) if whole else ", ".join(map(str, paths))
    return f"{type(data).__module__}.{type(data).__qualname__}"


def dataset_identity(data: Any) -> dict[str, Any]:
    """Return what a dataset is, as plain JSON types: the part of `work` that is the data's own."""
    if is_packed(data):
        return {"digest": data.digest, "schema": data.schema.to_json(), "samples": len(data)}
    if isinstance(data, IterableDataset) and not isinstance(getattr(data, "digest", None), str):
        # Where its samples come from stands in its code, if anywhere.
        raise UnnamedError(
            f"{type(data).__name__} is an IterableDataset, of which nobody knows what it will "
            "yield; give it an attribute `digest`, a str that changes when its samples do"
        )
    return {
        "torch": identity_of(data),
        "samples": len(data) if hasattr(data, "__len__") else None,
    }


def identity_of(value: Any, depth: int = 0) -> Any:
    """Return what tells an object from others, as plain JSON types, the same in every process.

    Class or function by its name and the hash of its source; then its own ``digest``, if that is
    a str, or its ``repr``.  Where an address stands in that, its attributes take its place.
    Values of tensors and arrays are left out, as they change no rate, and so is what lies deep or
    in the middle of much.  A function without a name, whose source cannot be had, raises
    `UnnamedError`; an object's own ``repr`` or ``digest`` may raise anything.
    """
    kind = type(value).__qualname__
    if value is None or isinstance(value, (bool, int, float, str)):
        return ascii(value)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return [kind, list(value.shape), str(value.dtype)]
    if isinstance(value, functools.partial):
        return [kind, identity_of([value.func, value.args, value.keywords], depth)]
    if isinstance(value, MethodType):
        return [value.__name__, identity_of(value.__self__, depth)]
    if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
        return _code_identity(value, depth)
    if depth > _DEEPEST:
        return kind
    if isinstance(value, (bytes, bytearray)):
        return [kind, len(value)]
    if isinstance(value, Set):
        return [kind, len(value), _ends(sorted(map(_shown, value)))]
    if isinstance(value, Mapping):
        return [kind, len(value), _items(value.items(), depth)]
    if isinstance(value, (list, tuple)):
        return [kind, len(value), [identity_of(each, depth + 1) for each in _ends(value)]]
    identity = _code_identity(type(value), depth)
    digest = getattr(value, "digest", None)
    if isinstance(digest, str):
        return [*identity, digest]
    attributes = getattr(value, "__dict__", {})
    own_repr: Any = type(value).__repr__
    # The ``repr`` of a dataclass may be as long as all that it holds.
    if own_repr is not object.__repr__ and not (attributes and dataclasses.is_dataclass(value)):
        identity.append(xxhash.xxh3_128_hexdigest(_shown(value).encode()))
        if not _ADDRESS.search(repr(value)):
            return identity
    return [*identity, _items(sorted(attributes.items()), depth)]


def _items(pairs: Iterable[tuple[Any, Any]], depth: int) -> list[Any]:
    return [[_shown(name), identity_of(value, depth + 1)] for name, value in _ends(list(pairs))]


def _shown(value: Any) -> str:
    """Return a ``repr`` without addresses, and without the names that a script's module has."""
    return _SCRIPT.sub("", _ADDRESS.sub("", ascii(value)))


def _code_identity(code: Any, depth: int) -> list[Any]:
    """Return what tells a class or function: name, source, and for a function its values."""
    source = ""
    # The versions of these are part of the key.
    ours = (code.__module__ or "").partition(".")[0] in ("fastdata", "torch", "numpy", "builtins")
    # Of text that was evaluated Python 3.13 shows another one: the program of ``python -c``.
    evaluated = isinstance(code, FunctionType) and code.__code__.co_filename == "<string>"
    if not ours and not evaluated:
        with suppress(OSError, TypeError, SyntaxError):
            source = inspect.getsource(code)
            source = xxhash.xxh3_128_hexdigest(source.encode(errors="replace"))
    if not source and "<" in code.__qualname__:
        raise UnnamedError(
            f"{code.__qualname__} is a function without a name whose source cannot be read"
        )
    values: list[Any] = []
    if isinstance(code, FunctionType) and depth <= _DEEPEST:
        values = [*(code.__defaults__ or ()), *(code.__kwdefaults__ or {}).values()]
        for cell in code.__closure__ or ():
            with suppress(ValueError):  # a name that has no value yet
                values.append(cell.cell_contents)
    return [code.__qualname__, source, *(identity_of(each, depth + 1) for each in values)]


def _ends(items: Any) -> Any:
    """Return the first and the last items, or all where they are few."""
    return items if len(items) <= 2 * _ENDS else [*items[:_ENDS], *items[-_ENDS:]]


def _batch_size(options: LoaderOptions) -> int:
    if options.batch_sampler is None:
        return options.batch_size
    size = getattr(options.batch_sampler, "batch_size", None)
    if type(size) is not int:
        raise UnnamedError(
            f"{type(options.batch_sampler).__name__} is a batch_sampler without an attribute "
            "`batch_size`, so how large batches are cannot be told"
        )
    return size


def _order(options: LoaderOptions) -> Any:
    """Return how samples are spread over the file, as far as it decides on reading."""
    if isinstance(options.shuffle, bool | str):
        order: Any = options.shuffle
    else:
        order = identity_of(options.shuffle)
    for name in ("sampler", "batch_sampler"):
        given = getattr(options, name)
        if given is not None:
            order = {name: type(given).__qualname__}
    return "weights" if options.weights is not None else order


def _processor() -> str:
    """Return the processor's name; reads no further than it stands, as cores may be many."""
    with suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
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


def _dali() -> str | None:
    """Return the version of DALI that is installed."""
    for name in DALI:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None
