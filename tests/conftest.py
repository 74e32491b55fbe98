"""Fixtures that all tests share: packed datasets, and a watch for leaks."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import multiprocessing.resource_tracker as resource_tracker
import multiprocessing.util
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import fork_servers
import psutil
import pytest
import torch
from samples import EVERY_KIND, SUFFIXES, decoded, make_records, write_shard, write_shards
from warm_python import WarmPython, running, servers
from worker_helpers import PICTURES, SCENES, kept, layouts, pictures, scenes

from fastdata.converters import finding
from fastdata.converters.packing import packer
from fastdata.engine import workers as engine_workers

if not torch.cuda.is_available():
    # Kernels are interpreted then.  Triton asks when it is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

with contextlib.suppress(ImportError):  # tests of clients and of a GPU do without
    from hypothesis import HealthCheck, settings

    # Deadlines and this health check measure how busy the machine is.
    settings.register_profile(
        "fastdata", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("fastdata")

REPOSITORY = Path(__file__).parents[1]
_PATIENCE_SECONDS = 30.0
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30
_PASSED = pytest.StashKey[bool]()
_DEMANDED = {
    "FASTDATA_REQUIRE_NATIVE": "compiled library",
    "FASTDATA_REQUIRE_DALI": "dali",
    "FASTDATA_REQUIRE_CHROMIUM": "chromium",
    "FASTDATA_REQUIRE_CUDA": "cuda",
}
"""Variables that demand a part, and the word by which the reason of a skip names that part."""


def pytest_configure(config: pytest.Config) -> None:
    """Have tests write in memory where there is room: on a disk, small files take longer than code.

    ``--basetemp`` and ``TMPDIR`` still say where else.
    """
    if sys.version_info >= (3, 14):
        # As before it: tests hand functions of their own to workers, which only a fork can take
        # along.  Tests of other ways to start processes say which.
        multiprocessing.set_start_method("fork", force=True)
    chosen = config.option.basetemp or {"PYTEST_DEBUG_TEMPROOT", "TMPDIR"} & os.environ.keys()
    if not chosen and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(_MEMORY)


def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what is imported: a collection takes a tenth then.

    It also does not write to the pages that processes share after a fork, which copies them.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # some libraries report at the interpreter's end what is still there


def _descriptors() -> set[str]:
    """Return the open file descriptors and what they are, where the system tells."""
    # These live until the interpreter ends: multiprocessing keeps them.
    kept = {
        getattr(resource_tracker._resource_tracker, "_fd", None),
        *fork_servers.descriptors(),
    }
    found = set()
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
        # A GPU's driver keeps its devices open from when it is first used.
        if int(name) not in kept and not target.startswith("/dev/nvidia"):
            found.add(f"descriptor {name} ({target})")
    return found


def _threads() -> set[str]:
    # tqdm keeps one thread that watches all bars.
    return {
        f"thread {thread.name}"
        for thread in threading.enumerate()
        if type(thread).__name__ != "TMonitor"
    }


def _children() -> set[str]:
    found = {f"program {pid}" for pid in running}
    for pid in _child_pids():
        if pid in servers:
            continue
        try:
            command = " ".join(psutil.Process(pid).cmdline())
        except psutil.Error:
            command = "ended, but not waited for"
        if "resource_tracker" not in command and "forkserver" not in command:
            found.add(f"process {pid} ({command})")
    return found


def _child_pids() -> list[int]:
    """Return the children of this process; psutil asks for the parent of every process there is."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    threads = list(Path("/proc/self/task").glob("*/children"))
    if not threads:  # not Linux, or a kernel without these lists
        return [child.pid for child in psutil.Process().children()]
    found = []
    for thread in threads:
        with contextlib.suppress(OSError):  # it has ended
            found += [int(pid) for pid in thread.read_text().split()]
    return found


def _others() -> set[str]:
    return _threads() | _children()


def _resources() -> set[str]:
    return _descriptors() | _others()


@pytest.fixture(scope="session")
def linked_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package lies as it is once installed, for tools that only read."""
    tree = tmp_path_factory.mktemp("linked")
    (tree / "fastdata").mkdir()
    for entry in (REPOSITORY / "fastdata").iterdir():
        (tree / "fastdata" / entry.name).symlink_to(entry)
    (tree / "fastdata" / "converters").symlink_to(REPOSITORY / "converters")
    return tree


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Let writers think that the disk is instant: tests outlive processes, not power cuts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(os, "fdatasync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def tuned_results_of_tests_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tuned results in a folder of the tests', also those of their child processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTDATA_TUNED_DIR", str(tmp_path_factory.mktemp("tuned")))
        patch.delenv("FASTDATA_TUNED", raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def formats_are_looked_up_once() -> Iterator[None]:
    """Read which formats are installed once for each `sys.path`, not for each source."""

    @functools.cache
    def of_path(group: str, path: tuple[str, ...]) -> Any:
        return entry_points(group=group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finding, "entry_points", lambda group: of_path(group, tuple(sys.path)))
        yield


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_an_interrupt() -> Iterator[None]:
    """Have Python's own handler of SIGINT, which a shell's background job starts without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def quick_fork_server() -> None:
    """Have the fork server import torch and fastdata once, not each worker."""
    multiprocessing.set_forkserver_preload(fork_servers.PRELOAD)
    # Its socket is there, and not in the folder of the test that first needs it.
    multiprocessing.util.get_temp_dir()


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """Runs programs without the seconds that importing torch takes."""
    python = WarmPython()
    yield python
    python.close()


