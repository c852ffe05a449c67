"""Which names a run's own environment variables may have. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from speedrun_operator.api.spec import EnvVar

RESERVED = ("SPEEDRUN_", "PARAM_", "SLURM_")
READ_ONLY = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})
# Variables of the batch script itself, which a run's own must not change.
OF_THE_SCRIPT = frozenset({
    "base_image", "cache", "child", "code", "code_key", "commit", "compiled", "data_files", "data_key", "data_path",
    "dataset", "downloads_key", "driver", "entry", "failed", "from", "git_limit", "git_options", "git_secret",
    "git_ssh", "gpu_name", "heart", "held", "image", "image_key", "input_files", "key", "kind", "layout", "layouts",
    "ledger", "mention_files", "mention_pattern", "mounts", "name", "names", "owner", "part", "patch_hash",
    "pathspec", "registry_netrc", "registry_user", "repository", "revision", "root", "runs", "sampler", "skip",
    "source_content", "source_path", "value", "why",
})  # fmt: skip


def fault(variables: Sequence[EnvVar]) -> str | None:
    """What is wrong with the first name that cannot be, with its field; None if all can."""
    names: set[str] = set()
    for number, each in enumerate(variables):
        wrong = None
        if each.name.startswith(RESERVED):
            wrong = f"is reserved; names must not begin with {', '.join(RESERVED)}"
        elif each.name in OF_THE_SCRIPT:
            wrong = "is a variable of the batch script itself; choose another name"
        elif each.name in READ_ONLY:
            wrong = "is bash's own and cannot be set"
        elif each.name in names:
            wrong = "stands there twice"
        if wrong is not None:
            return f"spec.env[{number}].name: {each.name} {wrong}"
        names.add(each.name)
    return None
