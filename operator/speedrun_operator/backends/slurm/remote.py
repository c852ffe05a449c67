"""The text of the remote commands: bash for the login node. Data; `commands` fills in the words in capitals.

Variables that `commands` sets first: root (the ledgers' directory), nonce, and for submissions names, dirs, packages
(their sizes in bytes) and bodies (what scripts have in common). A command's answers are lines that begin with the
nonce, so that neither a log's content nor a site's chatter can be taken for one.
"""

from __future__ import annotations

FENCE = r"""
fence() { # fence DIRECTORY: no job may take this allocation any more, unless one has it
  mkdir -p "$1" && echo cancelled >"$1/.owner.$nonce" && ln "$1/.owner.$nonce" "$1/owner" 2>/dev/null
  rm -f "$1/.owner.$nonce"
}
""".strip()

SUBMIT = r"""
umask 077
trap '' XFSZ # a file that grows too large fails, and does not end the whole batch
say() { printf '\n@%s %s\n' "$nonce" "$*"; }
answer() { # answer WORDS: of the item at hand; what stands in $error follows
  say item "$number" "$@"
  printf '%s\n' "$error"
}
record() { # record ID TIME: the ledger's word that this job is the allocation's; whole once its line has an end
  printf '%s %s\n' "$1" "$2" >"$dir/jobid"
  answer accepted "$1" "$2"
}
rows_of() { # rows_of NAMES: `NAME ID TIME` of each job; some jobs that sbatch refuses leave a row behind
  local rows said job id at state
  inquire "(${1//,/|}) [0-9]" squeue -h --me -t all -n "$1" -o '%j %i %V %T %r' || return
  while read -r job id at state; do
    [[ ,$1, = *",$job,"* ]] && is_id "$id" || continue
    [ "$state" = 'FAILED BadConstraints' ] || printf '%s %s %s\n' "$job" "$id" "$at"
  done <<<"$rows"
}
look_again() { # whether claim number $last, without a job as yet, may be followed by another; answers if not
  local age rows said job id at
  if ! : >"$dir/.clock"; then answer storage; return 1; fi # the file server's own clock, whatever the login's says
  age=$(($(stat -c %Y "$dir/.clock") - $(stat -c %Y "$dir/claim-$last")))
  if [ "$age" -lt CLAIM_SECONDS ]; then answer claimed "$age"; return 1; fi
  if ! rows=$(rows_of "$name"); then answer unasked; return 1; fi
  if read -r _ id at <<<"$rows" && [ -n "$id" ]; then record "$id" "$at"; return 1; fi
  if inquire '[0-9]+[|]' sacct -X -n -P --name="$name" -S "$since" -o JobIDRaw,Submit,JobName; then
    while IFS='|' read -r id at job; do
      if [ "$job" = "$name" ] && is_id "$id"; then record "$id" "$at"; return 1; fi
    done <<<"$rows"
  elif [[ $said != *'ACCOUNTING_OFF'* ]]; then
    error=$said
    answer unaccounted
    return 1
  fi
}
elsewhere() { # whether job $id is on a $cluster whose queue squeue does not show: nobody sees it, so it is ended
  local rows said
  rows=$(rows_of "$name") || return 1 # a poll will tell
  [ -z "$rows" ] || return 1
  fence "$dir"
  rm -f "$dir/PACKAGE"
  if error=$(scancel -M "$cluster" "$id" 2>&1 </dev/null); then answer elsewhere "$id" cancelled "$cluster"
  else answer elsewhere "$id" left "$cluster"; fi
}
withdraw() {
  rm -f "$dir/SCRIPT" "$dir/PACKAGE" "$dir/.clock" "$claim"
  rmdir "$dir" 2>/dev/null
}
item() { # item NUMBER PATH NAME SINCE PACKAGE ARGUMENT...: submits $script, unless it was, or a claim stands
  local number=$1 dir=$root/$2 name=$3 since=$4 package=$5 id='' at='' last=0 error='' claim each said code cluster
  shift 5
  [ "$((SECONDS - began))" -lt BATCH_SECONDS ] || stop=1
  if [ -n "$stop" ]; then answer later; return; fi
  # First of all the directory, so that a cancellation finds a place for its mark.
  if { [ ! -d "$dir" ] && ! mkdir -p "$dir"; } || [ ! -e "$incoming.err" ]; then answer storage; return; fi
  if [ -s "$dir/jobid" ] && read -r id at _ <"$dir/jobid" && is_id "$id"; then answer accepted "$id" "$at"; return; fi
  id=
  if [ -s "$dir/owner" ] && read -r id <"$dir/owner" && [ -n "$id" ]; then
    if [ "$id" = cancelled ]; then answer cancelled; elif is_id "$id"; then answer accepted "$id"
    else error="$dir/owner: $id"; answer damaged; fi
    return
  fi
  if [ -z "$asked" ]; then answer unasked; return; fi
  if [ -n "${known[$name]-}" ]; then read -r id at <<<"${known[$name]}"; record "$id" "$at"; return; fi
  for each in "$dir"/claim-*; do
    [ ! -e "$each" ] || [ "${each##*-}" -le "$last" ] || last=${each##*-}
  done
  [ "$last" = 0 ] || look_again || return
  claim=$dir/claim-$((last + 1))
  set -C # the file is then made by one call that fails where it exists
  { : >"$claim"; } 2>/dev/null
  code=$?
  set +C
  if [ "$code" != 0 ]; then
    if [ -e "$claim" ]; then answer claimed 0; else answer storage; fi
    return
  fi
  if ! printf '%s' "$script" >"$dir/SCRIPT" || ! unpack "$package"; then withdraw; answer storage; return; fi
  said=$(sbatch "$@" --chdir="$dir" --output="$dir/LOG" "$dir/SCRIPT" 2>"$incoming.err" </dev/null)
  code=$?
  IFS= read -r -d '' error <"$incoming.err"
  id='' cluster=''
  while read -r each; do
    [[ $each =~ ^('Submitted batch job ')?([0-9]+)((';'|' on cluster ')(.*))?$ ]] || continue
    id=${BASH_REMATCH[2]} cluster=${BASH_REMATCH[5]}
  done <<<"$said"
  if [ "$code" = 0 ] && [ -n "$id" ]; then
    [ -z "$cluster" ] || ! elsewhere || return
    printf -v at '%(%s)T' -1
    record "$id" "$at"
    return
  fi
  case $error in
  UNKNOWN) stop=1 ;;
  REJECTED) withdraw; answer rejected; return ;;
  OVERLOADED) stop=1; withdraw; answer busy; return ;;
  BUSY) withdraw; answer busy; return ;;
  esac
  error+=$said
  answer unknown "$code"
}
receive() { # the packages, from standard input; a connection that was cut must not leave half of one to run
  local each
  for each in "${!packages[@]}"; do
    head -c "${packages[each]}" >"$incoming.$each"
    [ "$(stat -c %s "$incoming.$each")" = "${packages[each]}" ] || rm -f "$incoming.$each"
  done
}
unpack() { [ -z "$1" ] || cp "$incoming.$1" "$dir/PACKAGE"; }
incoming=$root/.incoming-$nonce stop='' asked=''
declare -A known=()
mkdir -p "${dirs[@]}" 2>/dev/null
trap 'rm -f "$incoming".*' EXIT
: >"$incoming.err" # one for all: on a file system that many share, a new file is dear
[ "${#packages[@]}" = 0 ] || receive
if rows=$(rows_of "$names"); then
  asked=1
  while read -r job id at; do [ -z "$job" ] || known[$job]=${known[$job]-"$id $at"}; done <<<"$rows"
fi
began=$SECONDS
""".strip()

