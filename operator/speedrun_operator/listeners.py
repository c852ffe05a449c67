"""The operator's listeners: /healthz and /metrics, each at the address that the settings give it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from speedrun_operator import health
from speedrun_operator.instruments import Instruments
from speedrun_operator.listening import Listener
from speedrun_operator.metrics import page
from speedrun_operator.settings import Settings


class AddressFault(Exception):
    """An address of the settings at which nothing can listen."""


@contextmanager
def listening(settings: Settings, instruments: Instruments) -> Iterator[None]:
    """Both are there meanwhile. Raises AddressFault."""
    pages = {
        "health_address": (settings.health_address, health.PATH, health.healthz(instruments.heart, instruments.counts)),
        "metrics.address": (
            settings.metrics.address,
            page.PATH,
            page.metrics(instruments.figures, settings.metrics.speedruns),
        ),
    }
    with ExitStack() as open_:
        for setting, (address, path, made) in pages.items():
            if not address:
                continue
            try:
                listener = Listener(setting, address, {path: made})
            except OSError as error:
                raise AddressFault(f"{setting} {address}: {error}; choose another") from error
            listener.start()
            open_.callback(listener.stop)
        yield
