"""What tests with real client libraries share: ranks, and samples that can be told by their pixels.

Each rank is a process of its own, as ``torchrun`` would start it. The pixels of sample ``i`` are
its index and the place of each pixel, so that a batch shows which samples it has, and which crop
and flip were drawn for each of them:

    red      i, in every pixel
    green    the column, 0 to 31
    blue     the row, 0 to 31
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import socket
import time
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import distributed, multiprocessing

import fastdata

COUNT = 97
"""Samples of the dataset: a prime, so that no batch size and no world size divides it."""
SIZE = 32
CLASSES = 10

FIRST_FAILURE_SECONDS = 10.0
"""How long the other ranks may take after one has failed; most of them wait for it in vain."""


class Outcome(NamedTuple):
    """What became of one rank."""

    error: str | None
    result: Any = None
    finished: bool = False


class RanksError(AssertionError):
    """At least one rank failed or did not finish; the message has the traceback of each."""


def image_of(index: int) -> np.ndarray[Any, Any]:
    """Return the image of a sample: uint8, H x W x C."""
    image = np.empty((SIZE, SIZE, 3), np.uint8)
    image[..., 0] = index
    image[..., 1] = np.arange(SIZE)
    image[..., 2] = np.arange(SIZE)[:, None]
    return image


def pack_samples(path: Path, indices: Iterable[int], **options: Any) -> None:
    """Pack samples of these indices without loss."""
    samples = ({"image": image_of(index), "label": index % CLASSES} for index in indices)
    fastdata.pack(samples, path, size=SIZE, codec="png", num_workers=0, progress=False, **options)


def samples_of(images: Any) -> list[int]:
    """Return which samples a batch of images [N, C, H, W] has, uint8 or 0 to 1."""
    return [int(value) for value, *_ in fingerprints(images)]


def fingerprints(images: Any) -> list[tuple[int, int, int, int]]:
    """Return for each image of a batch its sample, and which left column, top row, right column.

    In an image that is flipped the left one is above the right one.
    """
    if images.is_floating_point():
        images = images * 255
    corners = [images[:, 0, 0, 0], images[:, 1, 0, 0], images[:, 2, 0, 0], images[:, 1, 0, -1]]
    return [tuple(round(float(v)) for v in values) for values in zip(*corners, strict=True)]  # type: ignore[misc]


def run_ranks(
    work: Callable[..., Any],
    world_size: int,
    /,
    *arguments: Any,
    group: bool = False,
    seconds: float = 100.0,
    **keywords: Any,
) -> list[Any]:
    """Return what ``work(*arguments, **keywords)`` returned on each rank.

    Every rank is a fresh process, also if there is only one: client libraries keep state of the
    process. With two or more ranks, the environment is that of ``torchrun`` (RANK, WORLD_SIZE,
    MASTER_ADDR and the like); with one, that of a plain ``python script.py``.

    Parameters
    ----------
    work : callable
        At the top level of a module. Its result must be picklable.
    world_size : int
        Number of ranks.
    *arguments, **keywords
        Of `work`.
    group : bool
        Whether gloo's process group is initialised before `work` is called. Most clients do that
        themselves.
    seconds : float
        How long all ranks may take together.

    Raises
    ------
    RanksError
        If a rank raised an exception, ended without a result or took too long.
    """
    context = multiprocessing.get_context("forkserver")
    port = _free_port()
    processes, connections = [], []
    try:
        for rank in range(world_size):
            here, there = context.Pipe(duplex=False)
            environment = _environment(rank, world_size, port)
            process = context.Process(
                target=_be_rank, args=(there, environment, group, work, arguments, keywords)
            )
            process.start()
            there.close()
            processes.append(process)
            connections.append(here)
        outcomes = _collect(connections, seconds)
        for process, outcome in zip(processes, outcomes, strict=True):
            if outcome.finished:  # it still destroys its group and its workers
                process.join(FIRST_FAILURE_SECONDS)
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()
        for connection in connections:
            connection.close()
    failures = [
        f"rank {rank} of {world_size}: {outcome.error}"
        for rank, outcome in enumerate(outcomes)
        if outcome.error is not None
    ]
    if failures:
        raise RanksError("\n".join(failures))
    return [outcome.result for outcome in outcomes]


def _environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    # "CUDA_VISIBLE_DEVICES" is empty so that clients take gloo also where there is a GPU.
    shared = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    if world_size == 1:
        return shared
    return {
        **shared,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _be_rank(
    connection: Connection,
    environment: dict[str, str],
    group: bool,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> None:
    """Be one rank, and send its `Outcome`."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        if group:
            distributed.init_process_group("gloo")
        # Pickled by pickle itself: torch's own way shares memory, which ends with this process.
        answer = pickle.dumps(Outcome(None, work(*arguments, **keywords), True))
    except BaseException:
        answer = pickle.dumps(Outcome(traceback.format_exc(), finished=True))
    connection.send_bytes(answer)
    connection.close()
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _collect(connections: list[Connection], seconds: float) -> list[Outcome]:
    """Return what each rank sent, or why it sent nothing."""
    outcomes = [Outcome("did not finish in time")] * len(connections)
    waiting = {connection: rank for rank, connection in enumerate(connections)}
    deadline = time.monotonic() + seconds
    while waiting:
        ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for connection in ready:
            assert isinstance(connection, Connection)
            rank = waiting.pop(connection)
            try:
                outcomes[rank] = pickle.loads(connection.recv_bytes())
            except EOFError:
                outcomes[rank] = Outcome("ended without a result")
            if outcomes[rank].error is not None:
                deadline = min(deadline, time.monotonic() + FIRST_FAILURE_SECONDS)
    return outcomes


def _free_port() -> int:
    """Return a port that no connection gets by chance, as those do that the system chooses."""
    while True:
        port = secrets.choice(range(20_000, 32_768))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