SUBMITTED = r"""
[ -z "$stop" ] || rmdir "${dirs[@]}" 2>/dev/null
say "done"
""".strip()

# It goes before SUBMIT, which then looks up or submits the attempt that was chosen here.
PREPARE = r"""
entry=$root/CACHE/$kind/$key
told() { printf '\n@%s %s\n' "$nonce" "$*"; }
unasked() { told item 0 unasked; exit 0; }
ids_of() { # ids_of N OPTION...: of the jobs of that attempt's name
  local rows said job id
  inquire "$prefix$1 [0-9]" squeue -h --me -n "$prefix$1" -o '%j %i' "${@:2}" || return
  while read -r job id _; do
    [ "$job" != "$prefix$1" ] || ! is_id "$id" || printf '%s\n' "$id"
  done <<<"$rows"
}
over() { # over N: whether the job of that attempt has certainly ended
  local live
  [ ! -e "$root/$attempts/try-$1/exit" ] || return 0
  [ -s "$root/$attempts/try-$1/jobid" ] || [ -s "$root/$attempts/try-$1/owner" ] || return 1
  live=$(ids_of "$1") || unasked
  [ -z "$live" ]
}
spent() { # spent N: whether a job of that name has ended whose ledger somebody removed, and with it what it made
  local any live
  any=$(ids_of "$1" -t all) || unasked
  [ -n "$any" ] || return
  live=$(ids_of "$1") || unasked
  [ -z "$live" ]
}
if whole "$entry"; then
  touch -c "$entry/MANIFEST"
  told ready
  cat "$entry/MANIFEST"
  exit 0
fi
last=-1
for each in "$root/$attempts"/try-*; do
  [ ! -d "$each" ] || [ "${each##*-}" -le "$last" ] || last=${each##*-}
done
if [ "$last" -gt "$after" ] && ! over "$last"; then
  attempt=$last
else
  attempt=$((last + 1))
  while spent "$attempt"; do attempt=$((attempt + 1)); done
  if [ -e "$entry" ]; then
    told broken "$why"
    set_aside "$entry" "$nonce"
  fi
fi
read -r size _ free < <(room)
if [ "$attempt" != "$last" ] && [ -n "${free-}" ] && [ "$free" -lt "$needed" ]; then
  told full "$free" "$needed" "$size"
  exit 0
fi
told attempt "$attempt"
names=$prefix$attempt dirs=("$root/$attempts/try-$attempt")
""".strip()

