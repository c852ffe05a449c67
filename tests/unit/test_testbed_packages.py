"""Installing packages leaves the machine's policy on starting services as it was, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from testbed import apt

OWN = "#!/bin/sh\nexit 104\n"


def nothing(policy: Path) -> None:
    pass


def own_file(policy: Path) -> None:
    policy.write_text(OWN)
    policy.chmod(0o755)


def own_symlink(policy: Path) -> None:
    target = policy.with_name("elsewhere")
    target.write_text(OWN)
    policy.symlink_to(target)


def look(policy: Path) -> tuple[bool, str | None, int | None]:
    """Whether it is a symlink, its text and its mode."""
    if not policy.exists():
        return policy.is_symlink(), None, None
    return policy.is_symlink(), policy.read_text(), policy.stat().st_mode & 0o777


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "policy-rc.d"
    monkeypatch.setattr(apt, "POLICY", path)
    monkeypatch.setattr(apt, "SAVED", tmp_path / "saved")
    return path


@pytest.mark.parametrize("before", [nothing, own_file, own_symlink])
def test_the_policy_forbids_meanwhile_and_is_put_back(policy: Path, before: Callable[[Path], None]) -> None:
    before(policy)
    found = look(policy)
    with pytest.raises(KeyboardInterrupt), apt.no_service_starts():
        assert policy.read_text().endswith("exit 101\n")
        assert policy.stat().st_mode & 0o111
        raise KeyboardInterrupt
    assert look(policy) == found


@pytest.mark.parametrize("before", [nothing, own_file, own_symlink])
def test_what_a_killed_installation_left_is_mended(policy: Path, before: Callable[[Path], None]) -> None:
    before(policy)
    found = look(policy)
    killed = apt.no_service_starts()
    killed.__enter__()
    apt.put_policy_back()
    assert look(policy) == found
    apt.put_policy_back()
    assert look(policy) == found
