"""Kopf, thin: it watches, re-logs in, and holds the finalizer until the jobs of a deleted Speedrun are gone.

Kopf has a thread and an event loop of its own, for it cancels every task in its loop when it ends. It never polls and
never writes status: a PATCH of Kopf's that fails kills a timer or daemon for good, and `patch.status` can be lost. So
there is no timer and no daemon here; `on.event` wakes the engine, `on.delete` waits for it. All that Kopf writes is
metadata: the finalizer, and the label of a finished Speedrun in the same request that takes the finalizer away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf

from speedrun_operator.api.names import FINALIZER, FINISHED_LABEL, GROUP, PLURAL, VERSION, Identity
from speedrun_operator.api.resource import says_finished
from speedrun_operator.kube.access import Access, AccessError, Credentials
from speedrun_operator.reconcile import Engine

logger = logging.getLogger(__name__)
RESTART_FIRST, RESTART_LONGEST = 1.0, 60.0
LOGIN_AGAIN = timedelta(seconds=10)


class NothingHandled(kopf.DiffBaseStorage):
    """Keeps no last-handled copy: nothing is called for a change, so the annotation would be a write for nothing."""

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        return None

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        """Nothing is compared, so nothing is copied: Kopf would copy the whole object at each event."""
        return kopf.BodyEssence({})


def kopf_settings() -> kopf.OperatorSettings:
    """Kopf's settings; the reasons are in its documents and in docs/design.md."""
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP, v1=False)
    settings.persistence.diffbase_storage = NothingHandled()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.watching.connect_timeout = 10
    settings.watching.label_selectors[f"{PLURAL}.{VERSION}.{GROUP}"] = f"{FINISHED_LABEL}!=true"
    settings.networking.request_timeout = 30
    settings.execution.default_backoff = 15
    settings.background.cancellation_polling = 2
    settings.process.ultimate_exiting_timeout = 10
    return settings


def register(registry: kopf.OperatorRegistry, link: EngineLink, login: KopfLogin) -> None:
    """Everything that Kopf calls."""

    def live(body: kopf.Body, **_: Any) -> bool:
        return not says_finished(body)

    @kopf.on.login(registry=registry, id="login", backoff=LOGIN_AGAIN.total_seconds())
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await login.connection()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry, id="wake")
    async def wake(event: kopf.RawEvent, patch: kopf.Patch, **_: Any) -> None:
        link.pass_on(event["type"], event["object"])
        if is_let_go(event["object"]):
            patch.fns.append(label_finished)  # Kopf sends it with the finalizer's removal, which is one of `fns`, too

    @kopf.on.delete(GROUP, VERSION, PLURAL, registry=registry, id="release", when=live)
    async def release(namespace: str | None, name: str, uid: str, **_: Any) -> None:
        await link.release(Identity(namespace or "", name, uid))


def is_let_go(raw: Mapping[str, Any]) -> bool:
    """Whether Kopf takes the finalizer off this object now since it is finished, not since it is deleted."""
    metadata = raw["metadata"]
    held = FINALIZER in (metadata.get("finalizers") or ())
    return held and not metadata.get("deletionTimestamp") and says_finished(raw)


def label_finished(body: Any) -> None:
    """Take the object out of the watch. A function of Kopf's patch: it changes a copy of the raw object."""
    metadata = body["metadata"]
    metadata["labels"] = {**(metadata.get("labels") or {}), FINISHED_LABEL: "true"}