POLL = r"""
say() { printf '\n@%s %s\n' "$nonce" "$*"; }
mapfile -t asked
say now "$(date +%s)"
[ -z 'STORAGE' ] || say storage "$(room)"
headed 'JOBID|' '[0-9][^|]*[|]' squeue --me -t all -o 'SQUEUE_FORMAT'
code=$?
say squeue "$code"
[ "$code" = 0 ] || printf '%s\n' "$said"
declare -A jobs=() size=()
while IFS='|' read -r id _ _ _ _ _ job _; do
  case $job in PREFIX* | PREPARING*) ! is_id "$id" || jobs[$job]+=" $id " ;; esac
done < <(printf '%s\n' "$rows")
[ "$code" != 0 ] || printf '%s\n' "$rows" | grep -F -e '|PREFIX' -e '|PREPARING'
names=() paths=() offsets=() since=() entries=()
for line in "${asked[@]}"; do
  IFS=$'\t' read -r name path offset from entry <<<"$line"
  names+=("$name") paths+=("$root/$path") offsets+=("$offset") since+=("$from") entries+=("$entry")
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
for ((i = 0; i < ${#absent[@]}; i += SACCT_NAMES)); do # one argument may not grow without bounds
  some=$(IFS=, && printf '%s' "${absent[*]:i:SACCT_NAMES}")
  headed 'JobIDRaw|' '[0-9]+[|]' sacct -X -P --name="$some" -S "$(TZ=UTC date -d "@$oldest" +%FT%T)" -o SACCT_FIELDS
  say sacct "$?"
  for text in "$rows" "$said"; do [ -z "$text" ] || printf '%s\n' "$text"; done
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
# Last: a job that was seen to have ended has put its entry there before.
for i in "${!entries[@]}"; do
  entry=${entries[i]}
  if [ -n "$entry" ] && [ -s "$root/$entry/MANIFEST" ]; then say entry "${names[i]}"; cat "$root/$entry/MANIFEST"; fi
done
say "done"
""".strip()

CANCEL = r"""
umask 077
say() { printf '\n@%s %s\n' "$nonce" "$*"; }
mapfile -t asked
live() { inquire '[0-9][^|]*[|]' squeue -h --me -t all -o 'SQUEUE_FORMAT'; }
declare -A wanted=()
for line in "${asked[@]}"; do
  IFS=$'\t' read -r name path <<<"$line"
  wanted[$name]=1
  # A submission that is still under way must find the allocation taken: its job then ends at its first line.
  [ -e "$root/$path/owner" ] || fence "$root/$path"
  [ -e "$root/$path/owner" ] || say open "$name"
  rm -f "$root/$path/PACKAGE" # it may hold secrets, and a job that never starts does not remove it
done
live || { say squeue 1; exit 0; }
ids=()
while IFS='|' read -r id _ _ _ _ _ job _; do
  case $job in PREFIX*) [ -z "${wanted[$job]-}" ] || ! is_id "$id" || ids+=("$id") ;; esac
done < <(printf '%s\n' "$rows")
[ "${#ids[@]}" = 0 ] || scancel "${ids[@]}" </dev/null
live
say squeue "$?"
printf '%s\n' "$rows" | grep -F '|PREFIX'
say "done"
""".strip()

JOBS = r"""
inquire '[0-9][^|]*[|]' squeue -h --me -o 'MARKED_FORMAT'
printf '\n@%s squeue %s\n' "$nonce" "$?"
grep -F -e '|PREFIX' -e '|PREPARING' <<<"$rows"
printf '\n@%s done\n' "$nonce"
""".strip()
