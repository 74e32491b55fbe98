"""One destination has one packer: its lock, those who come second, and who outlives whom."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import psutil
import pytest
from pack_helpers import SMALL, held_pack, image_folder, run_child, start_child
from process_helpers import gone, wait_until

import fastdata
from fastdata.converters.packing import lock
from fastdata.converters.packing.packer import Packer
from fastdata.errors import DestinationExistsError, DestinationLockedError

pytestmark = pytest.mark.usefixtures("small_chunks")


def test_a_second_packer_refuses_and_says_who_is_the_first(tmp_path: Path) -> None:
    source, path = image_folder(tmp_path / "images", 200), tmp_path / "x.lmdb"
    options = {**SMALL, "num_workers": 1}
    process = start_child(held_pack, source, path, options, tmp_path / "go on")
    wait_until((tmp_path / "x.lmdb.partial" / "state.json").exists)
    for overwrite in (False, True):
        with pytest.raises(DestinationLockedError, match=rf"another process \(pid {process.pid}\)"):
            fastdata.pack(source, path, **options, overwrite=overwrite)
    (tmp_path / "go on").touch()
    process.join()
    assert process.exitcode == 0  # it was not disturbed
    process.close()
    assert len(fastdata.open(path)) == 200


def test_after_a_kill_the_lock_is_free_at_once_and_workers_end(tmp_path: Path) -> None:
    source, path = image_folder(tmp_path / "images", 200), tmp_path / "x.lmdb"
    options = {**SMALL, "num_workers": 2}
    process = start_child(held_pack, source, path, options, tmp_path / "never")
    wait_until((tmp_path / "x.lmdb.partial" / "state.json").exists)
    workers = psutil.Process(process.pid).children(recursive=True)
    for worker in workers:
        worker.suspend()  # so that they are certainly there while the lock is taken
    process.kill()
    process.join()
    process.close()
    assert len(workers) >= 2
    Packer(path).close()
    assert all(worker.is_running() for worker in workers)
    for worker in workers:
        worker.resume()
    assert gone(*(worker.pid for worker in workers))
    assert fastdata.pack(source, path, **{**options, "num_workers": 0}).num_samples == 200
    assert not (tmp_path / "x.lmdb.partial").exists()


def test_orphaned_workers_end_though_others_hold_the_pipe_open(tmp_path: Path) -> None:
    """A process that the packer's program forked meanwhile inherits the workers' life line."""
    source, path = image_folder(tmp_path / "images", 200), tmp_path / "x.lmdb"
    report = tmp_path / "pid"

    def pack_and_fork() -> None:
        def fork() -> None:
            wait_until((tmp_path / "x.lmdb.partial" / "state.json").exists)
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            report.write_text(str(child))

        threading.Thread(target=fork).start()
        held_pack(source, path, {**SMALL, "num_workers": 1}, tmp_path / "never")

    process = start_child(pack_and_fork)
    wait_until(lambda: report.exists() and report.read_text() != "")
    other = psutil.Process(int(report.read_text()))
    workers = [c for c in psutil.Process(process.pid).children() if c.pid != other.pid]
    process.kill()
    process.join()
    process.close()
    try:
        assert workers
        assert gone(*(worker.pid for worker in workers))
    finally:
        other.kill()


@pytest.mark.parametrize("alias", ["x.lmdb", "sub/../x.lmdb", "linked/x.lmdb"])
def test_threads_of_one_process_are_kept_apart(tmp_path: Path, alias: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path)
    path, source = tmp_path / "x.lmdb", image_folder(tmp_path / "images", 8)
    first = Packer(path)
    try:
        with pytest.raises(DestinationLockedError, match="another thread of this process"):
            fastdata.pack(source, tmp_path / alias, **SMALL)

        # The refusal did not give the lock away, as closing the file would have.
        def other_process() -> None:
            lock._locked_here.clear()
            try:
                fastdata.pack(source, tmp_path / alias, **SMALL)
            except DestinationLockedError:
                os._exit(7)

        assert run_child(other_process) == 7
    finally:
        first.close()
    assert fastdata.pack(source, tmp_path / alias, **SMALL).num_samples == 8


def test_many_threads_race_for_one_destination_and_one_gets_it(tmp_path: Path) -> None:
    source, path = image_folder(tmp_path / "images", 20), tmp_path / "x.lmdb"
    outcomes: list[str] = []
    gate = threading.Barrier(6)

    def run() -> None:
        gate.wait()
        try:
            fastdata.pack(source, path, **SMALL)
            outcomes.append("packed")
        except (DestinationLockedError, DestinationExistsError) as error:
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("packed") == 1
    assert len(outcomes) == 6
    assert not (tmp_path / "x.lmdb.partial").exists()


def test_packers_that_come_and_go_never_meet(tmp_path: Path) -> None:
    """Taking the lock races with the removal of its directory."""
    path = tmp_path / "x.lmdb"

    def come_and_go() -> None:
        for _ in range(60):
            lock._locked_here.clear()
            with contextlib.suppress(DestinationLockedError):
                mine = Packer(path)
                claim = tmp_path / "claim"
                descriptor = os.open(claim, os.O_CREAT | os.O_EXCL)
                os.close(descriptor)
                claim.unlink()
                mine.close()

    children = [start_child(come_and_go) for _ in range(4)]
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    for child in children:
        child.close()
    assert [p.name for p in tmp_path.iterdir()] == []
