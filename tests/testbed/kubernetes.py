"""etcd, kube-apiserver and kube-controller-manager on loopback, and what tests do to them.

One part of the bed with three processes. RBAC is on, priority and fairness is at its default, ports are chosen free
and kept while the part is up, so that a component that a test killed comes back where it was, with its data.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path

from testbed import pki, ports
from testbed.node_config import Layout
from testbed.part import Place
from testbed.processes import StartFailed
from testbed.tools import Toolbox

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager")
CONTROLLERS = (
    "namespace-controller",
    "garbage-collector-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
    # for what the chart installs
    "deployment-controller",
    "replicaset-controller",
    "job-controller",
    # for the node (node.py)
    "node-lifecycle-controller",
    "persistentvolume-binder-controller",
    "pod-garbage-collector-controller",
    "resourcequota-controller",
    "taint-eviction-controller",
)
HEALTH = {"etcd": "/health", "kube-apiserver": "/readyz", "kube-controller-manager": "/healthz"}
# It shares two cores with all that is tested, and has memory to spare: a tenth of its time less goes to Go's collector.
ENVIRONMENT = {"kube-apiserver": {"GOGC": "300"}}
BOOTSTRAPPED = ("kube-system", "default/serviceaccounts/default", "default/configmaps/kube-root-ca.crt")
READY_SECONDS = 60


class ApiError(Exception):
    """The API server answered, and not with success. `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


def _message(answer: bytes) -> str:
    """The message of a Status object, or the answer itself where a server answers with less."""
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace")[:500]


class Kubernetes:
    name = "kubernetes"

    def __init__(self, place: Place) -> None:
        self.place = place
        self.directory = place.state / "kubernetes"
        self.pki = self.directory / "pki"
        self.kubeconfig = self.directory / "admin.kubeconfig"
        self._node = Layout(place.state / "node")

    # ---- the part

    def up(self) -> dict[str, str]:
        """Start all three with fresh data and wait until service accounts and namespaces work. Raises StartFailed."""
        tools = Toolbox(self.place).ensure((*COMPONENTS, "kubectl"))
        shutil.rmtree(self.directory, ignore_errors=True)
        self._make_credentials()
        ports.kept_ports(self.directory / "ports.json", (*COMPONENTS, "etcd-peer"))
        (self.directory / "tools.json").write_text(json.dumps({name: str(path) for name, path in tools.items()}))
        user = pki.certificate_user(self.pki, "admin")
        pki.kubeconfig(self.kubeconfig, server=self.url("kube-apiserver"), authority=self.pki / "ca.crt", user=user)
        manager = pki.certificate_user(self.pki, "controller-manager")
        path = self.pki / "controller-manager.kubeconfig"
        pki.kubeconfig(path, server=self.url("kube-apiserver"), authority=self.pki / "ca.crt", user=manager)
        for component in COMPONENTS:
            self.start(component)
        self.place.processes.ready("kube-controller-manager", self._bootstrapped, timeout=READY_SECONDS)
        return {
            "kubeconfig": str(self.kubeconfig),
            "api_url": self.url("kube-apiserver"),
            "kubectl": str(tools["kubectl"]),
        }

    def down(self) -> None:
        """Stop all three. The API server would wait a minute for open watches, and loses nothing when it is killed."""
        for component in reversed(COMPONENTS):
            self.place.processes.stop(component, grace=2)

    def service_account_kubeconfig(self, namespace: str, name: str, path: Path, duration_seconds: int = 3600) -> None:
        """Write a kubeconfig (0600) that acts as a service account that exists. Raises ApiError.

        The token comes from a TokenRequest; the API server refuses less than 600 s.
        """
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": duration_seconds},
        }
        where = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token = json.loads(self.call("POST", where, request))["status"]["token"]
        pki.kubeconfig(
            path,
            server=self.url("kube-apiserver"),
            authority=self.pki / "ca.crt",
            user={"token": token},
            namespace=namespace,
        )

    def trust_clients(self, *authorities: Path) -> None:
        """Take client certificates of these authorities and the bed's own, and of no other from a moment on.

        The API server reads the file again by itself; it looks at the certificate at each request.
        """
        bundle = self.pki / "clients.crt.new"
        bundle.write_text("".join(each.read_text() for each in (self.pki / "ca.crt", *authorities)))
        bundle.replace(self.pki / "clients.crt")

    # ---- faults: each component by itself, with its data and port kept

    def start(self, component: str, *, wait: bool = True) -> None:
        """Start one component that is not running; with `wait`, until it says that it is ready. Raises StartFailed."""
        log = self.place.logs / f"{component}.log"
        self.place.processes.start(component, self._argv(component), log=log, env=ENVIRONMENT.get(component))
        if wait:
            self.wait_ready(component)

    def wait_ready(self, component: str, timeout: float = READY_SECONDS) -> None:
        self.place.processes.ready(component, lambda: self.healthy(component), timeout=timeout)

    def stop(self, component: str) -> None:
        """End one component as an administrator would (SIGTERM)."""
        self.place.processes.stop(component)

    def kill(self, component: str) -> None:
        """End one component as the kernel would (SIGKILL)."""
        self.place.processes.kill(component)

    def pause(self, component: str) -> None:
        """Freeze one component: connections to it stay open and nobody answers."""
        self.place.processes.signal(component, signal.SIGSTOP)

    def resume(self, component: str) -> None:
        self.place.processes.signal(component, signal.SIGCONT)

    def heal(self) -> None:
        """Undo whatever of the above: all three run and are ready. Raises StartFailed."""
        for component in COMPONENTS:
            self.resume(component)
            if not self.place.processes.alive(component):
                self.start(component, wait=False)
        for component in COMPONENTS:
            self.wait_ready(component)

    # ---- questions

    def url(self, component: str) -> str:
        return f"https://127.0.0.1:{self._port(component)}"

    def healthy(self, component: str) -> bool:
        """Whether the component answers its own health check with success, within 5 s."""
        try:
            self._request(component, "GET", HEALTH[component])
        except (OSError, http.client.HTTPException, ApiError):
            return False
        return True

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        timeout: float = 15,
        content_type: str = "application/json",
    ) -> bytes:
        """One request to the API server as its administrator; the answer's body.

        `timeout` is in seconds. Raises ApiError for an answer that is no success, OSError (TimeoutError) without one.
        """
        return self._request("kube-apiserver", method, path, body, timeout, content_type)

    @contextlib.contextmanager
    def stream(self, path: str) -> Iterator[http.client.HTTPResponse]:
        """The answer to a GET of `path` as its administrator, to be read line by line: a watch. Raises as `call`."""
        connection = self._connection("kube-apiserver", timeout=90)
        try:
            connection.request("GET", path)
            with connection.getresponse() as answer:
                if answer.status >= 300:
                    raise ApiError(answer.status, _message(answer.read()))
                yield answer
        finally:
            connection.close()

    def exists(self, path: str) -> bool:
        """Whether a GET of `path` finds an object."""
        try:
            self.call("GET", path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def _bootstrapped(self) -> bool:
        """Namespaces are there, and the controllers have acted in one: it has its service account and root CA."""
        try:
            return all(self.exists(f"/api/v1/namespaces/{what}") for what in BOOTSTRAPPED)
        except (OSError, http.client.HTTPException, ApiError):
            return False

    def _request(
        self,
        component: str,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        timeout: float = 5,
        content_type: str = "application/json",
    ) -> bytes:
        connection = self._connection(component, timeout)
        try:
            headers = {"Content-Type": content_type} if body else {}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise ApiError(answer.status, _message(text))
        return text

    def _connection(self, component: str, timeout: float) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=self.pki / "ca.crt")
        context.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
        return http.client.HTTPSConnection("127.0.0.1", self._port(component), timeout=timeout, context=context)

    # ---- how each is started

    def _port(self, component: str) -> int:
        try:
            return ports.read_ports(self.directory / "ports.json")[component]
        except FileNotFoundError:
            raise StartFailed(self.name, "is not up: run `python -m testbed up` first") from None

    def _make_credentials(self) -> None:
        authority = pki.Authority(self.pki)
        # The node reaches it at another address (node.py).
        authority.issue("server", "127.0.0.1", server=True, addresses=("127.0.0.1", self._node.addresses[0]))
        authority.issue("etcd-client", "kube-apiserver")
        authority.issue("admin", "testbed-admin", organisation="system:masters")
        authority.issue("controller-manager", "system:kube-controller-manager")
        authority.issue("scheduler", "system:kube-scheduler")
        authority.issue("kubelet", f"system:node:{self._node.name}", organisation="system:nodes")
        self.trust_clients()
        pki.signing_key(self.pki / "service-accounts.key", self.pki / "service-accounts.pub")

    def _argv(self, component: str) -> list[str]:
        flags = {
            "etcd": self._etcd_flags,
            "kube-apiserver": self._apiserver_flags,
            "kube-controller-manager": self._controller_manager_flags,
        }[component]()
        tools = json.loads((self.directory / "tools.json").read_text())
        return [tools[component], *(f"--{name}={value}" for name, value in flags.items())]

    def _etcd_flags(self) -> dict[str, object]:
        client, peer = self.url("etcd"), self.url("etcd-peer")
        certificate, key, authority = self.pki / "server.crt", self.pki / "server.key", self.pki / "ca.crt"
        return {
            "name": "testbed",
            "data-dir": self.directory / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"testbed={peer}",
            "cert-file": certificate,
            "key-file": key,
            "trusted-ca-file": authority,
            "client-cert-auth": "true",
            "peer-cert-file": certificate,
            "peer-key-file": key,
            "peer-trusted-ca-file": authority,
            "peer-client-cert-auth": "true",
            "heartbeat-interval": 20,  # a lone member still waits for an election at each start
            "election-timeout": 200,
            "unsafe-no-fsync": "true",  # the data need not outlive a power cut, only a killed process
            "log-level": "warn",
        }

    def _apiserver_flags(self) -> dict[str, object]:
        return {
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": self._port("kube-apiserver"),
            "tls-cert-file": self.pki / "server.crt",
            "tls-private-key-file": self.pki / "server.key",
            "client-ca-file": self.pki / "clients.crt",
            "etcd-servers": self.url("etcd"),
            "etcd-cafile": self.pki / "ca.crt",
            "etcd-certfile": self.pki / "etcd-client.crt",
            "etcd-keyfile": self.pki / "etcd-client.key",
            "authorization-mode": "Node,RBAC",
            "service-cluster-ip-range": "10.96.0.0/16",
            "kubelet-client-certificate": self.pki / "admin.crt",
            "kubelet-client-key": self.pki / "admin.key",
            "kubelet-preferred-address-types": "InternalIP",
            "endpoint-reconciler-type": "none",  # a loopback address may not be an endpoint
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-signing-key-file": self.pki / "service-accounts.key",
            "service-account-key-file": self.pki / "service-accounts.pub",
        }

    def _controller_manager_flags(self) -> dict[str, object]:
        config = self.pki / "controller-manager.kubeconfig"
        return {
            "bind-address": "127.0.0.1",
            "secure-port": self._port("kube-controller-manager"),
            "tls-cert-file": self.pki / "server.crt",
            "tls-private-key-file": self.pki / "server.key",
            "kubeconfig": config,
            "authentication-kubeconfig": config,
            "authorization-kubeconfig": config,
            "authentication-skip-lookup": "true",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": self.pki / "service-accounts.key",
            "root-ca-file": self.pki / "ca.crt",
            "controllers": ",".join(CONTROLLERS),
            "leader-elect": "false",
            "node-monitor-period": "1s",
            "node-monitor-grace-period": "10s",
        }
