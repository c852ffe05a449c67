"""Plans a Speedrun with what must be looked up first: its code, once for its life, and what its spec refers to.

Nothing is asked for a Speedrun that has neither. What cannot be found yet is said as what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from speedrun_operator.api.phases import Reason
from speedrun_operator.api.resource import Resource
from speedrun_operator.api.spec import Backend, KeyRef, Spec
from speedrun_operator.backends.base import Sources
from speedrun_operator.kube.client import Kube
from speedrun_operator.kube.values import Missing, config_map, secret
from speedrun_operator.lifecycle.decide import is_of_another
from speedrun_operator.lifecycle.situation import Waiting
from speedrun_operator.planning import Refusal, RunPlan, Site, plan
from speedrun_operator.recipes.recipe import Recipe
from speedrun_operator.sealed.registry import credentials
from speedrun_operator.sealed.sealed import MOST_PATCH, Sealed, Unusable, git_secret, text_of
from speedrun_operator.source.resolved import Source, Unresolved, Wanted, wanted

PATCH = "spec.recipe.source.patch.configMapRef"
GIT = "spec.recipe.source.secretRef"
T = TypeVar("T")
REGISTRY = "spec.slurm.registrySecretRef"


class Planner:
    """See the module. `sources`, of a namespace: None where it has no login; what needs one is then not planned."""

    def __init__(
        self, kube: Kube, sources: Callable[[str], Sources | None], recipes: Mapping[str, Recipe], site: Site
    ) -> None:
        self._kube = kube
        self._sources = sources
        self._recipes = recipes
        self._site = site

    async def plan(self, resource: Resource, *, look: bool = True) -> tuple[RunPlan | Refusal | None, Waiting | None]:
        """The plan of `resource`, or why there is none; and what nothing can be submitted without.

        Without `look` nothing is asked: what would need it is then not planned.
        Raises ApiError where the API server does not answer.
        """
        spec = resource.spec
        if spec is None:
            return None, None
        source = _known(resource)
        made = plan(spec, self._recipes, self._site, source)
        if isinstance(made, Refusal):
            return made, None
        if spec.backend is Backend.PODS:
            return await self._for_pods(resource, made, look=look)
        recipe = self._recipes[spec.recipe.name]
        if source is None and (asked := wanted(spec, recipe)) is not None:
            sources = self._sources(resource.identity.namespace)
            if sources is None or not look:
                return None, None
            found = await self._resolved(sources, resource.identity.namespace, asked, recipe)
            if isinstance(found, Unresolved):
                if not found.heals:
                    return Refusal(found.reason, found.message), None
                return None, Waiting(found.reason.value, found.message)
            made = plan(spec, self._recipes, self._site, found)
        if isinstance(made, Refusal) or resource.status.allocations or not look:
            return made, None
        sealed = await self.sealed(resource, made)
        return made, sealed if isinstance(sealed, Waiting) else None

    async def _for_pods(
        self, resource: Resource, made: RunPlan, *, look: bool
    ) -> tuple[RunPlan | None, Waiting | None]:
        """Pods look their code up, and the kubelet reads their secrets: only what the patch is is asked for here."""
        if made.patch_ref is None or made.source is None or made.source.patch_hash:
            return made, None
        said = resource.status.plan.source if resource.status.plan and not is_of_another(resource) else None
        if resource.status.allocations and said is not None:
            return replace(made, source=replace(made.source, patch_hash=said.patch_hash)), None
        if not look:
            return made, None
        try:
            patch = await self._patch(resource.identity.namespace, made.patch_ref)
        except _Waits as waits:
            return None, waits.waiting
        return replace(made, source=made.source.patched(patch)), None

    async def sealed(self, resource: Resource, made: RunPlan) -> Sealed | Waiting:
        """What goes with an allocation, read now; or what is missing of it. Raises ApiError."""
        spec = resource.spec
        if spec is None:
            return Sealed()
        namespace = resource.identity.namespace
        try:
            if spec.backend is Backend.PODS:
                await self._same_patch(namespace, made)
                return Sealed()
            return await self._sealed(namespace, spec, made)
        except _Waits as waits:
            return waits.waiting

    async def _sealed(self, namespace: str, spec: Spec, made: RunPlan) -> Sealed:
        environment = []
        for number, each in enumerate(spec.env):
            if each.value_from is not None:
                field = f"spec.env[{number}].valueFrom.secretKeyRef"
                ref = each.value_from.secret_key_ref
                value = await self._secret(namespace, ref, field)
                environment.append((each.name, _usable(text_of, value, ref, field)))
        asked, git, registry = spec.recipe.source, "", None
        if asked and asked.secret_ref:
            git = await self._git(namespace, asked.secret_ref, made.source.repository or "" if made.source else "")
        if made.container and (of_registry := spec.slurm.registry_secret_ref):
            value, image = await self._secret(namespace, of_registry, REGISTRY), made.container.base_image
            registry = _usable(lambda value: credentials(value, image), value, of_registry, REGISTRY)
        patch = await self._same_patch(namespace, made)
        return Sealed(tuple(environment), git, registry, patch)

    async def _same_patch(self, namespace: str, made: RunPlan) -> bytes:
        """The patch, still as the plan knows it; empty where there is none."""
        if made.patch_ref is None or made.source is None:
            return b""
        patch = await self._patch(namespace, made.patch_ref)
        if made.source.patched(patch) != made.source:
            message = (
                f"{PATCH}: ConfigMap {made.patch_ref.name} no longer holds the patch that this Speedrun was admitted "
                "with; put it back, or delete the Speedrun and create another"
            )
            raise _Waits(Reason.PATCH_CHANGED, message)
        return patch

    async def _resolved(self, sources: Sources, namespace: str, asked: Wanted, recipe: Recipe) -> Source | Unresolved:
        try:
            patch = await self._patch(namespace, asked.patch) if asked.patch else b""
            git = await self._git(namespace, asked.secret, asked.repository or "") if asked.secret else ""
        except _Waits as waits:
            return Unresolved(Reason(waits.waiting.reason), waits.waiting.message, heals=True)
        found = await sources.resolve(asked, recipe, git.encode())
        return found.patched(patch) if isinstance(found, Source) and asked.patch else found

    async def _git(self, namespace: str, ref: KeyRef, repository: str) -> str:
        value = await self._secret(namespace, ref, GIT)
        return _usable(lambda value: git_secret(value, repository), value, ref, GIT)

    async def _secret(self, namespace: str, ref: KeyRef, field: str) -> bytes:
        return _there(await secret(self._kube, namespace, ref, field))

    async def _patch(self, namespace: str, ref: KeyRef) -> bytes:
        patch = _there(await config_map(self._kube, namespace, ref, PATCH))
        if not patch.strip() or len(patch) > MOST_PATCH:
            message = (
                f"{PATCH}: key {ref.key} of ConfigMap {ref.name} holds {len(patch)} bytes; "
                f"a patch is what `git diff` prints, at most {MOST_PATCH} bytes"
            )
            raise _Waits(Reason.PATCH_UNUSABLE, message)
        return patch


class _Waits(Exception):
    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.waiting = Waiting(reason.value, message)


def _there(value: bytes | Missing) -> bytes:
    if isinstance(value, Missing):
        raise _Waits(value.reason, value.message)
    return value


def _usable(use: Callable[[bytes], T], value: bytes, ref: KeyRef, field: str) -> T:
    try:
        return use(value)
    except Unusable as fault:
        message = f"{field}: key {ref.key} of Secret {ref.name} {fault}"
        raise _Waits(Reason.SECRET_UNUSABLE, message) from None


def _known(resource: Resource) -> Source | None:
    """The code that status says this Speedrun runs: whatever became of the branch since."""
    said = resource.status.plan.source if resource.status.plan else None
    if said is None or is_of_another(resource) or not (said.commit or said.path):
        return None
    return Source.of(said)
