"""The fork servers of a session: one that all tests use, and others that have imported more.

What a server imports is settled when it starts, by the first test that needs it: no test may give
`multiprocessing` another list, which would be that of whatever test comes first in a session.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver
from unittest import mock

PRELOAD = ["fastdata.processes.worker", "fastdata.loading"]

servers = [forkserver._forkserver]
"""Those of this process, started or not."""


def descriptors() -> set[int | None]:
    """Return the descriptors that keep servers alive."""
    return {getattr(server, "_forkserver_alive_fd", None) for server in servers}


class FurtherServer:
    """A fork server beside the session's own, started when a process is first asked of it.

    Parameters
    ----------
    modules : sequence of str
        What it imports besides `PRELOAD`; a module that is missing is ignored.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._server = forkserver.ForkServer()
        self._server.set_forkserver_preload([*PRELOAD, *modules])
        servers.append(self._server)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Have it start the processes of `multiprocessing`'s context "forkserver"."""
        connect = self._server.connect_to_new_process
        with mock.patch.object(forkserver, "connect_to_new_process", connect):
            yield

    def close(self) -> None:
        self._server._stop()
        servers.remove(self._server)
