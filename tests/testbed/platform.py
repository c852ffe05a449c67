"""A stand-in for the Andromeda Platform and Business APIs and their sign-in, over TLS on loopback.

It holds to the documented rules strictly, so that a client which leans on less is found out: a wrong parameter name is
400; a service account's token is 403 at Platform and 401 at Business; Business writes without Idempotency-Key and
Audit-Reason are 400; tokens expire; refresh tokens are spent by their use. The cluster's states advance, and faults
come, on demand. What it hands out as a kubeconfig is the bed's own.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from testbed import pki

ORGANIZATION = "org-7f3a"
CLUSTER = "cl-1a2b3c4d"
ROUTES = {
    "clusters": ("businessOrgId", "clusters.read"),
    "cluster": ("businessOrgId", "clusters.read"),
    "options": ("businessOrgId", "clusters.read"),
    "ssh-access": ("organizationId", "clusters.ssh"),
    "kubeconfig": ("organizationId", "clusters.read"),
}
GRANTED = ("cluster", "kubeconfig")
"""What a Kubernetes resource grant gives to somebody outside of the organization."""


@dataclass
class Person:
    """Who a token is of. `granted`: a resource grant on the cluster, and no membership."""

    name: str = "alice"
    permissions: set[str] = field(default_factory=lambda: {"clusters.read", "clusters.ssh"})
    granted: bool = False
    service_account: bool = False


@dataclass
class State:
    """What the APIs say of the cluster and of the person's keys; changed by tests at any time."""

    name: str = "speedrun-h100"
    lifecycle: str = "active"
    scheduler: str = "sunk"
    slurm: str = "True"
    slurm_reason: str = ""
    storage: dict[str, str] = field(default_factory=lambda: {"ceph": "configured"})
    storage_ready: str = "True"
    ssh_ready: bool = True
    ssh_reason: str = ""
    observation_current: bool = True
    observed_generation: int = 3
    generation: int = 3
    shell: str = "/bin/bash"
    login_shell: str = "/bin/bash"
    keys: list[dict[str, str]] = field(default_factory=list)


@dataclass
class Fault:
    """What every request gets instead of an answer, until `until` (time.monotonic)."""

    status: int
    until: float
    retry_after: str | None = None
    html: bool = False


