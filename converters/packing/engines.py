"""Where the parts of a pack run: one after another here, or as tasks of an engine.

A task is a part's number and what opens source and destination again, wherever it runs; no record
passes through the process that drives it.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from dataclasses import dataclass, replace
from typing import Any

from fastdata.errors import (
    FastdataError,
    MachineError,
    MissingExtraError,
    OptionError,
    WorkerError,
)
from fastdata.native.library import loaded_library
from fastdata.processes.resources import memory_kept
from fastdata.processes.starting import signals_held
from fastdata.storage import is_url, open_store
from fastdata.storage.opening import check_secrets
from fastdata.waits import said_while, wait_until

from ..finding import find_source
from ..reading.mirror import StoredFiles
from .options import PackOptions
from .parts import Parts, Receipt
from .workers import LostProcesses, interrupt_tasks_only

__all__ = ["Task", "at_url", "named_executor", "open_source", "run_parts"]

_SIGNAL_SECONDS = 0.2
"""How long a signal waits at most."""

_RETRIES = 2

_CONTINUE = (
    "The finished parts stay: run the same command again once the engine is well, and it packs the "
    "others. If a sample kills each worker that reads it, --part 0/1 (part='0/1') without the "
    "engine finds and rejects it"
)

_HELP = "it is dask:ADDRESS, dask:local, ray:ADDRESS, ray:auto or ray:local"


@dataclass(frozen=True)
class Task:
    """What a part is packed of, in a process that knows nothing yet; it can be pickled.

    `source` is a URL or an absolute path, `call` another text for each call of `pack`.
    """

    source: str
    destination: str
    storage_options: Mapping[str, str]
    found: Mapping[str, Any]
    """Further arguments of `find_source`."""
    options: PackOptions
    stop_on_error: bool
    call: str


_WILDCARD = re.compile(r"[*?\[{]")


def open_source(location: Any, storage_options: Mapping[str, str]) -> Any:
    """Return what `find_source` takes of a URL: a store, files in one, or a path; else the same.

    A file is one of the folder that it is in, which is listed; so are those of a pattern.
    """
    if not is_url(location) or location.startswith("file://"):
        return at_url(location, storage_options)
    if "=" in location.partition("?")[2]:  # a signature, and no wildcard
        check_secrets(location, {})
    scheme, _, rest = location.rstrip("/").partition("://")
    bucket, *parts = rest.split("/")
    wild = next((k for k, part in enumerate(parts) if _WILDCARD.search(part)), None)
    at = len(parts) - 1 if wild is None else wild
    if parts and (wild is not None or "." in parts[-1]):
        store = open_store("/".join([f"{scheme}://{bucket}", *parts[:at]]), storage_options)
        name = "/".join(parts[at:])
        if wild is not None or store.exists(name):
            return StoredFiles(store, name)
    return at_url(location, storage_options)


def at_url(location: Any, storage_options: Mapping[str, str]) -> Any:
    """Return the store of a URL, or its path if it is on this machine; else the same."""
    if not is_url(location):
        return location
    store = open_store(location, storage_options)
    return store.path("") if store.is_local else store


_opened = threading.local()
"""The task that a thread had last, with its source and destination."""


def _open(wanted: Task) -> Parts:
    """Return the parts of a task, with source and destination; a thread lists the source once.

    Threads have a source each: some have a place at which they read.
    """
    if getattr(_opened, "task", None) != wanted:
        _opened.task = _opened.parts = None
        source = find_source(open_source(wanted.source, wanted.storage_options), **wanted.found)
        store = open_store(wanted.destination, wanted.storage_options)
        # Whether JPEGs are coded by the compiled library is a matter of this machine.
        encode = replace(wanted.options.encode, compiled=loaded_library() is not None)
        parts = Parts(store, source, replace(wanted.options, encode=encode))
        _opened.task, _opened.parts = wanted, parts
    found: Parts = _opened.parts
    return found


def _run(task: Task, part: int, attempt: int) -> Receipt:
    """Pack a part; return its receipt.

    `attempt` makes it another call for engines that know a call by its arguments.
    """
    interrupt_tasks_only()
    parts = _open(task)
    # Engines have a process or thread for each task already, and daemons may start none.
    with memory_kept():
        try:
            return parts.pack(part, num_workers=0, stop_on_error=task.stop_on_error)
        except BaseException:
            _opened.task = _opened.parts = None  # the next attempt looks anew at what is there
            raise
        finally:
            if parts.source.mirror is not None:
                parts.source.mirror.drop()  # its next part may be long in coming


def run_parts(
    executor: Executor,
    engine: str,
    task: Task,
    numbers: Collection[int],
) -> Generator[Receipt, None, None]:
    """Run parts as tasks of an executor; yield the receipt of each as it is done.

    A part that fails in a way that may pass, as when a worker was killed, is run again up to
    `_RETRIES` times.  After that its error is raised, and at once if source, options, destination
    or the engine as a whole is the cause.  `engine` is the executor's name for messages.
    """
    tries = dict.fromkeys(numbers, 0)
    running: dict[Future[Receipt], int] = {}
    lost = LostProcesses(executor)
    ready: set[Future[Receipt]] = set()

    def any_ready(seconds: float) -> bool:
        nonlocal ready
        with signals_held():
            ready = wait(running, min(seconds, _SIGNAL_SECONDS), FIRST_COMPLETED).done
        if not ready:
            lost.check()
        return bool(ready)

    try:
        with signals_held(blocked=False):
            running = {executor.submit(_run, task, part, 0): part for part in numbers}
        while running:
            wait_until(any_ready, lambda: f"{len(running):,} of {len(tries):,} parts from {engine}")
            for future in ready:
                part = running.pop(future)
                try:
                    receipt = future.result()
                except Exception as error:
                    cause = _cause_of(error)
                    tries[part] += 1
                    if tries[part] > _RETRIES or not _may_pass(cause):
                        explained = _explained(cause, engine, part, tries[part])
                        if explained is error:
                            raise
                        raise explained from error
                    with signals_held(blocked=False):
                        running[executor.submit(_run, task, part, tries[part])] = part
                else:
                    yield receipt
    finally:
        with signals_held():
            lost.cancel(running)


def _cause_of(error: Exception) -> Exception:
    """Return the error that a task raised; Ray wraps it in another one."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error


