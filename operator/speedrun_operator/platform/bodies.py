"""Every guess about what the Platform and Business APIs answer, in one place. The only file that knows field names.

Documented, and relied on:
  GET /clusters                     {"items": [{"id", "spec": {"name"}, "status": {"lifecycleState"}}]}
  GET /clusters/{id}/options        {"scheduler": {"configured": {"value": "sunk"}, "ready": {"status": "True"}},
                                     "storage": {"configured": {"ceph": "configured"}, "ready": {"status": "True"}}}
  GET /clusters/{id}/ssh-access     {"ready", "reason", "observation_current", "ssh_key_set_generation", "shell"}
  GET /me                           {"user": {"login_shell"}}
  GET /me/ssh-keys                  {"generation"}
Guessed, each read tolerantly; what is not there is unknown and never a yes:
  - GET /clusters/{id} answers one item of the list, bare or under "cluster" or "item";
  - a list may come bare, or under "items", "clusters" or "data";
  - `ready` may carry "reason" and "message" beside "status", as Kubernetes conditions do, or be the status alone;
  - any field may be null, which is as if it were not there;
  - `storage.configured` may be a list of names, and say "configured", true or an object for a kind that is there;
  - words for a cluster that ends, has ended or failed (LIFECYCLES);
  - /ssh-access may say "host", "port" and "username" of the gateway;
  - keys are under "items", "keys" or "ssh_keys", each with "fingerprint" (SHA256:…) or "public_key";
  - /kubeconfig answers YAML, or JSON: the kubeconfig itself, or it as text (also base64) or object under one of WRAPS.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from speedrun_operator.api.cluster import Lifecycle, Ready
from speedrun_operator.platform.errors import Unanswered

Model = TypeVar("Model", bound=BaseModel)
WRAPS = ("kubeconfig", "kubeConfig", "config", "content", "data", "value")
LISTS = ("items", "clusters", "data", "keys", "ssh_keys")
LIFECYCLES = {
    Lifecycle.PROVISIONING: {"provisioning", "pending", "requested", "creating", "starting", "scheduled"},
    Lifecycle.ACTIVE: {"active", "running", "ready", "updating"},
    Lifecycle.ENDING: {"ending", "terminating", "deleting", "deprovisioning", "stopping"},
    Lifecycle.ENDED: {"ended", "terminated", "deleted", "deprovisioned", "stopped", "cancelled", "expired"},
    Lifecycle.FAILED: {"failed", "error"},
}
TRUE = "True"
PAGE = "an HTML page: a proxy or a sign-in page answers in place of the API"


class Loose(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        """A field that is null is one that is not there."""
        return {key: value for key, value in body.items() if value is not None} if isinstance(body, dict) else body


class ClusterSpec(Loose):
    name: str = ""


class ClusterStatus(Loose):
    lifecycle_state: str = Field(default="", alias="lifecycleState")


class Cluster(Loose):
    id: str
    spec: ClusterSpec = ClusterSpec()
    status: ClusterStatus = ClusterStatus()

    @property
    def lifecycle(self) -> Lifecycle | None:
        word = self.status.lifecycle_state.lower()
        known = (each for each, words in LIFECYCLES.items() if word in words)
        return next(known, Lifecycle.OTHER) if word else None


class Condition(Loose):
    status: str | bool | None = None
    reason: str | None = None
    message: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, body: Any) -> Any:
        return {"status": body} if isinstance(body, str | bool) else body

    def ready(self) -> Ready:
        """Only the string "True" is a yes (a JSON true is taken for it)."""
        if self.status is None:
            return Ready()
        words = ": ".join(each for each in (self.reason, self.message) if each)
        return Ready(True, str(self.status) == TRUE, words[:300])


class Value(Loose):
    value: str | None = None


class Scheduler(Loose):
    configured: Value | str | None = None
    ready: Condition | None = None

    @property
    def name(self) -> str | None:
        return self.configured.value if isinstance(self.configured, Value) else self.configured


class Storage(Loose):
    configured: dict[str, Any] | list[str] | None = None
    ready: Condition | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        if isinstance(self.configured, list):
            return tuple(sorted(self.configured))
        given = (self.configured or {}).items()
        return tuple(sorted(kind for kind, said in given if said in ("configured", True) or isinstance(said, dict)))


class Options(Loose):
    scheduler: Scheduler = Scheduler()
    storage: Storage = Storage()


class SshAccess(Loose):
    ready: bool | str | None = None
    reason: str | None = None
    observation_current: bool | None = None
    ssh_key_set_generation: int | str | None = None
    shell: str | None = None
    host: str | None = None
    port: int | None = None
    username: str | None = None

    def is_ready(self) -> Ready:
        if self.ready is None:
            return Ready()
        return Ready(True, str(self.ready) == TRUE, (self.reason or "")[:300])


class SshKey(Loose):
    fingerprint: str | None = None
    public_key: str | None = None

    def fingerprints(self) -> set[str]:
        """As `ssh-keygen -l` shows them: SHA256:…, without padding."""
        found = {self.fingerprint.strip().rstrip("=")} if self.fingerprint else set()
        parts = (self.public_key or "").split()
        if len(parts) >= 2:
            try:
                digest = hashlib.sha256(base64.b64decode(parts[1], validate=True)).digest()
            except ValueError:
                return found
            found.add("SHA256:" + base64.b64encode(digest).decode().rstrip("="))
        return found


class SshKeys(Loose):
    generation: int | str | None = None
    keys: tuple[SshKey, ...] = ()


class User(Loose):
    login_shell: str | None = None
    username: str | None = None


class Me(Loose):
    user: User = User()


def clusters(body: Any) -> list[Cluster]:
    return [parsed(Cluster, each, "a cluster") for each in _list(body, "clusters")]


def cluster(body: Any) -> Cluster:
    inner = next((body[name] for name in ("cluster", "item") if isinstance(body, dict) and name in body), body)
    return parsed(Cluster, inner, "a cluster")


def ssh_keys(body: Any) -> SshKeys:
    generation = body.get("generation") if isinstance(body, dict) else None
    return parsed(SshKeys, {"generation": generation, "keys": _list(body, "SSH keys")}, "SSH keys")


def parsed(model: type[Model], body: Any, what: str) -> Model:
    """Raises Unanswered where the body is of another shape: a newer API may be at fault, and may be put right."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "it"
        raise Unanswered(f"the answer about {what} has another shape than expected (at {where})") from None


