"""Failures in the helpers that play a life show values, as failures in tests do."""

import pytest

pytest.register_assert_rewrite("unit.lifecycle.invariants", "unit.lifecycle.lives", "unit.lifecycle.rows")
