"""The text of the remote commands: bash for the login node. Data; `commands` fills in the words in capitals.

Variables that `commands` sets first: root (the ledgers' directory), nonce, and for a submission dir, name, since,
script_bytes, package_bytes and sbatch's arguments as "$@". A command's answers are lines that begin with the nonce, so
that neither a log's content nor a site's chatter can be taken for one.
"""

from __future__ import annotations

# A profile's variables would change what the programs do or print. Times are asked for as seconds since the epoch;
# these settings are not exported, since sbatch would give them to the job.
CLEAN = r"""
unset "${!SBATCH_@}" "${!SQUEUE_@}" "${!SACCT_@}" "${!SCANCEL_@}"
ask() { TZ=UTC SLURM_TIME_FORMAT=%s "$@" </dev/null; }
""".strip()

SUBMIT = r"""
answer() { printf '\n@%s %s\n' "$nonce" "$*"; exit 0; }
record() { # record ID TIME: the ledger's word that this job is the allocation's
  printf '%s %s\n' "$1" "$2" >"$dir/.jobid.$nonce" && mv -f "$dir/.jobid.$nonce" "$dir/jobid"
}
adopt() { # adopt ROWS: the first job of lines that begin with `ID TIME`, if there is one
  local id at
  if read -r id at _ < <(printf '%s\n' "$1") && [ -n "$id" ]; then
    record "$id" "$at"
    answer accepted "$id" "$at"
  fi
}
look_up() {
  local id at rows
  id=
  if [ -s "$dir/jobid" ] && read -r id at _ <"$dir/jobid" && [ -n "$id" ]; then answer accepted "$id" "$at"; fi
  if [ -s "$dir/owner" ] && read -r id <"$dir/owner" && [ -n "$id" ]; then
    [ "$id" != cancelled ] || answer cancelled
    answer accepted "$id"
  fi
  rows=$(ask squeue -h --me -t all -n "$name" -o '%i %V %T %r') || answer unasked
  adopt "$(printf '%s\n' "$rows" | sed '/ FAILED BadConstraints$/d')" # some jobs that sbatch refuses leave such a row
}
claim() { # make the next claim; one without a job may be followed by another once it is old
  local last=0 age said each
  for each in "$dir"/claim-*; do
    [ ! -d "$each" ] || [ "${each##*-}" -le "$last" ] || last=${each##*-}
  done
  if [ "$last" -gt 0 ]; then
    : >"$dir/.clock" || answer storage # the file server's own clock, whatever the login's says
    age=$(($(stat -c %Y "$dir/.clock") - $(stat -c %Y "$dir/claim-$last")))
    [ "$age" -ge CLAIM_SECONDS ] || answer claimed "$age"
    if said=$(ask sacct -X -n -P --name="$name" -S "$since" -o JobIDRaw,Submit 2>&1); then
      adopt "$(printf '%s\n' "$said" | sed -nE 's/^([0-9]+)\|([0-9]+)$/\1 \2/p')"
    elif [[ $said != *'ACCOUNTING_OFF'* ]]; then
      printf '%s\n' "$said" >&2
      answer unaccounted
    fi
  fi
  claim=$dir/claim-$((last + 1))
  mkdir "$claim" 2>/dev/null && return
  [ -d "$claim" ] || answer storage
  answer claimed 0
}
receive() { # receive FILE BYTES: a connection that was cut in the middle must not leave half a file to run
  head -c "$2" >"$dir/$1" && [ "$(stat -c %s "$dir/$1")" = "$2" ]
}
umask 077
mkdir -p "$dir" || answer storage # first, so that a cancellation finds a place for its mark
look_up
claim
if ! receive SCRIPT "$script_bytes" || { [ "$package_bytes" != 0 ] && ! receive PACKAGE "$package_bytes"; }; then
  rmdir "$claim"
  answer storage
fi
said=$(sbatch "$@" --chdir="$dir" --output="$dir/LOG" "$dir/SCRIPT" 2>"$dir/.sbatch.err" </dev/null)
code=$?
cat "$dir/.sbatch.err" >&2
id=$(printf '%s\n' "$said" | sed -nE 's/^(Submitted batch job )?([0-9]+)(;.*| on cluster .*)?$/\2/p' | tail -n 1)
if [ "$code" = 0 ] && [ -n "$id" ]; then
  at=$(date +%s)
  record "$id" "$at"
  answer accepted "$id" "$at"
fi
withdraw() { rm -f "$dir/SCRIPT" "$dir/PACKAGE" "$dir/.sbatch.err" "$dir/.clock"; rmdir "$claim" "$dir" 2>/dev/null; }
case $(cat "$dir/.sbatch.err") in
UNKNOWN) ;;
REJECTED) withdraw; answer rejected ;;
BUSY) withdraw; answer busy ;;
esac
printf '%s\n' "$said" >&2
answer unknown "$code"
""".strip()