class KopfLogin:
    """What one life of Kopf logs in with: the same credentials as the engine's, held in the engine's loop.

    Kopf asks when what it has has run out, and when the API server refused it. To give it a refused one again would end
    it; so it then gets another, or waits for one. Its watches go on from where they were.
    """

    def __init__(self, access: Access, loop: asyncio.AbstractEventLoop) -> None:
        self._access = access
        self._loop = loop
        self._given: Credentials | None = None

    async def connection(self) -> kopf.ConnectionInfo:
        """Raises kopf.LoginError with what is wrong; Kopf then asks again."""
        future = asyncio.run_coroutine_threadsafe(self._take(), self._loop)
        try:
            found = await asyncio.wrap_future(future)
        except AccessError as error:
            logger.warning("%s", error)
            raise kopf.LoginError(str(error)) from error
        self._given = found
        return connection_info(found, datetime.now(UTC))

    async def _take(self) -> Credentials:
        given = self._given
        if given is not None and (given.fresh is None or datetime.now(UTC) < given.fresh):
            return await self._access.refused(given)
        return await self._access.current()


def connection_info(found: Credentials, now: datetime) -> kopf.ConnectionInfo:
    """The same as Kopf wants it. It drops the connection at `expiration` and asks again: not at once, in any case."""
    return kopf.ConnectionInfo(
        server=found.server,
        ca_data=found.ca,
        insecure=found.insecure,
        certificate_data=found.certificate,
        private_key_data=found.private_key,
        token=found.token,
        scheme="Bearer" if found.token else None,
        username=found.username,
        password=found.password,
        proxy_url=found.proxy,
        expiration=None if found.fresh is None else max(found.fresh, now + LOGIN_AGAIN),
    )


class EngineLink:
    """The way from Kopf's thread to the engine's loop: wake-ups and objects that nobody changes, nothing else.

    Objects are passed on together, of each the newest: a wake-up of another thread's loop costs more than an event.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._lock = threading.Lock()
        self._news: dict[str, Mapping[str, Any] | None] = {}

    def pass_on(self, type_: str | None, raw: Mapping[str, Any]) -> None:
        """An event of the watch."""
        uid = str(raw["metadata"]["uid"])
        with self._lock:
            first = not self._news
            self._news[uid] = None if type_ == "DELETED" else raw
        if first:
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            news, self._news = self._news, {}
        for uid, raw in news.items():
            if raw is None:
                self._engine.gone(uid)
            else:
                self._engine.watched(raw)

    async def release(self, identity: Identity) -> None:
        future = asyncio.run_coroutine_threadsafe(self._engine.release(identity), self._loop)
        await asyncio.wrap_future(future)


class Watcher:
    """Kopf in its thread. When it ends by itself (a lost watch) it is started again with back-off.

    To be made in the engine's loop, where `access` lives.
    """

    def __init__(self, link: EngineLink, access: Access, namespaces: Sequence[str]) -> None:
        self._link = link
        self._access = access
        self._engine_loop = asyncio.get_running_loop()
        self._namespaces = list(namespaces)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        self.last_error: str | None = None
        self.running = False

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End Kopf; return when its thread has ended or after `timeout` seconds."""
        self._stopping.set()
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended already
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout)

    def _run(self) -> None:
        wait = RESTART_FIRST
        while not self._stopping.is_set():
            started = asyncio.run(self._watch())
            if self._stopping.is_set():
                return
            wait = RESTART_FIRST if started else min(RESTART_LONGEST, wait * 2)
            logger.warning("the watch ended (%s); it starts again in %.0f s", self.last_error, wait)
            self._stopping.wait(wait * random.uniform(0.8, 1.2))

    async def _watch(self) -> bool:
        """One life of Kopf; whether it ever got as far as watching."""
        registry = kopf.OperatorRegistry()
        register(registry, self._link, KopfLogin(self._access, self._engine_loop))
        ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        scope: dict[str, Any] = {"namespaces": self._namespaces} if self._namespaces else {"clusterwide": True}
        self._task = asyncio.create_task(
            kopf.operator(registry=registry, settings=kopf_settings(), standalone=True, ready_flag=ready, **scope)
        )
        self.running = True
        try:
            await self._task
            self.last_error = "it ended without an error"
        except asyncio.CancelledError:
            self.last_error = "stopped"
        except Exception as error:
            self.last_error = f"{type(error).__name__}: {error}"
        finally:
            self.running = False
        return ready.is_set()