def _fail_if_demanded(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Fail what was skipped for lack of a part that the environment demands."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    for variable, part in _DEMANDED.items():
        if os.environ.get(variable) == "1" and part in reason.lower():
            report.outcome = "failed"
            report.longrepr = f"{variable}=1 demands a part, but a test was skipped: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether a test passed."""
    report = yield
    _fail_if_demanded(report)
    item.stash[_PASSED] = report.when == "call" and report.passed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Look at the modules that are skipped as a whole, too."""
    report = yield
    _fail_if_demanded(report)
    return report


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a file descriptor, a thread or a child process behind."""
    # What a GPU's driver opens it keeps: pipes and events too, at any time.
    watched = _others if request.node.get_closest_marker("gpu") else _resources
    before = watched()
    yield
    if not request.node.stash.get(_PASSED, False):
        return  # its traceback keeps alive whatever it had open
    request.node.funcargs.clear()  # values of fixtures, alive until the test is torn down
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while left := watched() - before:
        if time.monotonic() > deadline:
            pytest.fail(f"the test left behind: {', '.join(sorted(left))}")
        # What only a reference cycle holds is no leak, nor what is about to end.
        gc.collect()
        _let_obstore_go()
        time.sleep(0.05)


def _let_obstore_go() -> None:
    """Have obstore release what its threads no longer need: it does so when it is called next."""
    if "obstore.store" in sys.modules:
        sys.modules["obstore.store"].MemoryStore()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Compute in one thread: beside another process that tests, several wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder on a disk, for what a file system in memory does not do: dropping cached pages."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def workers_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have loaders that are not told otherwise take threads."""
    monkeypatch.setattr(engine_workers, "_forks", lambda context: False)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have packs commit after every four samples."""
    monkeypatch.setattr(packer, "CHUNK_SAMPLES", 4)
    monkeypatch.setattr(packer, "_COMMIT_BYTES", 1)


@pytest.fixture
def cuda() -> torch.device:
    """A GPU.  Without one a test is skipped."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda")


@pytest.fixture(scope="session")
def dali() -> None:
    """DALI.  Without it a test is skipped."""
    pytest.importorskip("nvidia.dali", exc_type=ImportError)


@pytest.fixture(params=list(SUFFIXES))
def container(request: pytest.FixtureRequest) -> str:
    """Every container in turn."""
    name: str = request.param
    return name


@pytest.fixture
def shard(tmp_path: Path, container: str) -> Path:
    """A shard of six labelled JPEGs, in every container in turn."""
    return write_shard(tmp_path / f"shard{SUFFIXES[container]}", make_records())


@pytest.fixture
def rich_shard(tmp_path: Path, container: str) -> Path:
    """A shard of six samples with a field of every kind, in every container in turn."""
    records = make_records(EVERY_KIND, codec=("jpeg", "png", "raw", "file"))
    return write_shard(tmp_path / f"rich{SUFFIXES[container]}", records, EVERY_KIND)


@pytest.fixture
def shards(tmp_path: Path, container: str) -> Path:
    """A directory of three shards of 3, 1 and 2 labelled JPEGs, in every container in turn."""
    records = make_records()
    parts = records[:3], records[3:4], records[4:]
    return write_shards(tmp_path / "shards", parts, container=container)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same scenes in every container, whole and in three shards, of every codec."""
    records = scenes(40, ("jpeg", "png", "raw", "file"))
    for index in range(4, 40, 8):
        # A JPEG without restart intervals, as `codec="keep"` leaves it.
        pixels = decoded(records[index].values[0], 3)
        records[index] = records[index]._replace(values=(kept(pixels), *records[index].values[1:]))
    return layouts(tmp_path_factory.mktemp("mixed"), records, SCENES)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Raw images of one small size."""
    return layouts(tmp_path_factory.mktemp("tiny"), scenes(60, ("raw",), (20, 22)), SCENES)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred small labelled JPEGs in one shard."""
    return write_shard(tmp_path_factory.mktemp("small") / "s.lmdb", pictures(100), PICTURES)


@pytest.fixture(autouse=True)
def no_accelerator() -> Iterator[None]:
    """Have Accelerate forget what a test has made: its state is one for the whole process."""
    yield
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()
