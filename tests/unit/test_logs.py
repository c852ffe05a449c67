"""What the log keeps of an exception."""

from __future__ import annotations

import logging
import sys

import aiohttp

from speedrun_operator.logs import in_one_line


def record(logger: str, error: Exception) -> logging.LogRecord:
    try:
        raise error
    except Exception:
        made = logging.LogRecord(logger, logging.ERROR, "", 0, "failed: %s", (error,), sys.exc_info())
    assert in_one_line(made)
    return made


def test_what_the_api_server_said_to_kopf_takes_one_line() -> None:
    found = record("kopf._core.reactor.queueing", aiohttp.ServerDisconnectedError())
    assert found.exc_info is None
    assert "Traceback" not in logging.Formatter("%(message)s").format(found)


def test_a_fault_of_the_program_keeps_its_traceback() -> None:
    assert record("kopf.objects", KeyError("x")).exc_info
    assert record("speedrun_operator.reconcile", aiohttp.ServerDisconnectedError()).exc_info
