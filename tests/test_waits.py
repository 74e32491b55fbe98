"""Waits without a limit say what they wait for."""

from __future__ import annotations

import io
import logging
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tqdm import tqdm

from fastdata import waits
from fastdata.remote.client import Client
from fastdata.tuning import runner
from fastdata.waits import result_of, said_while, wait_until


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "FIRST_SECONDS", 0.03)
    monkeypatch.setattr(waits, "NEXT_SECONDS", 0.05)


def _until_said(caplog: pytest.LogCaptureFixture, times: int = 1) -> bool:
    time.sleep(0.005)
    return len(caplog.records) >= times


def test_a_long_wait_says_what_for_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    names = iter(["one", "two", "three"])
    wait_until(lambda seconds: _until_said(caplog, 3), lambda: next(names))
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(" for ")[1] for text in said] == ["one", "two", "three"]
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_a_short_wait_says_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "FIRST_SECONDS", 30.0)
    wait_until(lambda seconds: True, lambda: pytest.fail("nobody asks"))
    done: Future[int] = Future()
    done.set_result(3)
    assert result_of(done, "x") == 3
    with said_while("x"):
        pass
    assert not caplog.records


def test_a_future_is_waited_for_and_its_error_raised(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        while not _until_said(caplog):
            pass
        raise TimeoutError("its own")

    with ThreadPoolExecutor(1) as pool, pytest.raises(TimeoutError, match="its own"):
        result_of(pool.submit(fail), "the future")
    assert "the future" in caplog.text


def test_a_call_that_blocks_says_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    with said_while("an answer"):
        while not _until_said(caplog):
            pass
    assert "has been waiting for an answer" in caplog.text


def test_a_message_has_a_line_of_its_own_above_a_progress_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    handler: Any = logging.StreamHandler(screen)
    logging.getLogger("fastdata").addHandler(handler)
    try:
        with tqdm(total=9, desc="packing", file=screen) as bar:
            bar.update(3)
            wait_until(lambda seconds: "waiting" in screen.getvalue(), "a part")
    finally:
        logging.getLogger("fastdata").removeHandler(handler)
    line = next(line for line in screen.getvalue().split("\n") if "waiting" in line)
    # The bar was cleared before: what is left of its line is blank.
    assert line.rsplit("\r", 1)[1].startswith("fastdata has been waiting for a part")


def test_a_downloader_that_does_not_answer_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(SimpleNamespace(path=Path("/cache")))  # type: ignore[arg-type]

    def answer(number: int) -> None:
        while not _until_said(caplog):
            pass
        client._take({"kind": "reply", "id": number})

    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(client, "_send", lambda message: pool.submit(answer, message[0]["id"]))
        assert client.ask({"kind": "open"})["kind"] == "reply"
    assert "has been waiting for the downloader of the cache /cache" in caplog.text


def test_a_measurement_that_takes_long_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_TICK_SECONDS", 0.01)
    made = runner.ProcessRunner(time.sleep, 0.0)
    try:
        made.call("__bool__", seconds=30.0)
    finally:
        made.close()
    assert "has been waiting for a measurement (at most 150 s)" in caplog.text