def _may_pass(error: Exception) -> bool:
    """Return whether a task may succeed elsewhere; engines have own errors for lost workers."""
    if isinstance(error, FastdataError):
        return isinstance(error, (MachineError, WorkerError))
    lost = isinstance(error, (BrokenExecutor, CancelledError, ImportError))
    return not lost and type(error).__name__ != "LocalRayletDiedError"


def _explained(error: Exception, engine: str, part: int, tries: int) -> Exception:
    """Return what to raise for a part that was not packed."""
    if isinstance(error, (BrokenExecutor, FastdataError, ImportError)):
        return error
    said = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, CancelledError):
        said = "the engine cancelled its tasks: its scheduler has stopped, or lost their state"
    message = (
        f"part {part} was not packed by {engine} ({tries} {'tries' if tries > 1 else 'try'}): "
        f"{type(error).__name__}: {said or 'the engine gives no reason'}. {_CONTINUE}"
    )
    kind = MachineError if isinstance(error, (MemoryError, OSError)) else WorkerError
    return kind(message)


@contextlib.contextmanager
def named_executor(name: str) -> Iterator[Executor]:
    """Connect to an engine; `OptionError` for an unknown one, `WorkerError` if it is not there."""
    kind, _, address = name.partition(":")
    if kind == "dask" and address:
        try:
            from dask.distributed import Client
        except ImportError as error:
            raise MissingExtraError(f"executor {name!r} needs: pip install distributed") from error
        with _connecting(name):
            client = Client(None if address == "local" else address)
        try:
            yield client.get_executor(pure=False)
        finally:
            with said_while(f"{name} to disconnect"):
                client.close()
    elif kind == "ray" and address:
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError(f"executor {name!r} needs: pip install ray") from error
        started = not ray.is_initialized()
        if started:
            with _connecting(name):
                ray.init(address=address)
        try:
            yield _RayExecutor(ray)
        finally:
            if started:
                with said_while(f"{name} to disconnect"):
                    ray.shutdown()
    else:
        raise OptionError(f"executor={name!r} is none that is known: {_HELP}")


@contextlib.contextmanager
def _connecting(name: str) -> Iterator[None]:
    """Say that the engine does not answer, and explain its error."""
    try:
        with said_while(f"{name} to connect"):
            yield
    except Exception as error:  # engines raise anything
        raise WorkerError(
            f"executor {name!r} cannot be reached: {type(error).__name__}: {error}. Check that it "
            "runs, and its address"
        ) from error


class _RayExecutor(Executor):
    """Ray's tasks behind the interface of the standard library."""

    def __init__(self, ray: Any) -> None:
        self._remote = ray.remote(max_retries=0)  # `run_parts` has retries of its own
        self._functions: dict[Callable[..., Any], Any] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a task."""
        if fn not in self._functions:
            self._functions[fn] = self._remote(fn)
        future: Future[Any] = self._functions[fn].remote(*args, **kwargs).future()
        return future
