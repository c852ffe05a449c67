"""What the login node answers about a Speedrun's code, read. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from speedrun_operator.api.phases import Reason
from speedrun_operator.source.git import complaint, said
from speedrun_operator.source.resolved import Source, Unresolved, Wanted, is_commit

TIMED_OUT = "124"  # timeout's exit code
Answer = tuple[tuple[str, ...], str]
"""The words of one line of the answer, and the text that follows it."""

INCOMPLETE = Unresolved(Reason.SOURCE_UNREACHABLE, "the login node's answer about the code was not whole", heals=True)


def read_repository(
    wanted: Wanted, answers: Sequence[Answer], stderr: str
) -> tuple[Source, tuple[str, ...]] | Unresolved:
    """The commit, and which of `wanted.roots` it has at its root; or why not.

    No roots where the server did not show them: the code is then known, but not its layout.
    """
    where = f"{wanted.repository} {wanted.revision}"
    words = [each for each, _ in answers]
    if ("nogit",) in words:
        message = "there is no git on the login node: install it there, or use spec.recipe.source.path"
        return Unresolved(Reason.GIT_MISSING, message, heals=True)
    if ("ambiguous",) in words:
        message = (
            f"spec.recipe.source.revision: {where} is a branch and a tag of different commits; "
            f"write refs/heads/{wanted.revision} or refs/tags/{wanted.revision}"
        )
        return Unresolved(Reason.UNKNOWN_REVISION, message, heals=False)
    if ("unknown",) in words:
        return _unknown(wanted)
    for (word, *rest), body in answers:
        if word == "commit" and rest and is_commit(rest[0]):
            if wanted.roots and ("listed",) not in words:
                return INCOMPLETE
            return Source(wanted.repository, wanted.revision, rest[0]), tuple(body.split("\n"))
        if word == "unread" and len(rest) == 2 and is_commit(rest[0]):
            if rest[1] == TIMED_OUT or "unadvertised object" in stderr:
                return Source(wanted.repository, wanted.revision, rest[0]), ()
            return _refused(wanted, stderr)
        if word == "failed":
            return _refused(wanted, stderr)
    return INCOMPLETE


def read_path(wanted: Wanted, answers: Sequence[Answer]) -> tuple[Source, tuple[str, ...]] | Unresolved:
    """The checkout as it lies there, and which of `wanted.roots` it has; or why not."""
    words = [each for each, _ in answers]
    if ("absent",) in words:
        message = (
            f"spec.recipe.source.path: {wanted.path} is no directory that the login user may read; "
            "it must lie on the shared file system"
        )
        return Unresolved(Reason.SOURCE_PATH_MISSING, message, heals=True)
    found = {each[0]: (each[1:], body) for each, body in answers if each}
    if not {"at", "content", "commit", "listed"} <= found.keys() or not found["content"][0]:
        return INCOMPLETE
    commit = (*found["commit"][0], None)[0]
    roots = "\n".join(found[word][1] for word in ("commit", "dirty") if word in found)
    source = Source(
        commit=commit,
        path=found["at"][1].strip("\n"),
        content=found["content"][0][0],
        dirty=commit is None or "dirty" in found,
    )
    return source, tuple(roots.split("\n"))


def _unknown(wanted: Wanted) -> Unresolved:
    # For good, though somebody may push it yet: nobody wants GPUs taken then, at any time, by what was a typing error.
    hint = "" if wanted.revision.startswith(("refs/", "pull/")) else "; an abbreviated commit needs all 40 characters"
    message = (
        f"spec.recipe.source.revision: {wanted.repository} has no branch, tag or commit {wanted.revision}"
        f"{hint}; push it, or correct it, and create the Speedrun again"
    )
    return Unresolved(Reason.UNKNOWN_REVISION, message, heals=False)


def _refused(wanted: Wanted, stderr: str) -> Unresolved:
    reason = complaint(stderr, secret=wanted.secret is not None)
    told = said(stderr)
    if reason is Reason.UNKNOWN_REVISION:
        return _unknown(wanted)
    if reason is Reason.SOURCE_NOT_FOUND:
        message = (
            f"spec.recipe.source.repository: {wanted.repository} does not exist or is private ({told}); "
            "correct it, or name a Secret with a token in spec.recipe.source.secretRef"
        )
        return Unresolved(reason, message, heals=False)
    if reason is Reason.SOURCE_REFUSED:
        remedy = (
            f"put credentials that may read it into the Secret {wanted.secret.name}, key {wanted.secret.key}"
            if wanted.secret
            else "let the login user read it, or create the Speedrun again with spec.recipe.source.secretRef"
        )
        return Unresolved(reason, f"{wanted.repository} refuses us ({told}); {remedy}", heals=True)
    return Unresolved(reason, f"{wanted.repository} cannot be asked from the login node ({told})", heals=True)
