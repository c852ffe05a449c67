"""The code of a Speedrun, resolved: a fact that planning takes, and that status keeps for the Speedrun's life."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace

from speedrun_operator.api.phases import Reason
from speedrun_operator.api.spec import KeyRef, Spec
from speedrun_operator.api.status import SourceSummary
from speedrun_operator.recipes.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Source:
    """Code at a commit of a repository, or as it lies in a checkout; with a patch on top where `patch_hash` is set.

    `commit` is 40 hexadecimal digits; None for a path that is no git checkout. `patch_hash` is the SHA-256 of the
    patch's bytes. `path` is absolute, and `content` then tells the state of the checkout from another one. `layout` is
    None where nobody has looked.
    """

    repository: str | None = None
    revision: str | None = None
    commit: str | None = None
    patch_hash: str | None = None
    path: str | None = None
    content: str | None = None
    dirty: bool = False
    layout: str | None = None

    @property
    def key(self) -> str:
        """Names the code by its content, 16 hexadecimal digits: the same code from elsewhere has the same key."""
        where = "" if self.commit and not self.dirty else f"{self.path}\0{self.content}"
        text = "\0".join((self.commit or "", where, self.patch_hash or ""))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def summary(self) -> SourceSummary:
        return SourceSummary(
            repository=self.repository,
            revision=self.revision,
            commit=self.commit,
            patch_hash=self.patch_hash,
            path=self.path,
            content=self.content,
            dirty=self.dirty if self.path else None,
            layout=self.layout,
        )

    @classmethod
    def of(cls, summary: SourceSummary) -> Source:
        """What `summary` was made of."""
        return cls(**{**summary.model_dump(), "dirty": bool(summary.dirty)})

    def patched(self, patch: bytes) -> Source:
        return replace(self, patch_hash=hashlib.sha256(patch).hexdigest())


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Why the code is not known. `heals`: it may be without another spec, so it is looked up again."""

    reason: Reason
    message: str
    heals: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """What must be looked up before the code is known. Either `repository` and `revision`, or `path`.

    `roots`: entries of the root to look for, by which layouts are known. `left_out`: paths that are no code.
    """

    repository: str | None
    revision: str
    path: str | None = None
    roots: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    patch: KeyRef | None = None
    secret: KeyRef | None = None


def is_commit(text: str | None) -> bool:
    return text is not None and re.fullmatch(r"[0-9a-f]{40}", text) is not None


def wanted(spec: Spec, recipe: Recipe) -> Wanted | None:
    """What must be looked up for `spec`; None where the recipe alone says which commit it is, or has no repository."""
    asked = spec.recipe.source
    if recipe.repository is None or (asked is None and is_commit(recipe.revision)):
        return None
    roots = tuple(each.root for each in recipe.layouts)
    patch = asked.patch.config_map_ref if asked and asked.patch else None
    if asked and asked.path:
        return Wanted(None, "", asked.path, roots, (recipe.data.path,) if recipe.data else (), patch)
    repository = (asked.repository if asked else "") or recipe.repository
    own = (recipe.revision if repository == recipe.repository else None) or "HEAD"
    revision = (asked.revision if asked else "") or own
    return Wanted(repository, revision, None, roots, (), patch, asked.secret_ref if asked else None)


def layout_of(recipe: Recipe, roots: tuple[str, ...]) -> str | None:
    """The first layout whose entry is among `roots`."""
    return next((each.name for each in recipe.layouts if each.root in roots), None)
