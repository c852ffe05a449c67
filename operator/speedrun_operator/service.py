"""`speedrun-operator run`: puts the parts together, and takes them apart on SIGTERM.

Main thread: the engine's loop. Beside it: Kopf's thread, and those of /healthz and /metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import signal
from collections.abc import Coroutine
from dataclasses import replace
from datetime import timedelta

from speedrun_operator import __version__
from speedrun_operator.api.phases import Reason
from speedrun_operator.api.spec import Backend as Kind
from speedrun_operator.backends.base import Backend
from speedrun_operator.backends.pods.backend import PodsBackend
from speedrun_operator.backends.pods.manifest import CLUSTER_LABEL
from speedrun_operator.backends.pods.site import PodSite
from speedrun_operator.backends.slurm.backend import SlurmBackend, SlurmSite
from speedrun_operator.backends.slurm.prepare import Limits
from speedrun_operator.backends.slurm.sources import SlurmSources
from speedrun_operator.crd import CrdWatch
from speedrun_operator.entries import Setup
from speedrun_operator.following import follow
from speedrun_operator.handlers import EngineLink, Watcher
from speedrun_operator.heart import Heart
from speedrun_operator.instruments import Instruments, Workers
from speedrun_operator.keeper import Keeper
from speedrun_operator.kube.access import AccessError, own_namespace
from speedrun_operator.kube.client import Kube, Refused
from speedrun_operator.kube.events import Subject
from speedrun_operator.kube.pods import Pods
from speedrun_operator.lifecycle.situation import Policy, Waiting
from speedrun_operator.listeners import AddressFault, listening
from speedrun_operator.login import Login, LoginTarget, NotRun
from speedrun_operator.login_secret import LOGIN_PATIENCE_SECONDS, NoNamespace, secrets_namespace
from speedrun_operator.logins import Logins
from speedrun_operator.logs import configure_logging
from speedrun_operator.outside import access, login_fault, platform_api
from speedrun_operator.planning import Site
from speedrun_operator.platform.client import PlatformApi
from speedrun_operator.policy import Rules
from speedrun_operator.recipes.recipe import shipped
from speedrun_operator.reconcile import Engine
from speedrun_operator.resync import Resync
from speedrun_operator.settings import Settings
from speedrun_operator.starting import cluster_of
from speedrun_operator.teams import Teams

logger = logging.getLogger("speedrun_operator")
CONFIGURATION_FAULT = 78  # EX_CONFIG of sysexits.h
STOP_SECONDS = 15.0


async def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; the exit code. Only a fault of configuration ends it by itself."""
    configure_logging(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    api: PlatformApi | None = None
    kube: Kube | None = None
    try:
        if not settings.logins and not settings.login.missing:
            slurm_login(settings).check_key()
        if fault := login_fault(settings):
            raise AccessError(fault)
        api = platform_api(settings.platform) if settings.platform.in_use else None
        held = access(settings, api)
        kube = Kube(held)
        crd = CrdWatch(kube, deployment(settings))
        instruments = Instruments(Heart(), kube, held, crd, api, settings.watch.namespaces)
        # From the first moment on: a cluster that is being made, or a CRD to be installed, may take its time.
        with listening(settings, instruments):
            beat = asyncio.create_task(instruments.heart.run(), name="heart")
            try:
                cluster = await _until(stop, cluster_of(kube, held, settings, crd))
                return 0 if cluster is None else await _serve(settings, instruments, cluster, stop)
            finally:
                beat.cancel()
    except (AccessError, AddressFault, NoNamespace, NotRun) as error:
        logger.error("%s", error)
        return CONFIGURATION_FAULT
    except Refused as error:
        logger.error("the API server refuses what the operator needs: %s; `speedrun-operator check` says more", error)
        return CONFIGURATION_FAULT
    finally:
        if kube is not None:
            await kube.close()
        if api is not None:
            await api.close()


async def _serve(settings: Settings, instruments: Instruments, cluster: str, stop: asyncio.Event) -> int:
    kube, held, api = instruments.kube, instruments.held, instruments.api
    where = secrets_namespace(settings) if settings.logins else None
    slurm, pods = slurm_backend(settings, cluster), pods_backend(settings, kube, cluster)
    backends: dict[Kind, Backend] = {}
    if slurm is not None:
        backends[Kind.SLURM] = slurm
    if pods is not None:
        backends[Kind.PODS] = pods
    sources = SlurmSources(slurm.login) if slurm else None
    engine = Engine(kube=kube, backends=backends, setup=_setup(settings, cluster, where), sources=sources)
    watcher = Watcher(EngineLink(engine, asyncio.get_running_loop()), held, settings.watch.namespaces)
    resync = Resync(kube, engine, lambda: engine.backends, settings.watch.namespaces, scope(settings))
    tasks = []
    if where is not None:
        own = Teams(kube, engine, settings, where, lambda login, root: _backend_of(settings, cluster, login, root))
        await own.once()
        tasks.append(asyncio.create_task(own.run(), name="logins"))
    tasks += [
        asyncio.create_task(engine.run(), name="engine"),
        asyncio.create_task(resync.run(settings.watch.resync_seconds), name="resync"),
        asyncio.create_task(instruments.crd.run(), name="the CRD's watch"),
    ]
    if api is not None:
        tasks += await follow(settings, kube, engine, lambda: _slurm(engine), api)
    if settings.cache.most_gib or settings.cache.ledger_days:
        keepers = lambda: [each.housekeeper() for each in _slurm(engine)]  # noqa: E731
        keeper = Keeper(kube, keepers, settings.watch.namespaces, settings.cache)
        tasks.append(asyncio.create_task(keeper.run(), name="housekeeping"))
    watcher.start()
    kinds = [*backends, *([Kind.SLURM] if settings.logins else [])]
    instruments.workers = Workers(engine, watcher, kinds, lambda: [each.login for each in _slurm(engine)])
    logger.info("speedrun-operator %s runs for cluster %s", __version__, cluster)
    try:
        ended = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {ended}:
            logger.error("%s ended unexpectedly", task.get_name(), exc_info=task.exception())
        return 0 if ended in done else 1
    finally:
        logger.info("stopping")
        await asyncio.to_thread(watcher.stop, STOP_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in engine.backends))


