"""The bash text by which git is asked on the login node and in jobs, and what its complaints mean. Pure.

A secret comes in the variable `git_secret`. A token reaches git through a credential helper that reads it from the
environment of that one git: never in arguments, in a URL, or in a file; the account's own helpers are left out, since
one of them might store it. A private key is a file for as long as git runs.
"""

from __future__ import annotations

import re

from speedrun_operator.api.phases import Reason

# Only for the repository's own host: a redirect to another one must not get the token.
_HELPER = (
    '!speedrun() { [ "$1" = get ] || return 0; '
    "case $SPEEDRUN_GIT_SECRET in "
    "*:*) user=${SPEEDRUN_GIT_SECRET%%:*} password=${SPEEDRUN_GIT_SECRET#*:} ;; "
    "*) user=x-access-token password=$SPEEDRUN_GIT_SECRET ;; esac; "
    r'printf "username=%s\npassword=%s\n" "$user" "$password"; }; speedrun'
)

OWN_GIT = rf"""
git_options=() git_limit=()
use_secret() {{ # use_secret DIRECTORY: `own_git` is to use $git_secret for $repository; DIRECTORY may hold a key
  local ssh="ssh -o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=20" host
  case $git_secret in
  '') ;;
  *'PRIVATE KEY-----'*)
    printf '%s\n' "$git_secret" >"$1/key" && chmod 600 "$1/key" || return
    ssh+=" -o IdentitiesOnly=yes -i $(printf %q "$1/key")"
    ;;
  *)
    host=${{repository#https://}}
    git_options=(-c credential.helper= -c "credential.https://${{host%%/*}}.helper="'{_HELPER}')
    ;;
  esac
  git_ssh=$ssh
}}
own_git() {{
  GIT_TERMINAL_PROMPT=0 GIT_ASKPASS='' SSH_ASKPASS='' GIT_ALLOW_PROTOCOL=https:http:ssh:file GIT_SSH_COMMAND=$git_ssh \
    SPEEDRUN_GIT_SECRET=$git_secret ${{git_limit[@]+"${{git_limit[@]}}"}} \
    git ${{git_options[@]+"${{git_options[@]}}"}} "$@"
}}
""".strip()

# Of the checkout in the working directory. Tracked files are told by commit and difference; `skip` are paths that are
# no code (an array).
CHECKOUT = r"""
pathspec=(.)
for each in ${skip[@]+"${skip[@]}"}; do pathspec+=(":(exclude)$each"); done
is_git() {
  [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ] && git rev-parse -q --verify HEAD >/dev/null 2>&1
}
files() { # the code's files, each followed by NUL
  local each left=(-path ./.git)
  for each in ${skip[@]+"${skip[@]}"}; do left+=(-o -path "./$each"); done
  if is_git; then
    git ls-files -z -co --exclude-standard -- "${pathspec[@]}" | sort -zu | while IFS= read -r -d '' each; do
      if [ -L "$each" ] || [ -f "$each" ]; then printf '%s\0' "$each"; fi
    done
  else
    find . \( "${left[@]}" \) -prune -o \( -type f -o -type l \) -print0
  fi
}
content() { # one word for the state of the checkout
  if is_git; then
    { git rev-parse HEAD; git diff --no-ext-diff --no-textconv --binary HEAD -- "${pathspec[@]}"
      git ls-files -z -o --exclude-standard -- "${pathspec[@]}" | xargs -0r sha256sum --; } 2>/dev/null
  else
    files | LC_ALL=C sort -z | xargs -0r stat -c '%n %s %Y' --
  fi | sha256sum | cut -c 1-16
}
""".strip()

# Sets `commit` to what `names`, refs that a revision may mean (an array), are now.
FIND = r"""
find_commit() { # prints the refs; 3: they are not all the same commit, 4: there is none of them, 1: git says why
  local refs name id ref found
  refs=$(own_git ls-remote -- "$repository" "${names[@]}" "${names[@]/%/^{\}}" </dev/null) || return 1
  printf '%s\n' "$refs"
  for name in "${names[@]}"; do
    found=
    while read -r id ref; do
      # An annotated tag has a line for itself, and one for the commit.
      [ "$ref" != "$name" ] && [ "$ref" != "$name^{}" ] || found=$id
    done <<<"$refs"
    [ -z "$found" ] || [ -z "$commit" ] || [ "$commit" = "$found" ] || return 3
    commit=${commit:-$found}
  done
  [ -n "$commit" ] || return 4
}
""".strip()

RESOLVE = (
    FIND
    + r"""
say() { printf '\n@%s %s\n' "$nonce" "$*"; }
command -v git >/dev/null || { say nogit; exit 0; }
umask 077
scratch=$(mktemp -d) || { say storage; exit 0; }
trap 'rm -rf "$scratch"' EXIT
IFS= read -r -d '' git_secret
use_secret "$scratch"
git_limit=(timeout -k 5 GIT_SECONDS)
if [ -z "$commit" ]; then
  say refs
  find_commit
  case $? in
  0) ;;
  3) say ambiguous; exit 0 ;;
  4) say unknown; exit 0 ;;
  *) say failed; exit 0 ;;
  esac
  [ "${#roots[@]}" != 0 ] || { say commit "$commit"; exit 0; }
fi
# The names at the root alone, without any file.
own_git init -q --bare "$scratch/look" && own_git -C "$scratch/look" remote add origin "$repository" || exit
if said=$(own_git -C "$scratch/look" fetch -q --depth=1 --filter=tree:1 origin "$commit" 2>&1 </dev/null); then
  say commit "$commit"
  own_git -C "$scratch/look" ls-tree --name-only "$commit^{commit}" -- ${roots[@]+"${roots[@]}"} && say listed
else
  code=$?
  printf '%s\n' "$said" >&2
  say unread "$commit" "$code"
fi
""".rstrip()
)

