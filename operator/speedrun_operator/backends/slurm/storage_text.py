"""The text of the remote commands about storage: how full it is, what lies in the cache, and taking it away. Data."""

from __future__ import annotations

# Quotas count where they leave less: CephFS has them on directories, Lustre and others for users.
ROOM = r"""
room() { # SIZE USED FREE of the storage below the root, in KiB; nothing where it is not known
  local source size used free dir limit taken line
  tighter() { # tighter LIMIT USED
    [[ $1 =~ ^[1-9][0-9]*$ && $2 =~ ^[0-9]+$ ]] || return 0
    [ $(($1 - $2)) -ge "$free" ] || { size=$1 used=$2 free=$(($1 > $2 ? $1 - $2 : 0)); }
  }
  line=$(df -Pk "$root" 2>/dev/null)
  read -r source size used free _ <<<"${line##*$'\n'}"
  [[ ${free-} =~ ^[0-9]+$ ]] || return 0
  if command -v getfattr >/dev/null; then
    dir=$(cd "$root" && pwd -P)
    while [ -n "$dir" ]; do
      limit=$(getfattr --only-values -n ceph.quota.max_bytes "$dir" 2>/dev/null)
      if [[ $limit =~ ^[1-9][0-9]*$ ]]; then
        taken=$(getfattr --only-values -n ceph.dir.rbytes "$dir" 2>/dev/null)
        tighter $((limit / 1024)) $((${taken:-0} / 1024))
        break
      fi
      dir=${dir%/*}
    done
  fi
  if command -v lfs >/dev/null; then
    while read -r _ taken limit line _; do
      [ "$limit" != 0 ] || limit=$line
      tighter "$limit" "${taken%\*}"
    done < <(lfs quota -q -u "$(id -un)" "$root" 2>/dev/null)
  elif command -v quota >/dev/null; then
    while read -r dir taken limit line _; do
      [ "$limit" != 0 ] || limit=$line
      [ "$dir" != "$source" ] || tighter "$limit" "${taken%\*}"
    done < <(quota -w 2>/dev/null)
  fi
  echo "$size $used $free"
}
""".strip()

# `uses/<job>` has a line `KIND KEY` for each entry of a running job.
LIST = r"""
say() { printf '\n@%s %s\n' "$nonce" "$*"; }
cache=$root/CACHE
say now "$(date +%s)"
inquire '[0-9][^ ]* [A-Z][A-Z]' squeue -h --me -t all -o '%i %T' || { say squeue 1; exit 0; }
say squeue 0
declare -A live=()
while read -r id state; do
  case $state in COMPLETED | FAILED | CANCELLED* | TIMEOUT | OUT_OF_MEMORY | NODE_FAIL | BOOT_FAIL | DEADLINE) ;;
  *) ! is_id "$id" || live[$id]=1 ;;
  esac
done <<<"$rows"
for file in "$cache"/uses/*; do
  [ -f "$file" ] || continue
  if [ -n "${live[${file##*/}]-}" ]; then
    while read -r kind key; do say use "$kind" "$key" "${file##*/}"; done <"$file"
  else
    rm -f "$file"
  fi
done
for file in "$cache"/{code,image,data,downloads,compiled}/*/MANIFEST; do
  [ -f "$file" ] || continue
  entry=${file%/*}
  kind=${entry%/*}
  held=
  [ ! -d "$entry.lock" ] || held=held
  say entry "${kind##*/}" "${entry##*/}" "$(stat -c %Y "$file")" $held
  cat "$file"
done
say storage "$(room)"
say "done"
""".strip()

# An entry is moved out of the way first, so that nobody finds half of it.
REMOVE = r"""
cache=$root/CACHE
while IFS=$'\t' read -r kind key used; do
  entry=$cache/$kind/$key
  if [ -d "$entry.lock" ] || grep -qsxF "$kind $key" "$cache"/uses/* ||
    [ "$(stat -c %Y "$entry/MANIFEST" 2>/dev/null)" != "$used" ]; then
    printf '\n@%s kept %s %s\n' "$nonce" "$kind" "$key"
  elif mv -T "$entry" "$entry.part.gone-$nonce" && rm -rf "$entry.part.gone-$nonce"; then
    printf '\n@%s removed %s %s\n' "$nonce" "$kind" "$key"
  else
    printf '\n@%s failed %s %s\n' "$nonce" "$kind" "$key"
  fi
done
printf '\n@%s done\n' "$nonce"
""".strip()

# `kept` has the first eight characters of the UIDs of live Speedruns.
LEDGERS = r"""
inquire '[|][0-9]' squeue -h --me -t all -o '|%i|' || { printf '\n@%s squeue 1\n' "$nonce"; exit 0; }
mapfile -t kept
old() { # old DIR: whether nothing of its job is younger than the limit, and the job is not there any more
  local file id=
  for file in log exit jobid; do
    [ ! -e "$1/$file" ] || [ -z "$(find "$1/$file" -mtime -DAYS)" ] || return 1
  done
  [ -n "$(find "$1" -maxdepth 0 -mtime +DAYS)" ] || return 1
  [ ! -s "$1/jobid" ] || read -r id _ <"$1/jobid"
  [ -z "$id" ] || [[ $rows != *"|$id|"* ]]
}
count=0
for dir in "$root"/*/*/alloc-* "$root"/CACHE/jobs/*/try-*; do
  [ -d "$dir" ] || continue
  above=${dir%/*}
  for uid in "${kept[@]}"; do [ "${above##*-}" != "$uid" ] || continue 2; done
  old "$dir" || continue
  [ -n "DRY" ] || { rm -rf "$dir" && rmdir "$above" 2>/dev/null; }
  count=$((count + 1))
done
printf '\n@%s ledgers %s\n' "$nonce" "$count"
""".strip()
