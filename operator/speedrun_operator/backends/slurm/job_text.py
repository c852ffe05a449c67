"""The text that every job's script of ours begins with, and what runs its steps: bash. Data.

Variables that the script sets first: root (the shared directory), ledger (the job's own), cache.
"""

from __future__ import annotations

from speedrun_operator.backends import events_text, making

_HEAD = r"""
set -u
umask 077
export LC_ALL=C PYTHONUNBUFFERED=1
mark() { printf '\nSPEEDRUN %s time=%s\n' "$*" "$(date +%s.%3N)"; }

# Two jobs of one allocation can exist after an unknown submission. The first to start owns it; the other ends here.
printf '%s\n' "$SLURM_JOB_ID" >"$ledger/.owner.$SLURM_JOB_ID" &&
  ln "$ledger/.owner.$SLURM_JOB_ID" "$ledger/owner" 2>/dev/null
owner=$(cat "$ledger/owner" 2>/dev/null)
if [ "$owner" != "$SLURM_JOB_ID" ]; then
  [ -n "$owner" ] || { echo "speedrun: cannot write to $ledger on $(hostname)" >&2; exit 74; }
  echo "speedrun: job $SLURM_JOB_ID ends at once: the owner of this allocation is $owner" >&2
  exit 0
fi
rm -f "$ledger/exit" # of an earlier start of this job, before it was requeued

signal=
finish() {
  code=$?
  trap - EXIT
  rm -rf "$ledger/.enroot"
  mark "job end exit=$code"
  [ -z "${sampler-}" ] || kill "$sampler" 2>/dev/null
  event end exit "$code" signal "$signal"
  printf 'job=%s exit=%s time=%s%s\n' "$SLURM_JOB_ID" "$code" "$(date +%s)" "${signal:+ signal=$signal}" \
    >"$ledger/.exit.$SLURM_JOB_ID" &&
    mv -f "$ledger/.exit.$SLURM_JOB_ID" "$ledger/exit"
  rm -f "$root/.cache/uses/$SLURM_JOB_ID"
  rm -rf "${SLURM_TMPDIR:-/tmp}/speedrun-compiled.$SLURM_JOB_ID".* # many small files: after all that is waited for
  exit "$code"
}
trap finish EXIT
child=
ended_by() { # ended_by SIGNAL CODE: the run gets SIGTERM as a whole, then the job ends
  trap '' TERM INT USR1
  signal=$1
  [ -z "$child" ] || { kill -TERM -- "-$child" 2>/dev/null; wait "$child"; }
  exit "$2"
}
trap 'ended_by TERM 143' TERM
trap 'ended_by INT 130' INT
trap 'mark "job limit"; ended_by USR1 140' USR1
mark "attempt job=$SLURM_JOB_ID node=$(hostname)"
event start job "$SLURM_JOB_ID" name "${SLURM_JOB_NAME-}" node "$(hostname)" partition "${SLURM_JOB_PARTITION-}"
""".strip()

HEAD = f"{events_text.EVENTS}\n{_HEAD}"

STAGE = f"{events_text.STAGE}\n{making.PLAIN}"

CONTAINED = r"""
contained() { # contained STEP: in the container, in the directory that this shell is in
  local code from key
  from=$(stat -c %s "$ledger/log" 2>/dev/null) || from=0
  srun --container-image="$image" --container-workdir="$PWD" --container-mounts="$mounts" \
    --ntasks=1 SRUN_RESOURCES \
    bash -euo pipefail "$ledger/steps/$1.sh"
  code=$?
  # A file that has its size and is not whole all the same: only who mounts it finds out.
  if [ "$code" != 0 ] && tail -c +"$((from + 1))" "$ledger/log" 2>/dev/null |
    grep -qaE "pyxis:.*(Invalid image format:|Can't find a SQUASHFS superblock)"; then
    key=${image%/*} why='its file is not one that Pyxis can read'
    missed image "${key##*/}"
    return
  fi
  return "$code"
}
""".strip()
