"""What a bed tells about itself."""

import subprocess

import pytest

from testbed.facts import Facts
from testbed.part import Place


def test_exports_survive_a_shell() -> None:
    facts = Facts({"kubeconfig": "/a b/it's", "kubectl": "/opt/x/kubectl", "ssh_port": "2222"})
    script = facts.exports() + '\nprintf "%s|%s|%s" "$KUBECONFIG" "$TESTBED_SSH_PORT" "${PATH%%:*}"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "/a b/it's|2222|/opt/x"


def test_typed_facts() -> None:
    assert Facts({"ssh_port": "2222"}).ssh_port == 2222


def test_a_fact_of_a_half_that_is_not_up_says_why() -> None:
    with pytest.raises(LookupError, match=r"no 'slurm_conf' \(was it started with --only\?\); it has: api_url"):
        _ = Facts({"api_url": "x"}).slurm_conf


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown profile 'slow': choose one of fast, default, bench"):
        Place(profile="slow")
