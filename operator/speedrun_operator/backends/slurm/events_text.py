"""The text with which a job writes down what it finds and does: events.jsonl and gpu.csv in its ledger. Bash, data."""

from __future__ import annotations

EVENTS = r"""
json() { # json TEXT: as a JSON string; what is no plain character becomes a blank
  local text=${1//[$'\001'-$'\037']/ }
  text=${text//\\/\\\\}
  printf '"%s"' "${text//\"/\\\"}"
}
event() { # event NAME [KEY VALUE]...: a line of events.jsonl; empty values are left out, numbers stand as such
  local line
  line="{\"time\":$(date +%s.%3N),\"event\":$(json "$1")${SPEEDRUN_RUN:+,\"run\":$SPEEDRUN_RUN}"
  shift
  while [ "$#" -gt 1 ]; do
    if [[ $2 =~ ^(0|[1-9][0-9]{0,15})(\.[0-9]+)?$ ]]; then
      line+=",\"$1\":$2"
    elif [ -n "$2" ]; then
      line+=",\"$1\":$(json "$2")"
    fi
    shift 2
  done
  printf '%s}\n' "$line" >>"$ledger/events.jsonl"
}
schedule() { # how far the run came, of how many steps, by the last such line of its log
  local said
  said=$(tail -c 65536 "$ledger/log" 2>/dev/null | grep -aoE 'step:[0-9]+/[0-9]+' | tail -n 1)
  said=${said#step:}
  [ -z "$said" ] || event schedule step "${said%/*}" total_steps "${said#*/}"
}
""".strip()

HARDWARE = r"""
gpu_name='' driver='' sampler=''
cards() { # what the job was given, and what a comparison of times needs to know of it
  local index name uuid memory version count=0
  while IFS=, read -r index name uuid memory version; do
    [ -n "$version" ] || continue
    gpu_name=${name# } driver=${version# } count=$((count + 1))
    event card index "$index" name "$gpu_name" uuid "${uuid# }" memory_mib "${memory# }" driver "$driver"
  done < <(nvidia-smi --query-gpu=index,name,uuid,memory.total,driver_version --format=csv,noheader,nounits 2>/dev/null)
  event hardware node "$(hostname)" cpus "${SLURM_CPUS_ON_NODE-}" cards "$count" world_size WORLD_SIZE
  mark "hardware node=$(hostname) gpus=$count${gpu_name:+ gpu=${gpu_name// /%20} driver=$driver}"
}
sample_gpus() { # one process for the whole job
  local reasons=clocks_event_reasons.active fields
  command -v nvidia-smi >/dev/null || return 0
  nvidia-smi --query-gpu="$reasons" --format=csv,noheader >/dev/null 2>&1 || reasons=clocks_throttle_reasons.active
  fields=timestamp,index,utilization.gpu,memory.used,power.draw,temperature.gpu,clocks.sm,clocks.mem,$reasons
  printf '%s\n' "$fields" >"$ledger/gpu.csv"
  nvidia-smi --query-gpu="$fields" --format=csv,noheader,nounits --loop=PERIOD \
    >>"$ledger/gpu.csv" 2>/dev/null </dev/null &
  sampler=$!
}
samples() { [ -f "$ledger/gpu.csv" ] && wc -l <"$ledger/gpu.csv" || echo 0; }
gpu_summary() { # gpu_summary FROM: the samples from that line on, in one marker
  local count clock bits value names=''
  [ "$(samples)" -gt "$1" ] || return 0
  # Clocks count while the GPU works: an idle one lowers them.
  read -r count clock < <(tail -n +"$(($1 + 1))" "$ledger/gpu.csv" |
    awk -F, '$3 + 0 >= 50 { n++; sum += $7 } END { printf "%d %d\n", n, n ? sum / n : 0 }')
  bits=0
  while read -r value; do
    [[ $value =~ ^0x[0-9a-fA-F]{1,16}$ ]] && bits=$((bits | value))
  done < <(tail -n +"$(($1 + 1))" "$ledger/gpu.csv" | awk -F, '$3 + 0 >= 50 { gsub(/ /, "", $9); print $9 }' | sort -u)
  (((bits & 0x84) == 0)) || names+=power,
  (((bits & 0x60) == 0)) || names+=thermal,
  (((bits & 0x08) == 0)) || names+=hardware,
  mark "run=$SPEEDRUN_RUN hardware samples=$count${clock:+ clock=$clock}${names:+ throttled=${names%,}}"
  event gpus samples "$count" clock_mhz "$clock" throttled "${names%,}"
}
""".strip()

NO_GPUS = r"""
samples() { echo 0; }
gpu_summary() { return 0; }
event hardware node "$(hostname)" cpus "${SLURM_CPUS_ON_NODE-}" cards 0 world_size 1
mark "hardware node=$(hostname) gpus=0"
""".strip()

COMPILED = r"""
compiled='' compiled_entry='' compiled_before=''
compile_begin() { # what torch and Triton compiled before, in a directory of the node: many small files
  local torch triton
  torch=$(told "image/$image_key" version.torch) triton=$(told "image/$image_key" version.triton)
  [ -n "$gpu_name" ] && [ -n "$driver" ] && [ -n "$torch" ] || return 0
  compiled=$(mktemp -d "${SLURM_TMPDIR:-/tmp}/speedrun-compiled.XXXXXX") || return 0
  key=$(join "$(printf '%s\n' compiled "$torch" "$triton" "$gpu_name" "$driver" | sha256sum | head -c 64)")
  compiled_entry=$cache/compiled/$key
  if whole "$compiled_entry" && tar -xf "$compiled_entry/compiled.tar" -C "$compiled" 2>/dev/null; then
    kind=compiled entry=$compiled_entry
    use
  fi
  compiled_before=$(listing "$compiled")
  export TORCHINDUCTOR_CACHE_DIR=$compiled/inductor TRITON_CACHE_DIR=$compiled/triton
  mkdir -p "$TORCHINDUCTOR_CACHE_DIR" "$TRITON_CACHE_DIR"
  mounts+=",$compiled:$compiled"
}
compile_end() { # after a run that went well; the newest wins, whole
  [ -n "$compiled" ] || return 0
  if [ "$(listing "$compiled")" != "$compiled_before" ] &&
    [ "$(du -sm "$compiled" | cut -f 1)" -le MOST_COMPILED_MIB ]; then
    kind=compiled key=${compiled_entry##*/} entry=$compiled_entry part=$compiled_entry.part.$SLURM_JOB_ID
    rm -rf "$part"
    mkdir -p "$part" && : >"$part.facts" && tar -cf "$part/compiled.tar" -C "$compiled" . && seal &&
      { [ ! -e "$entry" ] || mv -T "$entry" "$part.old"; } && mv -T "$part" "$entry"
    rm -rf "$part" "$part.old" "$part.facts"
  fi
  rm -rf "$compiled"
}
""".strip()
MOST_COMPILED_MIB = 4096
