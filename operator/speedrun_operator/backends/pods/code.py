"""How a pod comes by its code: our own package, or a repository at a commit that it looks up if need be. Pure.

A revision is looked up by the first pod, once for all of its runs; its log tells the commit, status keeps that, and
later pods are given it.
"""

from __future__ import annotations

import shlex

from speedrun_operator.backends import cache_text, making
from speedrun_operator.backends.pods.places import PACKAGE, PATCH
from speedrun_operator.planning import RunPlan
from speedrun_operator.preparation import keys
from speedrun_operator.source import git
from speedrun_operator.source.resolved import is_commit

GIT_VARIABLE = "SPEEDRUN_GIT_SECRET_GIVEN"
LOOK_SECONDS = 40

_STAGE = r"""
find_code() { # the commit and the key of its entry, the same for all runs of the pod
  local scratch code
  command -v git >/dev/null || lacks git || return
  [ ! -s "$ledger/commit" ] || read -r commit <"$ledger/commit"
  if [ -z "$commit" ]; then
    scratch=$(mktemp -d) || return
    git_limit=(timeout -k 5 LOOK_SECONDS)
    use_secret "$scratch" && find_commit >/dev/null
    code=$?
    git_limit=()
    rm -rf "$scratch"
    case $code in
    0) ;;
    3) echo "speedrun: UnknownRevision: $revision is a branch and a tag of different commits" >&2; return 1 ;;
    4) echo "speedrun: UnknownRevision: the repository has no branch, tag or commit $revision" >&2; return 1 ;;
    *) return "$code" ;;
    esac
    printf '%s\n' "$commit" >"$ledger/.commit" && mv "$ledger/.commit" "$ledger/commit" || return
  fi
  code_key=$(join "$commit" "$patch_hash" INPUTS)
  printf '%s\n' "$code_key" >"$ledger/.code" && mv "$ledger/.code" "$ledger/code"
}
know_layout() { # know_layout TREE: what kind of code it is, and whether it runs on these GPUs
  local each name entry counts
  layout=
  for each in "${layouts[@]}"; do
    IFS=: read -r name entry counts <<<"$each"
    [ -e "$1/$entry" ] || continue
    layout=$name
    [ -n "$counts" ] && [[ ,$counts, != *",$SPEEDRUN_GPUS,"* ]] || return 0
    echo "speedrun: UnsupportedHardware: code of the layout $name runs on $counts GPUs, not on $SPEEDRUN_GPUS" >&2
    return 1
  done
  [ "${#layouts[@]}" != 0 ] || return 0
  echo "speedrun: UnsupportedSource: at the root of the code there is none of: ${layouts[*]}" >&2
  return 1
}
code_stage() {
  find_code && provide code "$code_key" && know_layout "$cache/code/$code_key/tree" || return
  mark "code commit=$commit${layout:+ layout=$layout}"
  rm -rf code && cp -a "$cache/code/$code_key/tree" code
}
""".strip()


def functions(plan: RunPlan) -> list[str]:
    """Lines that define what `calls` names."""
    if plan.package:
        return [f"unpack() {{ mkdir -p code && tar -xzf {PACKAGE} -C code; }}"]
    source = plan.source
    if source is None:
        return []
    known = source.commit or (source.revision if is_commit(source.revision) else None)
    values = {
        "repository": source.repository,
        "revision": source.revision or "HEAD",
        "commit": known,
        "patch_hash": source.patch_hash,
        "source_path": "",
        "source_content": "",
    }
    container, mentions = plan.container, plan.downloads.mentions if plan.downloads else None
    layouts = [f"{each.name}:{each.root}:{','.join(map(str, each.gpu_counts))}" for each in plan.layouts]
    inputs = keys.digest("code", keys.inputs_of(container, plan.downloads))
    return [
        *(f"{name}={shlex.quote(value or '')}" for name, value in values.items()),
        f"git_secret=${{{GIT_VARIABLE}-}}; unset {GIT_VARIABLE}",
        making.array("names", git.names_of(source.revision or "HEAD")),
        making.array("layouts", layouts),
        making.array("input_files", container.inputs if container else ()),
        f"mention_pattern={shlex.quote(mentions.pattern if mentions else '')}",
        making.array("mention_files", mentions.files if mentions else ()),
        git.OWN_GIT,
        git.FIND,
        git.CHECK_OUT.replace('"$ledger/PATCH"', PATCH),
        cache_text.MAKE_CODE,
        _STAGE.replace("INPUTS", inputs).replace("LOOK_SECONDS", str(LOOK_SECONDS)),
    ]


def calls(plan: RunPlan) -> list[str]:
    """What is done for each run."""
    if plan.package:
        return ["stage code unpack"]
    return ["stage code code_stage"] if plan.source else []
