"""``scripts/soak_stores.py`` kills packs to a store and downloaders, and nothing is wrong then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from object_server import has_s3

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not has_s3(), reason="obstore or moto is not installed"),
]

REPOSITORY = Path(__file__).parents[1]


@pytest.mark.parametrize("job", ["packs", "downloaders"])
def test_a_few_kills_leave_nothing_wrong(job: str) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/soak_stores.py", "--kills", "2", "--job", job],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    count = json.loads(done.stdout.splitlines()[-1])
    assert count["kills"] >= 2
    assert count["wrong"] == []