@dataclass(frozen=True)
class Seen:
    """One request; never its token."""

    method: str
    path: str
    query: dict[str, str]
    status: int


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Platform:
    """The stand-in; serves while it is entered. `kubeconfig` gives what it hands out, as YAML."""

    def __init__(self, directory: Path, kubeconfig: Callable[[], str] = lambda: "") -> None:
        self.state = State()
        self.kubeconfig = kubeconfig
        self.kubeconfig_form = "wrapped"  # wrapped | yaml | json | base64
        self.fault: Fault | None = None
        self.seen: list[Seen] = []
        self.refresh_tokens: dict[str, Person] = {}
        self.access_seconds = 3600.0
        self._tokens: dict[str, tuple[Person, float]] = {}
        self._lock = threading.Lock()
        authority = pki.Authority(directory / f"platform-{secrets.token_hex(4)}")
        authority.issue("server", "127.0.0.1", server=True)
        self.ca_file = authority.directory / "ca.crt"
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.directory / "server.crt", authority.directory / "server.key")
        # The handshake is the handler's, in its own thread: a client that hangs in it holds nobody else up.
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Platform:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)

    @property
    def base(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self.base}/platform"

    @property
    def business_url(self) -> str:
        return f"{self.base}/business"

    @property
    def issuer(self) -> str:
        return f"{self.base}/issuer"

    # ---- what tests do to it

    def sign_in(self, person: Person | None = None, seconds: float = 3600) -> str:
        """An access token of a person that expires after so long."""
        who = person or Person()
        subject = f"system:serviceaccount:lab:{who.name}" if who.service_account else f"user:{who.name}"
        claims = {"sub": subject, "exp": time.time() + seconds, "iss": self.issuer, "jti": secrets.token_hex(4)}
        parts = ({"alg": "none"}, claims)
        text = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        token = f"{text}.{secrets.token_urlsafe(16)}"
        with self._lock:
            self._tokens[token] = (who, time.time() + seconds)
        return token

    def revoke(self, token: str) -> None:
        with self._lock:
            self._tokens.pop(token, None)

    def refresh_token(self, person: Person | None = None) -> str:
        """A refresh token, good for one use."""
        made = secrets.token_urlsafe(24)
        with self._lock:
            self.refresh_tokens[made] = person or Person()
        return made

    def fail(self, status: int, seconds: float, *, retry_after: str | None = None, html: bool = False) -> None:
        """Every request gets this status for so long."""
        self.fault = Fault(status, time.monotonic() + seconds, retry_after, html)

    def heal(self) -> None:
        self.fault = None

    def asked(self, part: str) -> list[Seen]:
        """The requests whose path ends so."""
        return [each for each in list(self.seen) if each.path.endswith(part)]

    @property
    def writes(self) -> list[Seen]:
        return [each for each in list(self.seen) if each.method != "GET" and "/issuer/" not in each.path]

    # ---- how it answers

    def answer(self, method: str, path: str, query: dict[str, str], headers: Any, body: bytes) -> tuple[int, Any]:
        """Status and body. Raises Refused."""
        if path.startswith("/issuer/"):
            return 200, self._sign_in_answer(method, path.removeprefix("/issuer/"), body)
        if path.startswith("/platform/"):
            person = self._who(headers, refuses_service_accounts_with=403)
            return 200, self._platform(method, path.removeprefix("/platform/"), query, person)
        if path.startswith("/business/"):
            person = self._who(headers, refuses_service_accounts_with=401)
            return self._business(method, path.removeprefix("/business/"), headers, body, person)
        raise Refused(404, "no such route")

    def _who(self, headers: Any, refuses_service_accounts_with: int) -> Person:
        scheme, _, token = str(headers.get("Authorization", "")).partition(" ")
        with self._lock:
            person, until = self._tokens.get(token, (None, 0.0))
        if scheme != "Bearer" or person is None:
            raise Refused(401, "invalid token")
        if time.time() >= until:
            raise Refused(401, "token is expired")
        if person.service_account:
            raise Refused(refuses_service_accounts_with, "service account tokens are not accepted")
        return person

    def _platform(self, method: str, path: str, query: dict[str, str], person: Person) -> Any:
        if method != "GET":
            raise Refused(405, "method not allowed")
        parts = path.split("/")
        if parts[0] != "clusters" or len(parts) > 3 or (len(parts) == 3 and parts[2] not in ROUTES):
            raise Refused(404, "no such route")
        route = "clusters" if len(parts) == 1 else "cluster" if len(parts) == 2 else parts[2]
        self._check_query(route, query)
        if len(parts) > 1 and parts[1] != CLUSTER:
            raise Refused(404, "cluster not found")
        self._check_rights(route, query, person)
        return {
            "clusters": lambda: {"items": [self._cluster()]},
            "cluster": self._cluster,
            "options": self._options,
            "ssh-access": self._ssh_access,
            "kubeconfig": self._kubeconfig,
        }[route]()

    def _check_query(self, route: str, query: dict[str, str]) -> None:
        wanted, _ = ROUTES[route]
        if unknown := sorted(set(query) - {wanted}):
            raise Refused(400, f"unknown query parameter {unknown[0]}; expected {wanted}")
        if wanted not in query:
            raise Refused(400, f"missing query parameter {wanted}")

    def _check_rights(self, route: str, query: dict[str, str], person: Person) -> None:
        wanted, permission = ROUTES[route]
        if person.granted and route in GRANTED:
            return
        if query[wanted] != ORGANIZATION or person.granted:
            raise Refused(403, "not a member of the organization")
        if permission not in person.permissions:
            raise Refused(403, f"missing permission {permission}")

    def _cluster(self) -> dict[str, Any]:
        return {
            "id": CLUSTER,
            "spec": {"name": self.state.name, "nodeCount": 2},
            "status": {"lifecycleState": self.state.lifecycle},
            "billing": {"kind": "onDemand"},
        }

    def _options(self) -> dict[str, Any]:
        state = self.state
        return {
            "scheduler": {
                "configured": {"value": state.scheduler},
                "ready": {"status": state.slurm, "reason": state.slurm_reason},
            },
            "storage": {"configured": state.storage, "ready": {"status": state.storage_ready}},
        }

    def _ssh_access(self) -> dict[str, Any]:
        state = self.state
        return {
            "ready": state.ssh_ready,
            "reason": state.ssh_reason or None,
            "observation_current": state.observation_current,
            "ssh_key_set_generation": state.observed_generation,
            "shell": state.shell,
        }

    def _kubeconfig(self) -> Any:
        if self.state.lifecycle != "active":
            raise Refused(409, f"the cluster is {self.state.lifecycle}")
        text = self.kubeconfig()
        if self.kubeconfig_form == "wrapped":
            return {"kubeconfig": text}
        if self.kubeconfig_form == "base64":
            return {"data": base64.b64encode(text.encode()).decode()}
        if self.kubeconfig_form == "json":
            return yaml.safe_load(text)
        return text

    def _business(self, method: str, path: str, headers: Any, body: bytes, person: Person) -> tuple[int, Any]:
        if method != "GET" and not (headers.get("Idempotency-Key") and headers.get("Audit-Reason")):
            raise Refused(400, "Idempotency-Key and Audit-Reason are required")
        match method, path:
            case "GET", "me":
                return 200, {"user": {"username": person.name, "login_shell": self.state.login_shell}}
            case "GET", "me/ssh-keys":
                return 200, {"generation": self.state.generation, "items": self.state.keys}
            case "POST", "me/ssh-keys":
                self.state.keys.append({"public_key": json.loads(body)["public_key"]})
                self.state.generation += 1
                return 201, {"generation": self.state.generation}
        raise Refused(404, "no such route")

    def _sign_in_answer(self, method: str, path: str, body: bytes) -> Any:
        if path == ".well-known/openid-configuration":
            return {"issuer": self.issuer, "token_endpoint": f"{self.issuer}/token"}
        if (method, path) != ("POST", "token"):
            raise Refused(404, "no such route")
        form = dict(urllib.parse.parse_qsl(body.decode()))
        with self._lock:
            person = self.refresh_tokens.pop(form.get("refresh_token", ""), None)
        if form.get("grant_type") != "refresh_token" or form.get("client_id") != "speedrun" or person is None:
            raise Refused(400, "invalid_grant")
        access = self.sign_in(person, self.access_seconds)
        return {
            "access_token": access,
            "id_token": access,
            "token_type": "Bearer",
            "expires_in": self.access_seconds,
            "refresh_token": self.refresh_token(person),
        }


