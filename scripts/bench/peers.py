"""Where the interpreters of the peers are, and how a contender is started."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import REPOSITORY, Contender

HERE = Path(__file__).resolve().parent


OWN_ENVIRONMENT = ("ffcv", "dali", "mds")
"""The peers that cannot be installed together with others."""


def environment(peer: str) -> str:
    """Return what make_peers calls the environment of a peer."""
    return peer if peer in OWN_ENVIRONMENT else "torch"


def peer_python(peer: str) -> str:
    """Return a peer's interpreter.

    The one that ``FASTDATA_BENCH_<PEER>_PYTHON`` names, else the one that
    make_peers makes, whether it is there or not.
    """
    made = REPOSITORY / ".peers" / environment(peer) / "bin" / "python"
    return os.environ.get(f"FASTDATA_BENCH_{peer.upper()}_PYTHON") or str(made)


def contender(
    name: str,
    script: str,
    options: Mapping[str, object],
    *,
    peer: str = "",
    modules: Sequence[str] = (),
    notes: Mapping[str, str] | None = None,
) -> Contender:
    """Return the contender that runs ``contenders/SCRIPT`` with `options` as JSON.

    Without `peer` it runs in this interpreter.
    """
    python = peer_python(peer) if peer else sys.executable
    missing = ""
    if peer and not os.path.exists(python):
        missing = f"there is no {python}; scripts/bench/make_peers {environment(peer)} makes it"
    command = [python, str(HERE / "contenders" / script), json.dumps(dict(options))]
    return Contender(name, command, modules, missing, notes or {})
