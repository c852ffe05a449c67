"""The text of the shared cache: bash for jobs and for the login node. Data.

An entry is a directory `<root>/.cache/<kind>/<key>` with a manifest. It is written beside its place, looked at, and
moved in by one rename, so that it is there whole or not at all; what is found broken later is set aside. A lock saves
work, and nothing else relies on it: its holder touches it all the time, so that a dead one loses it. The file server's
own clock counts, since nodes may disagree, and `flock` is not to be had on every shared file system.

Words in capitals are filled in by `fill`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from speedrun_operator.preparation.manifest import MANIFEST

CACHE = ".cache"
LEASE_SECONDS = 120
BEAT_SECONDS = 10
LOOK_SECONDS = 2
WATCH_SECONDS = 5
MISSING_EXIT = 75  # EX_TEMPFAIL of sysexits.h
SHARD_MAGIC, SHARD_VERSION, SHARD_HEADER = 20240520, 1, 1024

WHOLE = r"""
listing() { # listing DIR: the names and sizes of all that it holds, as one hash
  (cd "$1" && find . -path ./MANIFEST -prune -o -type f -printf '%s %p\n' -o -type l -printf '%l %p\n') |
    LC_ALL=C sort | sha256sum | head -c 64
}
whole() { # whole ENTRY: whether it is there with all that it was moved in with; `why` is what is wrong
  why=
  if [ ! -e "$1" ]; then why='it is not there'; return 1; fi
  if [ ! -s "$1/MANIFEST" ]; then why='it has no manifest'; return 1; fi
  [ "$(sed -n 's/^listing=//p' "$1/MANIFEST")" != "$(listing "$1")" ] || return 0
  why='files are missing or have other sizes than when they were put there'
  return 1
}
set_aside() { mv -T "$1" "$1.part.broken-$2" 2>/dev/null; } # set_aside ENTRY NAME: whoever makes it anew looks there
""".strip()

PROVIDE = r"""
progress() { # progress STAGE DONE TOTAL UNIT
  mark "${SPEEDRUN_RUN:+run=$SPEEDRUN_RUN }stage=$1 progress done=$2 total=$3 unit=$4"
}
join() { printf '%s\n' "$@" | sha256sum | head -c 16; }
fact() { printf '%s=%s\n' "$1" "$2" >>"$part.facts"; }
told() { sed -n "s/^$2=//p" "$cache/$1/MANIFEST"; } # told KIND/KEY NAME: what an entry's manifest says
hold() { # hold ENTRY: take its lock; 1 when somebody else made the entry meanwhile
  local lock=$1.lock now beat tries=0
  until mkdir "$lock" 2>/dev/null; do
    [ ! -s "$1/MANIFEST" ] || return 1
    if [ ! -d "$lock" ]; then # let go of just now, or it cannot be made at all
      tries=$((tries + 1))
      [ "$tries" -lt 10 ] || { mkdir "$lock"; return 74; }
    elif : >"$1.clock.$SLURM_JOB_ID" && now=$(stat -c %Y "$1.clock.$SLURM_JOB_ID") &&
      beat=$(stat -c %Y "$lock/beat" 2>/dev/null || stat -c %Y "$lock" 2>/dev/null) &&
      [ $((now - beat)) -ge LEASE_SECONDS ]; then
      echo "speedrun: the holder of $lock has not been heard of for $((now - beat)) s: the lock is taken from it" >&2
      mv -T "$lock" "$1.part.lock-$SLURM_JOB_ID" 2>/dev/null
      continue
    fi
    sleep LOOK_SECONDS
  done
  rm -f "$1.clock.$SLURM_JOB_ID"
  held=$lock
  while touch "$held/beat" && sleep BEAT_SECONDS; do :; done >/dev/null 2>&1 &
  heart=$!
}
let_go() {
  [ -n "$held" ] || return 0
  kill "$heart" 2>/dev/null
  rm -rf "$held"
  held=
}
seal() { # the manifest comes last
  {
    printf 'kind=%s\nkey=%s\njob=%s\nmade=%s\n' "$kind" "$key" "$SLURM_JOB_ID" "$(date +%s)"
    printf 'bytes=%s\nfiles=%s\n' "$(du -sb "$part" | cut -f 1)" "$(find "$part" -type f | wc -l)"
    cat "$part.facts"
    printf 'listing=%s\n' "$(listing "$part")"
  } >"$part.MANIFEST" && mv "$part.MANIFEST" "$part/MANIFEST"
}
use() { # whoever makes room sees by this that the entry is in use, and when it was last
  touch -c "$entry/MANIFEST"
  event cache kind "$kind" key "$key" bytes "$(told "$kind/$key" bytes)" files "$(told "$kind/$key" files)" \
    commit "$(told "$kind/$key" commit)" patch "$(told "$kind/$key" patch)" sha256 "$(told "$kind/$key" sha256)" \
    listing "$(told "$kind/$key" listing)"
  mkdir -p "$cache/uses" && printf '%s %s\n' "$kind" "$key" >>"$cache/uses/$SLURM_JOB_ID"
  return 0
}
provide() { # provide KIND KEY: make the entry with make_KIND and prove_KIND, unless it is there
  local code
  kind=$1 key=$2 entry=$cache/$1/$2 held=
  if whole "$entry"; then use; return 0; fi
  mkdir -p "$cache/$kind" || return 74
  hold "$entry"
  code=$?
  [ "$code" -lt 2 ] || return "$code"
  if ! whole "$entry"; then
    if [ -e "$entry" ]; then
      mark "${SPEEDRUN_RUN:+run=$SPEEDRUN_RUN }stage=$kind cache=broken key=$key why=${why// /%20}"
      set_aside "$entry" "$SLURM_JOB_ID"
    fi
    part=$entry.part.$SLURM_JOB_ID
    rm -rf "$part"
    mkdir "$part" && : >"$part.facts" && "make_$kind" && "prove_$kind" "$part" && seal && mv -T "$part" "$entry"
    code=$?
    [ "$code" = 0 ] || echo "speedrun: $kind $key could not be made${why:+: $why}" >&2
    [ -z "$held" ] || rm -rf "$entry".part.* # those of dead jobs too
  else
    code=0
  fi
  let_go
  [ "$code" = 0 ] || return "$code"
  whole "$entry" && use
}
missed() { # missed KIND KEY: it is set aside, so that it is made anew; `why` is what is wrong with it
  mark "${SPEEDRUN_RUN:+run=$SPEEDRUN_RUN }stage=$1 cache=missing key=$2 why=${why// /%20}"
  echo "speedrun: CacheMissing: $1 $2: $why" >&2
  set_aside "$cache/$1/$2" "$SLURM_JOB_ID"
  : >"$ledger/.missing"
  return MISSING_EXIT
}
require() { # require KIND KEY: for a job whose entries were made before it
  local sound=0
  kind=$1 key=$2 entry=$cache/$1/$2
  whole "$entry" || sound=1
  if [ "$sound" = 0 ] && [ "$kind" = data ]; then prove_data "$entry" || sound=1; fi
  if [ "$sound" = 0 ]; then use; return 0; fi
  missed "$kind" "$key"
}
""".strip()

MAKE_CODE = r"""
make_code() {
  local tree=$part/tree file
  progress code 0 2 steps
  (cd "$part" && check_out) && mv "$part/code" "$tree" || return
  progress code 1 2 steps
  [ ! -d "$tree/.git" ] || fact commit "$(git -C "$tree" rev-parse HEAD)"
  [ -z "$patch_hash" ] || fact patch "$patch_hash"
  fact input.files "$(for file in "${input_files[@]}"; do
    printf '%s ' "$file"
    if [ -f "$tree/$file" ]; then sha256sum <"$tree/$file"; else echo absent; fi
  done | sha256sum | head -c 64)"
  (cd "$tree" && for file in "${mention_files[@]}"; do
    [ ! -e "$file" ] || grep -rhoEI -e "$mention_pattern" -- "$file"
  done) | LC_ALL=C sort -u >"$part/mentions"
  fact input.mentions "$(sha256sum <"$part/mentions" | head -c 64)"
  progress code 2 2 steps
}
prove_code() {
  local is
  is=$(sed -n 's/^commit=//p' "$part.facts")
  [ -n "$is" ] || return 0 # a path that is no checkout of git
  [[ ! $commit =~ ^[0-9a-f]{40}$ ]] || [ "$is" = "$commit" ] || { why="it is commit $is, not $commit"; return 1; }
}
""".strip()

MAKE_IMAGE = r"""
make_image() {
  local from=$base_image
  progress image 0 "$image_steps" steps
  if [ -n "$registry_user" ]; then # enroot looks for credentials only where the reference names their user
    from=docker://$registry_user@${base_image#docker://}
    local -x ENROOT_CONFIG_PATH=$ledger/.enroot
    mkdir -p "$ENROOT_CONFIG_PATH" && printf %s "$registry_netrc" >"$ENROOT_CONFIG_PATH/.credentials" || return
  fi
  srun --container-image="$from" --container-save="$part/image.sqsh" --container-mounts="$root:$root" --ntasks=1 \
    SRUN_RESOURCES bash -euo pipefail "$ledger/steps/image.sh" && [ -f "$part/image.sqsh" ]
  local code=$?
  rm -rf "$ledger/.enroot"
  return "$code"
}
prove_image() { # Pyxis saves a half-built container after a failed step, too
  srun --container-image="$part/image.sqsh" --container-mounts="$root:$root" --ntasks=1 SRUN_RESOURCES \
    bash -euo pipefail "$ledger/steps/image-probe.sh" >"$part.probe" || return
  grep -E '^version\.[A-Za-z0-9_.-]+=[!-~]+$' "$part.probe" | tr '[:upper:]' '[:lower:]' >>"$part.facts"
  fact sha256 "$(sha256sum <"$part/image.sqsh" | head -c 64)"
  progress image "$image_steps" "$image_steps" steps
}
""".strip()

PROVE_DATA = r"""
prove_shard() { # prove_shard FILE: header, size and count of a .bin file of GPT-2 tokens
  local size magic version count
  if [ ! -f "$1" ]; then why="$1: not there"; return 1; fi
  size=$(stat -L -c %s "$1")
  read -r magic version count < <(od -An -td4 -N12 -- "$1")
  if [ "$size" -lt SHARD_HEADER ] || [ "$magic" != SHARD_MAGIC ]; then
    why="$1: magic ${magic:-none}, SHARD_MAGIC expected: no token shard"
  elif [ "$version" != SHARD_VERSION ]; then
    why="$1: version $version, SHARD_VERSION expected"
  elif [ "$count" -lt 1 ]; then
    why="$1: claims $count tokens"
  elif [ "$size" != $((SHARD_HEADER + 2 * count)) ]; then
    why="$1: $count tokens claimed, $(((size - SHARD_HEADER) / 2)) found"
    why+=" ($((size - SHARD_HEADER)) bytes after the header, $((2 * count)) expected)"
  else
    return 0
  fi
  return 1
}
prove_data() { # prove_data ENTRY
  local file
  for file in "${data_files[@]}"; do prove_shard "$1/files/$file" || return; done
}
""".strip()

MAKE_DATA = r"""
salvage() { # whole files of jobs that died, and of other entries of the same data set, need not be downloaded again
  local file old
  for file in "${data_files[@]}"; do
    for old in "$entry".part.*/files "$cache"/data/*/files; do
      [ -f "$old/$file" ] && [ "$old" != "$part/files" ] && prove_shard "$old/$file" || continue
      case $old in
      "$entry".part.*) mv "$old/$file" "$part/files/$file" ;;
      *) [ "$(sed -n 's/^dataset=//p' "${old%/files}/MANIFEST" 2>/dev/null)" = "$dataset" ] || continue
        ln "$old/$file" "$part/files/$file" 2>/dev/null || cp "$old/$file" "$part/files/$file" ;;
      esac
      break
    done
  done
  why=
}
present() { (cd "$part/files" && ls -d -- "${data_files[@]}" 2>/dev/null | wc -l); }
make_data() {
  local total=${#data_files[@]} work=$part.work watch code
  mkdir "$part/files" || return
  fact dataset "$dataset"
  salvage
  progress data "$(present)" "$total" files
  export SPEEDRUN_DATA=$part/files SPEEDRUN_DATA_FILES="${data_files[*]}"
  if [ -n "$code_key" ]; then cp -a "$cache/code/$code_key/tree" "$work"; else mkdir "$work"; fi || return
  mkdir -p "$(dirname "$work/$data_path")" && rm -rf "${work:?}/$data_path" &&
    ln -s "$part/files" "$work/$data_path" || return
  # Its sleep outlives it: whoever reads what we say must not wait for that.
  (last=; while sleep WATCH_SECONDS >/dev/null 2>&1; do
    now=$(present)
    [ "$now" = "$last" ] || progress data "$now" "$total" files
    last=$now
  done) &
  watch=$!
  (cd "$work" && export SPEEDRUN_CODE=$work && FETCH fetch-data)
  code=$?
  kill "$watch" 2>/dev/null
  rm -rf "$work"
  progress data "$(present)" "$total" files
  return "$code"
}
""".strip()

MAKE_DOWNLOADS = r"""
make_downloads() {
  mkdir "$part/files" || return
  DIRECTORIES
  (cd "$part/files" && VARIABLES && export SPEEDRUN_MENTIONS="$cache/code/$code_key/mentions" && FETCH fetch-downloads)
}
prove_downloads() {
  [ ! -s "$cache/code/$code_key/mentions" ] || [ "$(find "$1/files" -type f | wc -l)" -gt 0 ] ||
    { why='nothing was downloaded'; return 1; }
}
""".strip()


# Entries are shared: a run reads them, and writes only what is its own.
OWN_COPY = r"""
own_copy() { # own_copy FROM TO: a tree of its own, in which only large files are links to the entry's
  mkdir -p "$2" && cp -as "$1/." "$2" &&
    (cd "$1" && find . -type f -size -64k -print0 | xargs -0r cp -p --parents --remove-destination -t "$2" --)
}
""".strip()


def fill(text: str, words: Mapping[str, str] | None = None) -> str:
    """`text` with its words in capitals filled in."""
    known = {
        "MANIFEST": MANIFEST,
        "LEASE_SECONDS": str(LEASE_SECONDS),
        "BEAT_SECONDS": str(BEAT_SECONDS),
        "LOOK_SECONDS": str(LOOK_SECONDS),
        "WATCH_SECONDS": str(WATCH_SECONDS),
        "MISSING_EXIT": str(MISSING_EXIT),
        "SHARD_MAGIC": str(SHARD_MAGIC),
        "SHARD_VERSION": str(SHARD_VERSION),
        "SHARD_HEADER": str(SHARD_HEADER),
        **(words or {}),
    }
    return re.sub(rf"\b({'|'.join(known)})\b", lambda found: known[found[1]], text)
