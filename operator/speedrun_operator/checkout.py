"""What differs between a local checkout and what its remote has: the patch of `kubectl speedrun run --diff`."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from speedrun_operator.sealed.sealed import MOST_PATCH

# A login node has seldom a key for these, and needs none to read what is public.
PUBLIC = re.compile(r"^(?:ssh://)?git@(github\.com|gitlab\.com|codeberg\.org|bitbucket\.org)[:/](.+)$")
# Whatever the user's own settings make of `git diff`, `git apply` must be able to read it.
DIFF = (
    *("diff", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--no-relative"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)


class Fault(Exception):
    """What cannot be done, and what to do about it."""


@dataclass(frozen=True)
class Patch:
    """`base`: the commit, on the remote `repository`, that `content` applies to. `untracked`: files left out."""

    repository: str
    base: str
    content: bytes = field(repr=False)
    summary: str
    untracked: tuple[str, ...]

    def data(self, key: str) -> dict[str, Any]:
        """The contents of a ConfigMap that holds it under `key`."""
        try:
            return {"data": {key: self.content.decode()}}
        except UnicodeDecodeError:
            return {"binaryData": {key: base64.b64encode(self.content).decode()}}


def local_patch(checkout: Path, source: Mapping[str, Any]) -> Patch:
    """The patch of `checkout`, for a spec's `source`, whose repository and revision go before what git says.

    Raises Fault.
    """
    if source.get("path") or source.get("patch"):
        raise Fault("spec.recipe.source: with --diff, leave path and patch out: the local checkout gives both")
    top = Path(_git(checkout, "rev-parse", "--show-toplevel").strip())
    base, remote = _base(top, str(source.get("revision") or ""))
    repository = str(source.get("repository") or "") or _url(top, remote, private=bool(source.get("secretRef")))
    content = _git_bytes(top, *DIFF, base)
    if not content.strip():
        raise Fault(f"nothing differs from {base[:12]}, which the remote has: leave --diff out")
    if len(content) > MOST_PATCH:
        raise Fault(
            f"the patch has {len(content)} bytes, and a ConfigMap takes {MOST_PATCH}: push a branch and name it in "
            "spec.recipe.source.revision"
        )
    untracked = _git(top, "ls-files", "-z", "-o", "--exclude-standard").split("\0")[:-1]
    summary = _git(top, "diff", "--shortstat", base).strip()
    return Patch(repository, base, content, summary, tuple(untracked))


def _base(top: Path, revision: str) -> tuple[str, str]:
    """The commit that the remote has, and the remote's name."""
    head = _git(top, "rev-parse", "HEAD").strip()
    upstream = _tried(top, "rev-parse", "--abbrev-ref", "@{upstream}")
    remote = upstream.partition("/")[0] if upstream else "origin"
    if revision:
        base = _tried(top, "rev-parse", "-q", "--verify", f"{revision}^{{commit}}")
        if base is None:
            raise Fault(f"spec.recipe.source.revision: this checkout does not have {revision}; fetch it first")
        return base, remote
    if upstream:
        base = _tried(top, "merge-base", "HEAD", "@{upstream}")
        if base is None:
            raise Fault(f"HEAD has nothing in common with {upstream}; set spec.recipe.source.revision")
        return base, remote
    holders = _git(top, "branch", "-r", "--contains", head, "--format=%(refname:short)").split()
    if not holders:
        raise Fault(f"no remote has {head[:12]}: push it, or set the branch's upstream (git branch -u origin/main)")
    return head, holders[0].partition("/")[0]


def _url(top: Path, remote: str, *, private: bool) -> str:
    url = _tried(top, "remote", "get-url", remote)
    if url is None:
        raise Fault(f"there is no remote {remote}: set spec.recipe.source.repository")
    url = re.sub(r"^(https?://)[^/@]*@", r"\1", url)  # a password in it is nobody else's business
    if not private and (public := PUBLIC.match(url)):
        return f"https://{public[1]}/{public[2]}"
    return url


def _tried(top: Path, *arguments: str) -> str | None:
    try:
        return _git(top, *arguments).strip() or None
    except Fault:
        return None


def _git(folder: Path, *arguments: str) -> str:
    return _git_bytes(folder, *arguments).decode(errors="replace")


def _git_bytes(folder: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False)
    except FileNotFoundError:
        raise Fault("there is no git in PATH; install it first") from None
    if done.returncode != 0:
        raise Fault(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