LOOK = r"""
say() { printf '\n@%s %s\n' "$nonce" "$*"; }
cd -- "$path" 2>/dev/null && [ -r . ] || { say absent; exit 0; }
say at
pwd -P
say content "$(content)"
if is_git; then
  say commit "$(git rev-parse HEAD)"
  [ -z "$(git status --porcelain -- "${pathspec[@]}" 2>/dev/null | head -n 1)" ] || say dirty
else
  say commit
fi
for name in ${roots[@]+"${roots[@]}"}; do [ ! -e "$name" ] || printf '%s\n' "$name"; done
say listed
""".strip()

# In a job: the code into ./code. Prints git's own complaints, and what they mean.
CHECK_OUT = r"""
check_out() {
  local scratch
  rm -rf code
  if [ -n "$source_path" ]; then
    if [ "$(cd -- "$source_path" && content)" != "$source_content" ]; then
      echo "speedrun: $source_path has changed since this Speedrun was admitted; another one runs what is there now" >&2
      return 1
    fi
    mkdir code && (cd -- "$source_path" && files | tar --null -T - -cf -) | tar -xf - -C code || return
  else
    scratch=$(mktemp -d) || return
    use_secret "$scratch" && git init -q code && own_git -C code remote add origin "$repository" &&
      { own_git -C code fetch -q --depth=1 origin "$commit" ||
        own_git -C code fetch -q origin '+refs/*:refs/all/*'; } &&
      own_git -C code checkout -q --detach "$commit" || { rm -rf "$scratch"; return 1; }
    rm -rf "$scratch"
  fi
  [ -n "$patch_hash" ] || return 0
  if [ "$(sha256sum <"$ledger/PATCH" | cut -d ' ' -f 1)" != "$patch_hash" ]; then
    echo "speedrun: the patch is not the one that this Speedrun was admitted with" >&2
    return 1
  fi
  # A directory above may be a repository, too, and must not be taken for the patch's.
  (cd code && export GIT_CEILING_DIRECTORIES="$PWD/.." &&
    git apply --check --whitespace=nowarn "$ledger/PATCH" && git apply --whitespace=nowarn "$ledger/PATCH") || {
    echo "speedrun: the patch does not apply to ${commit:-$source_path}; make it again from that commit" >&2
    return 1
  }
}
""".strip()

_UNKNOWN_COMMIT = ("not our ref", "couldn't find remote ref", "no such remote ref", "bad object")
_UNADVERTISED = ("unadvertised object",)
_NOT_FOUND = (
    "repository not found", "not found", "does not appear to be a git repository", "does not exist",
    "could not read username", "could not read password",
)  # fmt: skip
_REFUSED = (
    "authentication failed", "permission denied", "returned error: 401", "returned error: 403", "access denied",
    "invalid credentials", "load key", "dubious ownership", "host key verification failed", "invalid username or",
)  # fmt: skip
SAID_LIMIT = 300


def complaint(stderr: str, *, secret: bool) -> Reason:
    """What git's complaint is about. `secret`: it was given credentials, so that *not found* may mean refused.

    SOURCE_UNREACHABLE where nothing says that the answer would be the same tomorrow.
    """
    text = stderr.lower()
    if any(each in text for each in _UNADVERTISED):
        return Reason.SOURCE_UNREACHABLE
    if any(each in text for each in _UNKNOWN_COMMIT):
        return Reason.UNKNOWN_REVISION
    if any(each in text for each in _REFUSED):
        return Reason.SOURCE_REFUSED
    if re.search(r"could not resolve host|timed out|connection (refused|reset|closed)|returned error: (5|429)", text):
        return Reason.SOURCE_UNREACHABLE
    if any(each in text for each in _NOT_FOUND):
        return Reason.SOURCE_REFUSED if secret else Reason.SOURCE_NOT_FOUND
    return Reason.SOURCE_UNREACHABLE


def said(stderr: str) -> str:
    """git's complaint as one line: the lines that it marks as such, else the last ones."""
    lines = [" ".join(line.split()) for line in stderr.splitlines() if line.strip()]
    marked = [line for line in lines if line.lower().startswith(("fatal:", "error:", "remote:", "ssh:"))]
    return "; ".join((marked or lines)[-3:])[:SAID_LIMIT] or "it said nothing"


def names_of(revision: str) -> tuple[str, ...]:
    """The refs that a revision may mean. More than one may exist only if they are the same commit."""
    if revision == "HEAD" or revision.startswith("refs/"):
        return (revision,)
    if re.fullmatch(r"pull/[0-9]+/(head|merge)", revision):
        return (f"refs/{revision}",)
    return (f"refs/heads/{revision}", f"refs/tags/{revision}")
