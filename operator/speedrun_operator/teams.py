"""Keeps the logins of namespaces as their Secrets say, without a restart: by default one `get` a minute for each.

A new key or known_hosts of the same user is taken up by the next command; commands under way end on the connection
that they have. Another user is another login: what ran as the first one is then unknown, and not lost. A Secret that
is gone ends the use of its key; one that cannot be read for a while does not.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from speedrun_operator.api.phases import Reason
from speedrun_operator.backends.base import Backend
from speedrun_operator.backends.slurm.backend import SlurmBackend
from speedrun_operator.backends.slurm.sources import SlurmSources
from speedrun_operator.kube.client import ApiError, Kube
from speedrun_operator.lifecycle.situation import Waiting
from speedrun_operator.login import Login, LoginTarget
from speedrun_operator.login_secret import Team, read, teams
from speedrun_operator.reconcile import Engine
from speedrun_operator.settings import Settings

logger = logging.getLogger(__name__)
AGAIN_SECONDS = 10.0  # while one is at fault, at most


class Teams:
    """See the module. `namespace`: of the Secrets. `backend`: makes the backend of a login."""

    def __init__(
        self,
        kube: Kube,
        engine: Engine,
        settings: Settings,
        namespace: str,
        backend: Callable[[Login, str], SlurmBackend],
    ) -> None:
        self._kube = kube
        self._engine = engine
        self._settings = settings
        self._namespace = namespace
        self._backend = backend
        self._teams = teams(settings)
        self._held: dict[str, Login] = {}
        self._faults: dict[str, Waiting] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def once(self) -> None:
        """Look at every Secret once."""
        await asyncio.gather(*map(self._look, self._teams))

    async def run(self) -> None:
        """Look every `logins_read_seconds`, and more often while one is at fault, until cancelled."""
        await asyncio.gather(*map(self._keep, self._teams))

    async def _keep(self, team: Team) -> None:
        while True:
            period = self._settings.logins_read_seconds
            seconds = min(period, AGAIN_SECONDS) if team.name in self._faults else period
            await asyncio.sleep(seconds * random.uniform(0.9, 1.1))
            await self._look(team)

    async def _look(self, team: Team) -> None:
        try:
            found = await read(self._kube, self._settings, self._namespace, team)
        except ApiError as error:
            found = Waiting(Reason.SECRET_UNREAD.value, f"the login's Secret {team.name} cannot be read now: {error}")
        if isinstance(found, LoginTarget):
            found = self._doubled(team, found) or found
        if isinstance(found, LoginTarget):
            self._take(team, found)
        else:
            self._fail(team, found)

    def _take(self, team: Team, target: LoginTarget) -> None:
        self._faults.pop(team.name, None)
        held = self._held.get(team.name)
        if held is not None and str(held.target) == str(target):
            held.renew(target)
            return
        login = self._held[team.name] = Login(target)
        whose = ", ".join(team.namespaces)
        logger.info("login %s of %s is %s", team.name, whose, target)
        self._close(self._engine.opened(team.name, str(target), self._backend(login, team.root), SlurmSources(login)))

    def _fail(self, team: Team, fault: Waiting) -> None:
        if self._faults.get(team.name) != fault:
            logger.warning("login %s: %s: %s", team.name, fault.reason, fault.message)
        self._faults[team.name] = fault
        passing = fault.reason in (Reason.SECRET_UNREAD.value, Reason.SECRET_FORBIDDEN.value)
        if passing and team.name in self._held:
            return
        self._held.pop(team.name, None)
        self._close(self._engine.shut(team.name, fault))

    def _doubled(self, team: Team, target: LoginTarget) -> Waiting | None:
        """Two roots of one user would each find the other's jobs that prepare, by their names."""
        for other in self._teams:
            held = self._held.get(other.name)
            if held is None or other is team or str(held.target) != str(target) or other.root == team.root:
                continue
            message = (
                f"the login's Secret {team.name} gives {target}, as Secret {other.name} does with another root: give "
                f"both the same in logins ({other.root}, {team.root})"
            )
            return Waiting(Reason.SECRET_UNUSABLE.value, message)
        return None

    def _close(self, backend: Backend | None) -> None:
        """Without waiting: what runs on it ends as unknown, and is looked up."""
        if backend is not None:
            task = asyncio.create_task(backend.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
