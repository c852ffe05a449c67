"""The private Slurm login of each test here."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cluster.login_sshd import Account, LoginSshd
from cluster.slurm.private import PrivateSlurm
from testbed.facts import Facts


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    Account.remove_leftovers()
    account = Account.make()
    yield account
    account.remove()


@pytest.fixture
def sshd(account: Account) -> Iterator[LoginSshd]:
    """A server that is not started yet, with an account as new."""
    account.use_shell("/bin/bash")
    account.empty()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        server = LoginSshd(Path(name), account)
        yield server
        server.stop()


@pytest.fixture
def pace() -> float:
    """How fast time goes for the backends' own waiting; a test may say otherwise."""
    return 10


@pytest.fixture
async def world(sshd: LoginSshd, bed: Facts, pace: float) -> AsyncIterator[PrivateSlurm]:
    world = PrivateSlurm(sshd, bed, pace=pace)
    await world.open()
    yield world
    await world.close()
