"""How each remote command begins: how Slurm's programs are asked, and what counts as an answer. Data: bash."""

from __future__ import annotations

# A profile's variables would change what the programs do or print. Times are asked for as seconds since the epoch;
# these settings are not exported, since sbatch would give them to the job.
# A site's wrapper may hide a failure behind an exit code of 0, and print banners: what has no row (how one begins is
# given as a regular expression) and an error beside it is no answer. There may be no room for a temporary file.
CLEAN = r"""
unset "${!SBATCH_@}" "${!SQUEUE_@}" "${!SACCT_@}" "${!SCANCEL_@}"
ask() { TZ=UTC SLURM_TIME_FORMAT=%s "$@" </dev/null; }
is_id() { [[ $1 =~ ^[0-9]{1,18}$ ]]; }
inquire() { # inquire ROW PROGRAM ARGUMENT...: its output in $rows, what it said beside it in $said; 1 for no answer
  local row="(^|"$'\n'")$1" both code line silent=0
  shift
  both=$({ rows=$(ask "$@" 2>&3 3>&-); printf '\n@%s %s\n%s' "$nonce" "$?" "$rows"; } 3>&1)
  said=${both%%$'\n@'"$nonce "*}
  both=${both:${#said}+${#nonce}+3}
  code=${both%%$'\n'*}
  rows=${both:${#code}+1}
  said=${said%$'\n'}
  if [ "$code" != 0 ]; then
    silent=1
  elif [[ ! $rows =~ $row ]]; then
    [[ ${rows,,} != *error:* ]] || silent=1
    while read -r line; do
      case $line in
      *warning* | *locale*) ;;
      *error* | *fatal* | *fail* | *unable* | *denied* | *refused* | *'timed out'* | *'not found'* | *'no such'*)
        silent=1 ;;
      esac
    done <<<"${said,,}"
  fi
  [ "$silent" = 0 ] || [ -n "$said" ] || said=$rows # some print there what went wrong
  [ -z "$said" ] || printf '%s\n' "$said" >&2
  return "$silent"
}
headed() { # headed HEADING ROW PROGRAM ARGUMENT...: as inquire, of what always prints a heading: without it, no answer
  local heading=$1 row="(^|"$'\n'")$2"
  shift
  inquire "$@" || return
  if [[ $rows = *"$heading"* || $rows =~ $row ]]; then
    rows=$(grep -v -F "$heading" <<<"$rows")
    return 0
  fi
  said="$2 printed nothing, not even its heading${said:+: $said}"
  printf '%s\n' "$said" >&2
  return 1
}
""".strip()