def _handler(platform: Platform) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parsed = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(parsed.query, keep_blank_values=True))
            fault = platform.fault
            if fault is not None and time.monotonic() < fault.until:
                text = "<!doctype html><title>sign in</title>" if fault.html else '{"message": "try again later"}'
                platform.seen.append(Seen(self.command, parsed.path, query, fault.status))
                self._say(fault.status, text, fault.retry_after)
            else:
                try:
                    status, answer = platform.answer(self.command, parsed.path, query, self.headers, body)
                except Refused as refused:
                    error = "invalid_grant" if str(refused) == "invalid_grant" else "refused"
                    status, answer = refused.status, {"error": error, "message": str(refused)}
                platform.seen.append(Seen(self.command, parsed.path, query, status))
                self._say(status, answer if isinstance(answer, str) else json.dumps(answer))

        def _say(self, status: int, text: str, retry_after: str | None = None) -> None:
            data = text.encode()
            kind = "json" if re.match(r"\s*[\[{]", text) else "html" if text.startswith("<") else "yaml"
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if kind == "html" else f"application/{kind}")
            self.send_header("Content-Length", str(len(data)))
            if retry_after is not None:
                self.send_header("Retry-After", retry_after)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _serve

        def log_message(self, format: str, *args: object) -> None:
            return None

    return Handler
