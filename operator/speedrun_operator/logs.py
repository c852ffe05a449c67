"""The operator's own log: one line a record on stderr, and no more lines than somebody can use."""

from __future__ import annotations

import logging
import sys

from pythonjsonlogger.json import JsonFormatter

from speedrun_operator.settings import Settings

CHATTY = ("asyncssh", "kopf", "aiohttp", "asyncio", "httpx", "httpcore")
ANSWERS = ("kopf.", "aiohttp.")  # whose exceptions are what an API server said, or that it said nothing


def configure_logging(settings: Settings) -> None:
    """JSON unless `log_format` is text."""
    handler = logging.StreamHandler(sys.stderr)
    if settings.log_format == "json":
        handler.setFormatter(
            JsonFormatter(
                "{asctime}{levelname}{name}{message}",
                style="{",
                rename_fields={"asctime": "time", "levelname": "level"},
            )
        )
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    handler.addFilter(in_one_line)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())
    logging.getLogger("kopf._core.reactor.running").addFilter(_news)
    for each in CHATTY:
        logging.getLogger(each).setLevel("WARNING")


def in_one_line(record: logging.LogRecord) -> bool:
    """Kopf tells each end of its watch with two tracebacks of its own inside. What the API server said is no bug."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if record.name.startswith("kopf") and type(error).__module__.startswith(ANSWERS):
        record.exc_info = record.exc_text = None
    return True


def _news(record: logging.LogRecord) -> bool:
    """Kopf warns that its thread gets no signals; here it is so by design."""
    return not record.getMessage().startswith("OS signals are ignored")
