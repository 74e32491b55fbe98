"""Several ranks of a script on this machine, which are watched at once, and compared.

Every rank is a process with the environment that ``torchrun`` gives it.  Its epochs end after so
many batches, and never after a time, so that all ranks do the same; one that has been watched waits
until all have.
"""

from __future__ import annotations

import os
import socket
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from fastdata.doctor.messages import Request, Watched
from fastdata.doctor.processes import ScriptProcess
from fastdata.doctor.script import Script
from fastdata.processes.resources import available_cores

__all__ = ["watch_ranks"]

PATIENCE_SECONDS = 60.0
"""That other ranks have when one is done."""


def watch_ranks(script: Script, count: int, scratch: Path, seconds: float) -> list[Watched]:
    """Run a script with so many ranks until the steps of each were seen.

    Raises the `ScriptFailedError` of the rank that fails first, as the others fail by that.  A rank
    that goes on no more when another one is done is returned as it was seen, and the first one's
    `failed` says so.
    """
    begun: dict[int, Watched] = {}

    def follow(rank: int, process: ScriptProcess) -> Watched:
        begun[rank] = watched = process.watched_to_end(seconds)
        facts = watched.rank
        return process.watched_to_end(seconds) if facts and not facts.complete else watched

    # The processes end first; then the threads, which wait for them.
    with ThreadPoolExecutor(count) as pool, ExitStack() as stack:
        shared = _environment(count)
        answers = []
        for rank in range(count):
            request = Request(script, str(scratch / f"rank-{rank}"), watch_only=True, ranks=count)
            variables = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = stack.enter_context(ScriptProcess(request, variables))
            answers.append(pool.submit(follow, rank, process))
        wait(answers, return_when=FIRST_COMPLETED)
        done, _ = wait(answers, PATIENCE_SECONDS, return_when=FIRST_EXCEPTION)
        late = [rank for rank, answer in enumerate(answers) if answer not in done]
        found = [
            answer.result() if answer in done else begun.get(rank, Watched())
            for rank, answer in enumerate(answers)
        ]
    if late:
        names = ", ".join(map(str, late))
        why = f"rank {names} went on no more when others were done: do ranks wait for each other?"
        found[0] = replace(found[0], failed=found[0].failed or why)
    return found


def _environment(count: int) -> dict[str, str]:
    """Return what ``torchrun`` sets for each of the ranks on one machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "fastdata-doctor",  # by which Lightning knows it is started so
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")
        or str(max(1, available_cores() // count)),
    }
