from __future__ import annotations

from pathlib import Path

import pytest

from unit.slurm.login_node import LoginNode


@pytest.fixture
def node(tmp_path: Path) -> LoginNode:
    return LoginNode(tmp_path)
