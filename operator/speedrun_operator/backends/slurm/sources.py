"""Looks a Speedrun's code up on the login node: one remote command for each question, answers kept for a minute."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import shlex
import time
from collections.abc import Callable
from dataclasses import replace

from speedrun_operator.api.phases import Reason
from speedrun_operator.backends.slurm.commands import sections
from speedrun_operator.backends.slurm.parts import bash_path
from speedrun_operator.login import Login
from speedrun_operator.login.errors import LoginError
from speedrun_operator.recipes.recipe import Recipe
from speedrun_operator.source import git
from speedrun_operator.source.answers import read_path, read_repository
from speedrun_operator.source.resolved import Source, Unresolved, Wanted, is_commit, layout_of

GIT_SECONDS = 40
LOOK_SECONDS = 150.0  # two of git's, and waiting for a login that starts
KEPT_SECONDS = 60.0
MOST_OUTPUT = 256 * 1024
MOST_KEPT = 1000


class SlurmSources:
    """Implements `backends.base.Sources`. `login` is the backend's own, so that both share its connection."""

    def __init__(self, login: Login, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._login = login
        self._monotonic = monotonic
        self._kept: dict[tuple[Wanted, str], tuple[float, Source]] = {}
        self._asking: dict[tuple[Wanted, str], asyncio.Lock] = {}

    async def resolve(self, wanted: Wanted, recipe: Recipe, secret: bytes) -> Source | Unresolved:
        # Who gives another secret must not get what somebody else's was shown.
        key = (wanted, hashlib.sha256(secret).hexdigest())
        lock = self._asking.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                at, kept = self._kept.get(key, (0.0, None))
                if kept is not None and self._monotonic() - at < KEPT_SECONDS:
                    return kept
                found = await self._ask(wanted, recipe, secret)
                if isinstance(found, Source) and found.path is None:
                    self._forget_old()
                    self._kept[key] = (self._monotonic(), found)
                return found
        finally:
            if not lock.locked():
                self._asking.pop(key, None)

    async def _ask(self, wanted: Wanted, recipe: Recipe, secret: bytes) -> Source | Unresolved:
        nonce = secrets.token_hex(8)
        try:
            done = await self._login.run(
                command(wanted, nonce), stdin=secret + b"\0", timeout=LOOK_SECONDS, max_output=MOST_OUTPUT
            )
        except LoginError as error:
            return Unresolved(Reason.SOURCE_UNREACHABLE, f"{error.reason}: {error.message}", heals=True)
        answers = [(each.words, each.body.decode(errors="replace")) for each in sections(done.stdout, nonce)]
        stderr = done.stderr.decode(errors="replace")
        read = read_path(wanted, answers) if wanted.path else read_repository(wanted, answers, stderr)
        if isinstance(read, Unresolved):
            return read
        source, roots = read
        layout = layout_of(recipe, roots)
        looked = bool(roots)
        if recipe.layouts and looked and layout is None:
            known = " nor ".join(each.root for each in recipe.layouts)
            field = "path" if wanted.path else "repository"
            message = f"spec.recipe.source.{field}: the code has neither {known} at its root; it is no {recipe.name}"
            return Unresolved(Reason.UNSUPPORTED_SOURCE, message, heals=False)
        return replace(source, layout=layout)

    def _forget_old(self) -> None:
        if len(self._kept) >= MOST_KEPT:
            now = self._monotonic()
            self._kept = {key: each for key, each in self._kept.items() if now - each[0] < KEPT_SECONDS}


def command(wanted: Wanted, nonce: str) -> str:
    """The remote command that looks `wanted` up. Its standard input: the secret, if there is one, and NUL."""
    lines = [f"nonce={nonce}", f"roots=({shlex.join(wanted.roots)})", f"skip=({shlex.join(wanted.left_out)})"]
    if wanted.path:
        return "\n".join([*lines, f"path={bash_path(wanted.path)}", git.CHECKOUT, git.LOOK, ""])
    commit = wanted.revision if is_commit(wanted.revision) else ""
    lines += [
        f"repository={shlex.quote(wanted.repository or '')}",
        f"commit={commit}",
        f"names=({shlex.join(git.names_of(wanted.revision))})",
    ]
    return "\n".join([*lines, git.OWN_GIT, git.RESOLVE.replace("GIT_SECONDS", str(GIT_SECONDS)), ""])
