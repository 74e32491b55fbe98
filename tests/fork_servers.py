"""The fork servers of a session: one for all tests, and others that import more modules.

A server imports its modules when it starts, for the first test that needs it.  So no test may give
`multiprocessing` another list: which list holds would depend on the order of the tests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver
from unittest import mock

PRELOAD = ["fastdata.processes.worker", "fastdata.loading"]

servers = [forkserver._forkserver]
"""The servers of this process, started or not."""


def descriptors() -> set[int | None]:
    """Return the descriptors that keep servers alive."""
    return {getattr(server, "_forkserver_alive_fd", None) for server in servers}


class FurtherServer:
    """A second fork server, which starts with its first process.

    Parameters
    ----------
    modules : sequence of str
        Modules to import after `PRELOAD`; missing ones are ignored.
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
