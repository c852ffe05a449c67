"""The remote commands: bash text for the login node, and the reading of what it prints. Pure.

Each is one command: submit (look up, claim, sbatch, record), poll (queue, accounting, sizes and tails of logs, all
allocations at once), cancel. They print lines that begin with a nonce, so that a log's content cannot be taken for one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from speedrun_operator.backends.slurm.queue import BUSY, REJECTED, SACCT_FIELDS, SQUEUE_FORMAT
from speedrun_operator.backends.slurm.script import LOG, PACKAGE, SCRIPT, bash_path

CLAIM_SECONDS = 300  # a claim without a job is broken after this; sbatch itself retries for about 150 s
LOG_BYTES = 64 * 1024
POLL_BYTES = 4 * 1024 * 1024

# A profile's SBATCH_*, SQUEUE_* variables would change what the programs do or print.
_CLEAN = (
    'unset "${!SBATCH_@}" "${!SQUEUE_@}" "${!SACCT_@}" "${!SCANCEL_@}"\nexport LC_ALL=C TZ=UTC SLURM_TIME_FORMAT=%s\n'
)

_SUBMIT = r"""
answer() { printf '@%s %s\n' "$nonce" "$*"; exit 0; }
record() { # record ID: the ledger's word that this job is the allocation's
  printf '%s %s\n' "$1" "$(date +%s)" >"$dir/.jobid.$nonce" && mv -f "$dir/.jobid.$nonce" "$dir/jobid"
}
look_up() {
  local id row
  if [ -s "$dir/jobid" ]; then read -r id _ <"$dir/jobid"; answer accepted "$id"; fi
  if [ -s "$dir/owner" ]; then read -r id <"$dir/owner"; answer accepted "$id"; fi
  row=$(squeue -h --me -t all -n "$name" -o %i </dev/null) || answer unasked
  for id in $row; do record "$id"; answer accepted "$id"; done
}
umask 077
look_up
mkdir -p "$dir" || answer storage
if ! mkdir "$dir/claim" 2>/dev/null; then
  [ -d "$dir/claim" ] || answer storage
  : >"$dir/.clock" || answer storage # the file server's own clock, whatever the login's says
  age=$(($(stat -c %Y "$dir/.clock") - $(stat -c %Y "$dir/claim")))
  [ "$age" -ge CLAIM_SECONDS ] || answer claimed "$age"
  row=$(sacct -X -n -P --name="$name" -S "$since" -o JobIDRaw </dev/null 2>/dev/null) || row=
  for id in $row; do record "$id"; answer accepted "$id"; done
  mv -T "$dir/claim" "$dir/claim.broken.$nonce" 2>/dev/null && mkdir "$dir/claim" 2>/dev/null || answer claimed 0
fi
head -c "$script_bytes" >"$dir/SCRIPT" && { [ "$package_bytes" = 0 ] || head -c "$package_bytes" >"$dir/PACKAGE"; } &&
  [ "$(stat -c %s "$dir/SCRIPT")" = "$script_bytes" ] || { rmdir "$dir/claim"; answer storage; }
said=$(sbatch "$@" --chdir="$dir" --output="$dir/LOG" "$dir/SCRIPT" 2>"$dir/.sbatch.err" </dev/null)
code=$?
cat "$dir/.sbatch.err" >&2
id=$(printf '%s\n' "$said" | sed -nE 's/^(Submitted batch job )?([0-9]+)([; ].*)?$/\2/p' | tail -n 1)
if [ "$code" = 0 ] && [ -n "$id" ]; then record "$id"; answer accepted "$id" "$(date +%s)"; fi
case $(cat "$dir/.sbatch.err") in
REJECTED) rmdir "$dir/claim"; answer rejected ;;
BUSY) rmdir "$dir/claim"; answer busy ;;
esac
answer unknown "$code"
""".strip()

_POLL = r"""
say() { printf '\n@%s %s\n' "$nonce" "$*"; }
mapfile -t asked
say now "$(date +%s)"
rows=$(squeue -h --me -t all -o 'SQUEUE_FORMAT' </dev/null)
code=$?
say squeue "$code"
declare -A present=()
while IFS='|' read -r _ _ _ _ _ job _; do
  case $job in PREFIX*) present[$job]=1 ;; esac
done <<<"$rows"
grep -F '|PREFIX' <<<"$rows"
absent=() since= paths=() names=() offsets=()
for line in "${asked[@]}"; do
  IFS=$'\t' read -r name path offset from <<<"$line"
  names+=("$name") offsets+=("$offset") paths+=("$root/$path")
  if [ "$code" = 0 ] && [ -z "${present[$name]-}" ]; then
    absent+=("$name")
    { [ -z "$since" ] || [ "$from" -lt "$since" ]; } && since=$from
  fi
done
if [ "${#absent[@]}" -gt 0 ]; then
  said=$(IFS=,; sacct -X -n -P --name="${absent[*]}" -S "$(date -d "@$since" +%FT%T)" -o SACCT_FIELDS </dev/null 2>&1)
  say sacct "$?"
  printf '%s\n' "$said"
fi
declare -A size=()
while read -r bytes file; do size[$file]=$bytes; done \
  < <(for path in "${paths[@]}"; do printf '%s\0' "$path/LOG" "$path/exit" "$path/owner"; done |
    xargs -0r stat -c '%s %n' -- 2>/dev/null)
