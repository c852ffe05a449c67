"""Which login each namespace's jobs go through, and what is said where it has none. No I/O.

A namespace's Speedruns are dealt with through its own login and no other: what a status says of a login is compared
with that, and never followed, for whoever may write a status could otherwise have jobs run as another team's user.
"""

from __future__ import annotations

from collections.abc import Mapping

from speedrun_operator.api.phases import Reason
from speedrun_operator.lifecycle.observation import Unknown
from speedrun_operator.lifecycle.situation import Waiting

OWN = ""
"""The login of the operator's own settings, which serves every namespace while none is listed."""
OPERATORS = "the operator's own login"
STARTING = Waiting(Reason.LOGIN_NOT_CONFIGURED.value, "the Secret of this namespace's login was not read yet")


class Logins:
    """`secrets`: the Secret of each namespace that has a login; empty: all namespaces use the operator's own.

    A login's name is that of its Secret; its identity is user@host:port, known once the Secret was read.
    """

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        self._secrets = dict(secrets or {})
        self._identities: dict[str, str] = {}
        self._faults: dict[str, Waiting] = {}

    @property
    def apart(self) -> bool:
        """Whether namespaces have logins of their own."""
        return bool(self._secrets)

    @property
    def names(self) -> tuple[str, ...]:
        """All logins."""
        return tuple(dict.fromkeys(self._secrets.values())) if self._secrets else (OWN,)

    def name_of(self, namespace: str) -> str | None:
        """The login of a namespace; None: it has none."""
        return self._secrets.get(namespace) if self._secrets else OWN

    def identity_of(self, namespace: str) -> str | None:
        """Whom its jobs are submitted as, where namespaces have logins of their own and that is known."""
        return self._identities.get(self._secrets.get(namespace, OWN))

    def waits(self, namespace: str) -> Waiting | None:
        """Why nothing can be submitted for a namespace now."""
        name = self.name_of(namespace)
        if name is None:
            message = (
                f"metadata.namespace: {namespace} has no login: the operator's setting logins lists other namespaces "
                "only; whoever runs the operator adds it there, with the Secret of a login"
            )
            return Waiting(Reason.NAMESPACE_NOT_LISTED.value, message)
        return None if name == OWN or name in self._identities else self._faults.get(name, STARTING)

    def holds(self, namespace: str, login: str | None) -> bool:
        """Whether what was submitted as `login` (None: through the operator's own) can be asked about and ended."""
        if not self._secrets:
            return login is None
        return login is not None and login == self.identity_of(namespace)

    def elsewhere(self, namespace: str, login: str | None) -> Unknown:
        """What is known of a job that `holds` is false of: nothing."""
        waits = self.waits(namespace)
        whose = f"as {login}" if login else f"through {OPERATORS}"
        has = self.identity_of(namespace) or OPERATORS
        why = waits.message if waits else f"the login of {namespace} is {has} now"
        message = (
            f"it is not known how a job does that was submitted {whose}: {why}. Put that login back, or end the job "
            "there by hand and delete the Speedrun"
        )
        return Unknown(waits.reason if waits else Reason.LOGIN_CHANGED.value, message, reachable=False)

    def learned(self, name: str, identity: str) -> None:
        """A login is this user's from now on."""
        self._identities[name] = identity
        self._faults.pop(name, None)

    def failed(self, name: str, fault: Waiting) -> None:
        """A login cannot be used from now on."""
        self._identities.pop(name, None)
        self._faults[name] = fault
