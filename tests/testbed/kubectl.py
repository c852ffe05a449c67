"""kubectl against the bed, as a user would run it."""

from __future__ import annotations

import subprocess
from pathlib import Path


class KubectlFailed(Exception):
    """kubectl ended with another status than 0; the message is what it printed on its standard error."""

    def __init__(self, arguments: tuple[str, ...], status: int, message: str) -> None:
        super().__init__(f"kubectl {' '.join(arguments)}: exit status {status}: {message.strip()}")
        self.status = status
        self.message = message


class Kubectl:
    """`kubectl("get", "namespaces")` gives what it prints; `kubeconfig` says as whom."""

    def __init__(self, binary: Path, kubeconfig: Path) -> None:
        self.binary = binary
        self.kubeconfig = kubeconfig

    def __call__(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Run it and give its standard output. Raises KubectlFailed, TimeoutExpired after `timeout` seconds."""
        argv = [str(self.binary), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode != 0:
            raise KubectlFailed(arguments, done.returncode, done.stderr)
        return done.stdout

    def wait_established(self, crd: str) -> None:
        """Until the API server has taken the CRD. `wait --for=condition` would fail while it has no conditions yet."""
        established = """jsonpath={.status.conditions[?(@.type=="Established")].status}=True"""
        self("wait", f"--for={established}", f"crd/{crd}", "--timeout=30s")

    def acting_as(self, kubeconfig: Path) -> Kubectl:
        """The same with the rights of another kubeconfig."""
        return Kubectl(self.binary, kubeconfig)
