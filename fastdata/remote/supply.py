"""What readers ask for images: they wait for them, and learn whether these have stayed.

Images may be removed while somebody reads them, as no reader is asked.  So whoever has read looks
afterwards: each time images come, and when they go, their number in ``present`` changes, before
the first byte does.  What was read in between two looks at the same number was there.  `Supply.run`
does a batch's task again where that is not so.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastdata.bounds import check_int
from fastdata.errors import OptionError
from fastdata.own_files import open_own_file
from fastdata.processes.resources import parse_bytes
from fastdata.remote.client import Client, client_of
from fastdata.remote.folder import PRESENT, CacheFolder, default_cache_folder
from fastdata.storage.opening import check_secrets
from fastdata.waits import said_while

__all__ = ["ShardSupply", "Supply", "open_remote"]

Result = TypeVar("Result")
Samples = NDArray[np.int64]

SHORTEST_WAIT, LONGEST_WAIT = 0.0005, 0.01
"""Seconds between two looks whether images have come."""

SAY_AGAIN_SECONDS = 2.0
"""After which is said again what is waited for: another downloader may not know it."""

MOST_ROUNDS = 30
"""In which images come for a task while others of it go: no cache that has room does so."""

AHEAD_BLOCKS = 8
"""That are fetched at once where samples are read one after another."""

NEAR = 4
"""Samples that are so near to each other are asked for as one."""


def open_remote(
    url: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    streams: int | None = None,
) -> Supply:
    """Return the supply of the dataset at a URL, whose files in the cache are there then.

    Takes and raises what `fastdata.open` does.  What is None is as ``FASTDATA_STORAGE_OPTIONS``
    (a JSON object), ``FASTDATA_CACHE`` and ``FASTDATA_CACHE_BYTES`` have it, if they are set.
    """
    options = storage_options
    if options is None:
        try:
            options = dict(json.loads(os.environ.get("FASTDATA_STORAGE_OPTIONS") or "{}"))
        except (TypeError, ValueError) as error:
            raise OptionError(
                'FASTDATA_STORAGE_OPTIONS is no JSON object, such as {"region": "eu-central-1"}'
            ) from error
    check_secrets(url, options)
    place = cache_dir or default_cache_folder()
    most = os.environ.get("FASTDATA_CACHE_BYTES") or None if cache_bytes is None else cache_bytes
    if isinstance(most, str):
        nbytes = parse_bytes(f"{most}B" if most.isdecimal() else most)
    else:
        nbytes = most
    if most is not None and nbytes is None:
        raise OptionError(f"cache_bytes is a number of bytes, also as '200GB', not {most!r}")
    if nbytes is not None:
        nbytes = check_int("cache_bytes", nbytes)
    if streams is not None:
        streams = check_int("streams", streams, also="None or ")
    folder = CacheFolder.open(place)
    return Supply(folder.path, url.rstrip("/"), dict(options), nbytes, streams)


class Supply:
    """The images of a dataset in a store, as they are needed here.

    `location` is where its files are.  For any number of threads; picklable, and forked processes
    may use it: each has a connection of its own to the downloader.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        storage_options: Mapping[str, str],
        cache_bytes: int | None,
        streams: int | None,
        found: dict[str, Any] | None = None,
    ) -> None:
        self._arguments = folder, url, storage_options, cache_bytes, streams
        self._tuned_streams: int | None = None
        self.url = url
        self._folder = CacheFolder(folder)
        self._watching = threading.local()
        self._waited = _Waited()
        self._replaced: set[int] = set()
        self._opened_in = 0
        self._key = f"open {next(_numbers)}"
        if found is None or not _is_there(found):
            found = self._open()
        self._found = found
        self.name: str = found["name"]
        self.location = Path(found["location"])
        self.block_size: int = found["block_size"]
        self.num_samples: int = found["num_samples"]
        self.total_bytes: int = found["total_bytes"]
        self.column_bytes: int = found["column_bytes"]
        self.cache_bytes: int = found["cache_bytes"]
        self._files: dict[str, str] = found["files"]
        with open_own_file(Path(found["folder"], PRESENT)) as file:
            self._present = np.memmap(file, np.uint8, "r").view(np.ndarray)
        self._seen = np.zeros(self.num_samples, np.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"_tuned_streams": self._tuned_streams}
        return Supply, (*self._arguments, self._found), state

    def _open(self) -> dict[str, Any]:
        _, url, options, cache_bytes, streams = self._arguments
        client = client_of(self._folder)
        body = {
            "kind": "open",
            "url": url,
            "options": dict(options),
            "cache_bytes": cache_bytes,
            "streams": streams,
            # Of this process, and not of that which started the downloader.
            "offline": os.environ.get("FASTDATA_OFFLINE", "") not in ("", "0"),
        }
        client.used_by(self, self._key)
        reply = client.ask(body, keep_as=self._key)
        self._opened_in, self._waited = os.getpid(), _Waited()
        self._say_streams()
        found: dict[str, Any] = reply["dataset"]
        return found

    def use_streams(self, streams: int) -> None:
        """Have at least so many requests at once, unless a number was given."""
        if self._arguments[4] is None and self._tuned_streams != streams:
            self._tuned_streams = streams
            self._say_streams()

    def _say_streams(self) -> None:
        if self._tuned_streams is not None:
            body = {"kind": "streams", "streams": self._tuned_streams}
            client_of(self._folder).tell(body, keep_as=self._key)

    @property
    def known_client(self) -> Client:
        """The connection of this process, which may be none yet, or none any more."""
        return client_of(self._folder)

    @property
    def client(self) -> Client:
        """The connection of this process, which knows of this dataset."""
        client = client_of(self._folder)
        if os.getpid() != self._opened_in:
            self._open()
        return client

    def shard(self, path: Path, first: int) -> ShardSupply:
        """Return the supply of a shard, `first` being the number of its first sample."""
        key = self._files[path.name]
        is_file = self.location.is_file()
        return ShardSupply(self, first, self.url if is_file else f"{self.url}/{key}")

    # -- samples ---------------------------------------------------------------------------------

    def hold(self, samples: Samples, tell_new: Callable[[NDArray[np.bool_]], object]) -> None:
        """Wait until the images of some samples, int64 [n], are there.

        `tell_new` is told which, bool [n], are not as they were seen before.  Raises what fetching
        them does.
        """
        numbers = self._present[samples]
        rounds = 0
        while not numbers.all():  # some may have gone again while others were waited for
            if rounds == MOST_ROUNDS:
                raise OptionError(
                    f"the cache {self._folder.path} has no room for the images that a batch of "
                    f"{self.url} needs at once: give more with cache_bytes=, --cache-bytes"
                )
            rounds += 1
            self._wait(samples[numbers == 0])
            numbers = self._present[samples]
        new: NDArray[np.bool_] = numbers != self._seen[samples]
        if new.any():
            tell_new(new)
            self._seen[samples] = numbers
        watched = getattr(self._watching, "held", None)
        if watched is not None:
            watched.append((samples, numbers))

    def _wait(self, samples: Samples) -> None:
        began = time.monotonic()
        said_at, pause = 0.0, SHORTEST_WAIT
        client = self.client
        with said_while(lambda: f"{len(samples):,} images of {self.url}"):
            while True:
                now = time.monotonic()
                if now - said_at > SAY_AGAIN_SECONDS:
                    self.need(samples)
                    said_at = now
                samples = samples[self._present[samples] == 0]
                if not len(samples):
                    break
                failure = client.failure(self.name, samples, began)
                if failure is not None:
                    raise failure
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_WAIT)
        self._waited.add(time.monotonic() - began)
        self._watching.waited = self.waited_here + time.monotonic() - began

    def need(self, samples: Samples, *, soon: bool = False, first: bool = False) -> None:
        """Have the downloader fetch the samples of these that are not there.

        `soon`: nobody waits for them yet; `first`: those of a loader's first batch, which come one
        by one, sooner than the blocks that they are of.
        """
        absent = np.unique(samples[self._present[samples] == 0])
        if not len(absent):
            return
        if len(samples) == 1 and self._follows(int(absent[0])):
            at = int(absent[0])
            ahead = AHEAD_BLOCKS * self.block_size
            absent = np.array([at, min(at + ahead, self.num_samples) - 1])
            heads, tails = absent[:1], absent[1:]
        else:
            heads = absent[np.concatenate(([True], np.diff(absent) > NEAR))]
            tails = absent[np.concatenate((np.diff(absent) > NEAR, [True]))]
        body = {"kind": "need", "dataset": self.name, "url": self.url, "soon": soon, "first": first}
        self.client.tell(body, np.stack([heads, tails + 1], axis=1).reshape(-1))

    def _follows(self, sample: int) -> bool:
        """Return whether somebody seems to read one sample after another."""
        return sample > 0 and bool(self._present[sample - 1])

    def replace(self, sample: int) -> bool:
        """Have a sample come anew that is damaged here; False where that was done before."""
        if sample in self._replaced:
            return False
        self._replaced.add(sample)
        before = self._present[sample]
        body = {"kind": "replace", "dataset": self.name, "url": self.url}
        began = time.monotonic()
        said_at = 0.0
        with said_while(lambda: f"an image of {self.url} that is damaged in the cache"):
            while self._present[sample] == before:
                now = time.monotonic()
                if now - said_at > SAY_AGAIN_SECONDS:  # another downloader does not know it
                    self.client.tell(body, np.array([sample, sample + 1]))
                    said_at = now
                failure = self.client.failure(self.name, np.array([sample]), began)
                if failure is not None:
                    raise failure
                time.sleep(SHORTEST_WAIT)
        return True

    # -- whether they have stayed ----------------------------------------------------------------

    @property
    def watched(self) -> bool:
        """Whether this thread is in `run`."""
        return getattr(self._watching, "held", None) is not None

    def run(self, read: Callable[[], Result]) -> Result:
        """Return what a function makes of images that it holds, which stayed there meanwhile.

        It is called again where they did not.
        """
        if self.watched:
            return read()
        while True:
            with self._watch() as held:
                error: Exception | None = None
                try:
                    result = read()
                except Exception as raised:  # perhaps of what was not there any more
                    error = raised
            if all((self._present[samples] == numbers).all() for samples, numbers in held):
                if error is not None:
                    raise error
                return result

    @contextlib.contextmanager
    def _watch(self) -> Iterator[list[tuple[Samples, NDArray[np.uint8]]]]:
        self._watching.held = []
        try:
            yield self._watching.held
        finally:
            self._watching.held = None

    # -- figures ---------------------------------------------------------------------------------

    def are_there(self, samples: Samples) -> NDArray[np.bool_]:
        """Return which samples have their images here now, bool [n]; waits for nothing."""
        return self._present[samples] > 0

    @property
    def cache(self) -> Path:
        """The cache folder."""
        return self._folder.path

    @property
    def storage_options(self) -> Mapping[str, str]:
        """Those of the store, as given."""
        return self._arguments[2]

    @property
    def streams(self) -> int | None:
        """Requests at once, as given or tuned."""
        return self._arguments[4] or self._tuned_streams

    @property
    def waited_seconds(self) -> float:
        """How long threads of this process have waited for images, all together."""
        return self._waited.seconds

    @property
    def waited_here(self) -> float:
        """How long the calling thread has, of these."""
        return float(getattr(self._watching, "waited", 0.0))

    def counts(self) -> dict[str, int]:
        """Return what the downloader has done since it started, for all that use it."""
        return self.client.ask({"kind": "counts"})


