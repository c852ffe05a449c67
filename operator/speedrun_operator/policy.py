"""What a site lets people run, for whoever may create a Speedrun runs code as the login user. Pure.

The site's settings change without an edit of the Speedrun, so what they forbid waits and is not refused for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from speedrun_operator.api.names import Identity
from speedrun_operator.api.phases import Reason
from speedrun_operator.api.spec import Backend, Spec
from speedrun_operator.planning import Later

CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class Rules:
    """A site's rules. `recipes`, `repositories`: empty allows all; `https://host/team/*` is all below it.

    `custom`: recipes of the Speedrun's own. `foreign`: code that is not the recipe's own (another repository, revision,
    path or patch, or an image). `home`: the operator's own namespace, where it keeps its secrets; None: it is outside.
    `secrets`: where the Secrets of namespaces' logins are; a Speedrun there could have them read into its job.
    """

    recipes: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()
    custom: bool = True
    foreign: bool = True
    home: str | None = None
    home_allowed: bool = False
    secrets: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Code that a spec asks for in place of the recipe's own: the field that does, and a repository if it names one."""

    field: str
    repository: str | None = None


def asked_code(spec: Spec) -> tuple[Asked, ...]:
    """What of `spec` puts other code in the place of the recipe's own."""
    asked = [Asked("spec.pods.image")] if spec.backend is Backend.PODS and spec.pods.image else []
    source = spec.recipe.source
    if source is None:
        return tuple(asked)
    where = "spec.recipe.source"
    asked += [Asked(f"{where}.repository", source.repository)] if source.repository else []
    asked += [Asked(f"{where}.{name}") for name in ("revision", "path", "patch") if getattr(source, name)]
    return tuple(asked)


def forbidden(rules: Rules, identity: Identity, spec: Spec, asked: tuple[Asked, ...] = ()) -> Later | None:
    """Why the site's rules keep a Speedrun waiting, naming the setting that would allow it; None: they do not."""
    if identity.namespace == rules.secrets:
        what = f"metadata.namespace: {rules.secrets} holds the Secrets of all logins; no Speedrun is run there"
        return Later(Reason.NOT_ALLOWED.value, what)
    if rules.home is not None and identity.namespace == rules.home and not rules.home_allowed:
        return _no(f"metadata.namespace: {rules.home} is the operator's own namespace", "policy.own_namespace=true")
    name = spec.recipe.name
    if name == CUSTOM and not rules.custom:
        return _no("spec.recipe.name: recipes of one's own are not allowed here", "policy.custom_recipes=true")
    if rules.recipes and name not in rules.recipes:
        return _no(f"spec.recipe.name: recipe {name!r} is not allowed here", f"{name} in policy.allowed_recipes")
    for each in asked:
        if not rules.foreign:
            return _no(f"{each.field}: only the recipe's own code is allowed here", "policy.foreign_sources=true")
        if each.repository and rules.repositories and not is_listed(each.repository, rules.repositories):
            what = f"{each.field}: repository {each.repository} is not allowed here"
            return _no(what, f"{each.repository} in policy.allowed_repositories")
    return None


def is_listed(repository: str, listed: tuple[str, ...]) -> bool:
    """Whether one of `listed` is the repository, or with `/*` behind it holds it. What could be resolved to another
    place on its way (`..`, percent signs, a backslash, a user before the host) is on no list."""
    parts = repository.replace("\\", "/").split("/")
    if ".." in parts or "." in parts or "%" in repository or "\\" in repository or _has_user(repository):
        return False
    wanted = _plain(repository)
    for each in listed:
        if each.endswith("/*"):
            above = _plain(each.removesuffix("/*")) + "/"
            if wanted.startswith(above) and len(wanted) > len(above):
                return True
        elif wanted == _plain(each):
            return True
    return False


def _has_user(repository: str) -> bool:
    return repository.startswith(("http://", "https://")) and "@" in (urlsplit(repository).netloc or "")


def _plain(repository: str) -> str:
    """Scheme and host in lower case, without `.git` and slashes at the end."""
    scheme, separator, rest = repository.rstrip("/").removesuffix(".git").rstrip("/").partition("://")
    if not separator:
        return scheme
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}://{host.lower()}{slash}{path}"


def _no(what: str, setting: str) -> Later:
    return Later(Reason.NOT_ALLOWED.value, f"{what}; the operator's setting {setting} allows it")