budget=POLL_BYTES
for i in "${!names[@]}"; do
  path=${paths[i]}
  if [ -n "${size[$path/owner]-}" ]; then read -r owner <"$path/owner"; say owner "${names[i]}" "$owner"; fi
  if [ -n "${size[$path/exit]-}" ]; then read -r marker <"$path/exit"; say exit "${names[i]}" "$marker"; fi
  bytes=${size[$path/LOG]-}
  [ -n "$bytes" ] || continue
  offset=${offsets[i]}
  if [ "$bytes" -lt "$offset" ]; then say log "${names[i]}" "$bytes" 0 shrunk; continue; fi
  count=$((bytes - offset))
  [ "$count" -le LOG_BYTES ] || count=LOG_BYTES
  [ "$count" -le "$budget" ] || count=$budget
  budget=$((budget - count))
  say log "${names[i]}" "$bytes" "$offset"
  [ "$count" = 0 ] || dd if="$path/LOG" iflag=skip_bytes,count_bytes skip="$offset" count="$count" bs=64K status=none
done
say done
""".strip()

_CANCEL = r"""
say() { printf '\n@%s %s\n' "$nonce" "$*"; }
mapfile -t asked
live() { squeue -h --me -t all -o 'SQUEUE_FORMAT' </dev/null; }
declare -A wanted=()
for line in "${asked[@]}"; do
  IFS=$'\t' read -r name path <<<"$line"
  wanted[$name]=1
  # A submission that is still under way must find the allocation taken: its job then ends at its first line.
  if [ -d "$root/$path" ] && [ ! -e "$root/$path/owner" ]; then
    echo cancelled >"$root/$path/.owner.$nonce" && ln "$root/$path/.owner.$nonce" "$root/$path/owner" 2>/dev/null
  fi
done
rows=$(live) || { say squeue 1; exit 0; }
ids=()
while IFS='|' read -r id _ _ _ _ job _; do
  [ -z "${wanted[$job]-}" ] || ids+=("$id")
done <<<"$rows"
[ "${#ids[@]}" = 0 ] || scancel "${ids[@]}" </dev/null
rows=$(live)
say squeue "$?"
grep -F '|PREFIX' <<<"$rows"
say done
""".strip()


def _common(root: str, nonce: str) -> str:
    return f"{_CLEAN}root={bash_path(root)}\nnonce={nonce}\n"


def _patterns(texts: Sequence[str]) -> str:
    return "|".join(f"*{shlex.quote(text)}*" for text in texts)


def submit(
    *, root: str, path: str, name: str, nonce: str, since: datetime, arguments: Sequence[str], sizes: tuple[int, int]
) -> str:
    """The command that makes one allocation exist. Its standard input: the batch script, then the package (`sizes`)."""
    body = (
        _SUBMIT.replace("CLAIM_SECONDS", str(CLAIM_SECONDS))
        .replace("SCRIPT", SCRIPT)
        .replace("PACKAGE", PACKAGE)
        .replace("/LOG", f"/{LOG}")
        .replace("REJECTED)", f"{_patterns(REJECTED)})")
        .replace("BUSY)", f"{_patterns(BUSY)})")
    )
    values = (
        f'dir="$root"/{shlex.quote(path)}\nname={shlex.quote(name)}\nsince={_slurm_time(since)}\n'
        f"script_bytes={sizes[0]}\npackage_bytes={sizes[1]}\nset -- {shlex.join(arguments)}\n"
    )
    return _common(root, nonce) + values + body + "\n"


def poll(*, root: str, prefix: str, nonce: str) -> str:
    """The command that asks about all allocations. Its standard input: `poll_line`s."""
    return _common(root, nonce) + _fill(_POLL, prefix) + "\n"


def cancel(*, root: str, prefix: str, nonce: str) -> str:
    """The command that ends allocations. Its standard input: lines of name, TAB, ledger path."""
    return _common(root, nonce) + _fill(_CANCEL, prefix) + "\n"


def _fill(text: str, prefix: str) -> str:
    return (
        text.replace("SQUEUE_FORMAT", SQUEUE_FORMAT)
        .replace("SACCT_FIELDS", SACCT_FIELDS)
        .replace("PREFIX", prefix)
        .replace("POLL_BYTES", str(POLL_BYTES))
        .replace("LOG_BYTES", str(LOG_BYTES))
        .replace("/LOG", f"/{LOG}")
    )


def poll_line(name: str, path: str, offset: int, since: datetime) -> str:
    return f"{name}\t{path}\t{offset}\t{int(since.timestamp())}\n"


def _slurm_time(moment: datetime) -> str:
    return (moment - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S")


@dataclass(frozen=True, slots=True)
class Section:
    """What follows one nonce line: its words, and the bytes up to the next one."""

    words: tuple[str, ...]
    body: bytes = field(repr=False)


def sections(stdout: bytes, nonce: str) -> list[Section]:
    """Cut a command's output at its nonce lines; what stands before the first is noise."""
    pieces = re.split(rb"(?:^|\n)@" + nonce.encode() + rb" ([^\n]*)\n", stdout)
    return [
        Section(tuple(words.decode(errors="replace").split()), body)
        for words, body in zip(pieces[1::2], pieces[2::2], strict=True)
    ]
