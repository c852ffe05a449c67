"""The operator outside of the cluster: the Platform API's stand-in, a person's token, certificates to rotate.

The kubeconfig that the stand-in hands out is of a person with the operator's rights and no more, known to the API
server by a client certificate of an authority of its own. Rotating it makes the API server refuse the old one.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from testbed import pki
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.kubernetes import Kubernetes
from testbed.operator import ROLE
from testbed.part import Place
from testbed.platform import CLUSTER, ORGANIZATION, Platform

PERSON = "speedrun-person"
SUBJECT = {"kind": "User", "name": PERSON, "apiGroup": "rbac.authorization.k8s.io"}
BINDINGS = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": PERSON, **place},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": ROLE},
        "subjects": [SUBJECT],
    }
    for kind, place in (("ClusterRole", {}), ("Role", {"namespace": "kube-system"}))
]
FLAGS = (f"--organization={ORGANIZATION}", f"--cluster={CLUSTER}")


class Outside:
    """A person who may run the operator from their own machine. `directory` is theirs."""

    def __init__(self, place: Place, facts: Facts, directory: Path) -> None:
        self.kubernetes = Kubernetes(place)
        self.directory = directory
        self.token_file = directory / "token"
        self.platform = Platform(directory, lambda: self._kubeconfig.read_text())
        self.rotate()
        self.sign_in()
        self.platform.state.keys = [{"public_key": facts.ssh_key.with_suffix(".pub").read_text()}]
        kubectl = Kubectl(facts.kubectl, facts.kubeconfig)
        kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": BINDINGS}))

    def rotate(self) -> None:
        """Hand out a new client certificate, and have the API server refuse the one before."""
        directory = self.directory / f"authority-{secrets.token_hex(4)}"
        authority = pki.Authority(directory)
        authority.issue("person", PERSON)
        path = directory / "kubeconfig"
        pki.kubeconfig(
            path,
            server=self.kubernetes.url("kube-apiserver"),
            authority=self.kubernetes.pki / "ca.crt",
            user=pki.certificate_user(directory, "person"),
        )
        self._kubeconfig = path
        self.kubernetes.trust_clients(directory / "ca.crt")

    def sign_in(self, seconds: float = 3600) -> str:
        """Put a new token, which lasts so long, where the operator looks."""
        token = self.platform.sign_in(seconds=seconds)
        pki.write_private(self.token_file, token + "\n")
        return token

    def settings(self) -> dict[str, str]:
        """Variables of the operator's environment."""
        return {
            "SPEEDRUN_KUBECONFIG": "",
            "SPEEDRUN_PLATFORM__URL": self.platform.url,
            "SPEEDRUN_PLATFORM__BUSINESS_URL": self.platform.business_url,
            "SPEEDRUN_PLATFORM__CA_FILE": str(self.platform.ca_file),
            "SPEEDRUN_PLATFORM__TOKEN_FILE": str(self.token_file),
            "SPEEDRUN_PLATFORM__POLL_SECONDS": "1",
        }