POLL = r"""
say() { printf '\n@%s %s\n' "$nonce" "$*"; }
mapfile -t asked
say now "$(date +%s)"
rows=$(ask squeue -h --me -t all -o 'SQUEUE_FORMAT')
code=$?
say squeue "$code"
declare -A jobs=() size=()
while IFS='|' read -r id _ _ _ _ _ job _; do
  case $job in PREFIX*) jobs[$job]+=" $id " ;; esac
done < <(printf '%s\n' "$rows")
printf '%s\n' "$rows" | grep -F '|PREFIX'
names=() paths=() offsets=() since=()
for line in "${asked[@]}"; do
  IFS=$'\t' read -r name path offset from <<<"$line"
  names+=("$name") paths+=("$root/$path") offsets+=("$offset") since+=("$from")
done
while read -r bytes file; do size[$file]=$bytes; done \
  < <(for path in "${paths[@]}"; do printf '%s\0' "$path/LOG" "$path/exit" "$path/owner"; done |
    xargs -0r stat -c '%s %n' -- 2>/dev/null)
absent=() oldest=
for i in "${!names[@]}"; do
  path=${paths[i]} name=${names[i]} owner='' marker=''
  if [ -n "${size[$path/owner]-}" ] && read -r owner <"$path/owner"; then say owner "$name" "$owner"; fi
  if [ -n "${size[$path/exit]-}" ] && read -r marker <"$path/exit"; then say exit "$name" "$marker"; fi
  [ "$code" = 0 ] || continue
  # Once a job owns the allocation, another one of the same name says nothing of it.
  found=${jobs[$name]-}
  if [[ $owner =~ ^[0-9]+$ ]]; then [[ $found != *" $owner "* ]] || continue; else [ -z "$found" ] || continue; fi
  absent+=("$name")
  { [ -n "$oldest" ] && [ "$oldest" -le "${since[i]}" ]; } || oldest=${since[i]}
done
code=0
for ((i = 0; i < ${#absent[@]}; i += SACCT_NAMES)); do # one argument may not grow without bounds
  said=$(IFS=, && ask sacct -X -n -P --name="${absent[*]:i:SACCT_NAMES}" -S "$(TZ=UTC date -d "@$oldest" +%FT%T)" \
    -o SACCT_FIELDS 2>&1) || code=$?
  say sacct "$code"
  printf '%s\n' "$said"
done
budget=POLL_BYTES
for i in "${!names[@]}"; do
  path=${paths[i]} offset=${offsets[i]}
  bytes=${size[$path/LOG]-}
  [ -n "$bytes" ] || continue
  if [ "$bytes" -lt "$offset" ]; then
    say log "${names[i]}" "$bytes" 0 shrunk
    continue
  fi
  count=$((bytes - offset))
  [ "$count" -le LOG_BYTES ] || count=LOG_BYTES
  [ "$count" -le "$budget" ] || count=$budget
  budget=$((budget - count))
  say log "${names[i]}" "$bytes" "$offset"
  [ "$count" = 0 ] || dd if="$path/LOG" iflag=skip_bytes,count_bytes skip="$offset" count="$count" bs=64K status=none
done
say "done"
""".strip()

CANCEL = r"""
umask 077
say() { printf '\n@%s %s\n' "$nonce" "$*"; }
mapfile -t asked
live() { ask squeue -h --me -t all -o 'SQUEUE_FORMAT'; }
declare -A wanted=()
for line in "${asked[@]}"; do
  IFS=$'\t' read -r name path <<<"$line"
  wanted[$name]=1
  # A submission that is still under way must find the allocation taken: its job then ends at its first line.
  if [ ! -e "$root/$path/owner" ]; then
    mkdir -p "$root/$path" && echo cancelled >"$root/$path/.owner.$nonce" &&
      ln "$root/$path/.owner.$nonce" "$root/$path/owner" 2>/dev/null
    rm -f "$root/$path/.owner.$nonce"
  fi
  [ -e "$root/$path/owner" ] || say open "$name"
done
rows=$(live) || { say squeue 1; exit 0; }
ids=()
while IFS='|' read -r id _ _ _ _ _ job _; do
  case $job in PREFIX*) [ -z "${wanted[$job]-}" ] || ids+=("$id") ;; esac
done < <(printf '%s\n' "$rows")
[ "${#ids[@]}" = 0 ] || scancel "${ids[@]}" </dev/null
rows=$(live)
say squeue "$?"
printf '%s\n' "$rows" | grep -F '|PREFIX'
say "done"
""".strip()

JOBS = r"""
rows=$(ask squeue -h --me -o 'MARKED_FORMAT')
printf '\n@%s squeue %s\n' "$nonce" "$?"
grep -F '|PREFIX' <<<"$rows"
printf '\n@%s done\n' "$nonce"
""".strip()