_numbers = itertools.count()


def _is_there(found: Mapping[str, Any]) -> bool:
    """Return whether the files that were found are still those in the folder."""
    try:
        return bool(os.stat(Path(found["folder"], PRESENT)).st_ino == found["inode"])
    except OSError:
        return False


class _Waited:
    """Seconds, added up by several threads."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        with self._lock:
            self.seconds += seconds


class ShardSupply:
    """The supply of a shard, by the rows of that; a `fastdata.formats.reader.ImageSupply`."""

    def __init__(self, supply: Supply, first: int, place: str) -> None:
        self._supply = supply
        self._first = first
        self.place = place

    @property
    def watched(self) -> bool:
        """See `Supply.watched`."""
        return self._supply.watched

    def hold(self, rows: Samples, tell_new: Callable[[Samples], object]) -> None:
        """Wait for the images of rows; `tell_new` is told those that are not as they were seen."""
        self._supply.hold(rows + self._first, lambda new: tell_new(rows[new]))

    def ask(self, rows: Samples) -> None:
        """Have the images of rows come soon."""
        self._supply.need(rows + self._first, soon=True)

    def replace(self, row: int) -> bool:
        """See `Supply.replace`."""
        return self._supply.replace(row + self._first)

    def unchanged(self, row: int, read: Callable[[], bytes]) -> bytes:
        """Return what `read` does of the images of a row, which stayed there meanwhile."""

        def held() -> bytes:
            self.hold(np.array([row]), len)
            return read()

        return self._supply.run(held)