def kubeconfig(text: str) -> str:
    """The kubeconfig in an answer's body: YAML or JSON, bare or wrapped. Raises Unanswered."""
    if text.lstrip()[:1] == "<":
        raise Unanswered(f"the answer is {PAGE}, or platform.url is not its address")
    if (found := _unwrapped(text)) is None:
        raise Unanswered("the answer holds no kubeconfig; it may not be made yet")
    return found


def _unwrapped(text: str, depth: int = 3) -> str | None:
    """A text that is a kubeconfig, or wraps one, or is one in base64."""
    try:
        document = yaml.safe_load(text)  # JSON is YAML
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    if isinstance(document, Mapping):
        if "clusters" in document:
            return text
        inner = next((document[name] for name in WRAPS if document.get(name)), None)
        if depth and isinstance(inner, Mapping):
            return _unwrapped(json.dumps(inner, default=str), depth - 1)
        return _unwrapped(inner, depth - 1) if depth and isinstance(inner, str) else None
    try:
        decoded = base64.b64decode("".join(text.split()), validate=True).decode()
    except ValueError:
        return None
    return _unwrapped(decoded, depth - 1) if depth and decoded else None


def said(body: bytes) -> str:
    """A server's own words in an error, if it is short JSON; never a page."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(document, dict):
        return ""
    words = next((document[name] for name in ("message", "error", "detail", "title") if document.get(name)), "")
    if isinstance(words, dict):
        words = words.get("message", "")
    return " ".join(str(words).split())[:200]


def _list(body: Any, what: str) -> list[Any]:
    if isinstance(body, dict):
        body = next((body[name] for name in LISTS if isinstance(body.get(name), list)), None)
    if isinstance(body, list):
        return body
    raise Unanswered(f"the answer holds no list of {what}")