def _slurm(engine: Engine) -> list[SlurmBackend]:
    return [each for each in engine.backends if isinstance(each, SlurmBackend)]


def deployment(settings: Settings) -> Subject | None:
    """What the operator runs as, for events about itself; None where that is not known."""
    name, namespace = settings.deployment.name, settings.deployment.namespace or own_namespace()
    return Subject("apps/v1", "Deployment", namespace, name) if name and namespace else None


def slurm_login(settings: Settings, *, patience: float = math.inf) -> Login:
    """The connection that the settings name; `patience` as in LoginTarget. ValueError where they are not whole."""
    login = settings.login
    if login.key_file is None or login.known_hosts_file is None:
        raise ValueError(f"login is not configured: set {', '.join(login.missing)}")
    return Login(
        LoginTarget(
            host=login.host,
            port=login.port,
            user=login.user,
            key=login.key_file,
            known_hosts=login.known_hosts_file,
            connect_timeout=login.connect_timeout_seconds,
            max_channels=login.max_channels,
            patience=patience,
        )
    )


def slurm_backend(settings: Settings, cluster: str) -> SlurmBackend | None:
    """The backend Slurm, or None where the login is not configured, or namespaces have logins of their own."""
    if settings.login.missing or settings.logins:
        return None
    login = slurm_login(settings, patience=LOGIN_PATIENCE_SECONDS)
    return SlurmBackend(login, slurm_site(settings), cluster)


def _backend_of(settings: Settings, cluster: str, login: Login, root: str) -> SlurmBackend:
    return SlurmBackend(login, replace(slurm_site(settings), root=root), cluster)


def slurm_site(settings: Settings) -> SlurmSite:
    """How the settings say that jobs are laid out."""
    wanted = settings.prepare
    limits = Limits(wanted.partition, wanted.cpus, wanted.memory_gib * 1024, wanted.minutes)
    return SlurmSite(settings.slurm.root, settings.slurm.python, limits, scope(settings))


def scope(settings: Settings) -> str:
    """Tells operators on one cluster apart that watch other namespaces."""
    names = sorted(settings.watch.namespaces)
    return hashlib.sha256(",".join(names).encode()).hexdigest()[:8] if names else "all"


def pods_backend(settings: Settings, kube: Kube, cluster: str) -> PodsBackend | None:
    """The backend Pods, or None where it is not enabled."""
    if not settings.pods.enabled:
        return None
    pods = Pods(kube, f"{CLUSTER_LABEL}={cluster}", settings.watch.namespaces)
    return PodsBackend(pods, PodSite.of(settings.pods), cluster)


def _setup(settings: Settings, cluster: str, secrets: str | None) -> Setup:
    """`secrets`: the namespace of the logins' Secrets, where namespaces have logins of their own."""
    waiting: dict[Kind, Waiting] = {}
    if not settings.logins and (missing := settings.login.missing):
        waiting[Kind.SLURM] = Waiting(
            Reason.LOGIN_NOT_CONFIGURED.value,
            f"the operator does not know the login service: set {', '.join(missing)} and start it again",
        )
    if not settings.pods.enabled:
        waiting[Kind.PODS] = Waiting(
            Reason.PODS_NOT_ENABLED.value, "the operator makes no pods: set pods.enabled and start it again"
        )
    return Setup(
        cluster=cluster,
        recipes=shipped(),
        site=Site(
            gpu_partition=settings.slurm.gpu_partition,
            partition=settings.slurm.partition,
            pod_image=settings.pods.image,
        ),
        policy=Policy(
            lost_after=timedelta(seconds=settings.slurm.lost_after_seconds),
            never_after=timedelta(seconds=settings.slurm.never_after_seconds),
        ),
        poll_seconds=settings.slurm.poll_seconds,
        release_seconds=settings.slurm.release_seconds,
        pod_poll_seconds=settings.pods.poll_seconds,
        most_finished=settings.metrics.speedruns if settings.metrics.address else 0,
        waiting=waiting,
        logins=Logins({namespace: each.secret for namespace, each in settings.logins.items()}),
        rules=Rules(
            recipes=tuple(settings.policy.allowed_recipes),
            repositories=tuple(settings.policy.allowed_repositories),
            custom=settings.policy.custom_recipes,
            foreign=settings.policy.foreign_sources,
            home=own_namespace(),
            home_allowed=settings.policy.own_namespace,
            secrets=secrets,
        ),
    )


async def _until(stop: asyncio.Event, work: Coroutine[None, None, str]) -> str | None:
    """What `work` gives, or None if `stop` comes first."""
    task, ended = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait([task, ended], return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if task.done():
        return task.result()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return None
