"""The text with which a job or a pod writes down what it finds and does: events.jsonl and gpu.csv in its ledger. Bash.

The script sets first: `ledger`, the allocation's own directory, and the function `mark`. Words in capitals are filled
in: NODE_NAME and NODE_CPUS are what the place calls the node, and how many of its CPUs are the allocation's.
"""

from __future__ import annotations

from collections.abc import Mapping

from speedrun_operator.backends.cache_text import fill
from speedrun_operator.planning import RunPlan

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

STAGE = r"""
stage() { # stage NAME COMMAND...: runs it, marks begin and end, ends the run if it fails
  local name=$1 code began=$SECONDS
  shift
  event stage_begin stage "$name"
  mark "${SPEEDRUN_RUN:+run=$SPEEDRUN_RUN }stage=$name begin"
  "$@"
  code=$?
  mark "${SPEEDRUN_RUN:+run=$SPEEDRUN_RUN }stage=$name end exit=$code"
  event stage_end stage "$name" exit "$code" seconds "$((SECONDS - began))"
  [ "$code" = 0 ] || exit "$code"
}
""".strip()

RUN_BEGIN = 'event run_begin arm "$SPEEDRUN_ARM" parameters "${!PARAM_*}" exports "$(compgen -e | tr "\\n" " ")"'

HARDWARE = r"""
gpu_name='' driver='' sampler=''
cards() { # what the job was given, and what a comparison of times needs to know of it
  local index name uuid memory version count=0
  while IFS=, read -r index name uuid memory version; do
    [ -n "$version" ] || continue
    gpu_name=${name# } driver=${version# } count=$((count + 1))
    event card index "$index" name "$gpu_name" uuid "${uuid# }" memory_mib "${memory# }" driver "$driver"
  done < <(nvidia-smi --query-gpu=index,name,uuid,memory.total,driver_version --format=csv,noheader,nounits 2>/dev/null)
  event hardware node "NODE_NAME" cpus "NODE_CPUS" cards "$count" world_size WORLD_SIZE
  mark "hardware node=NODE_NAME gpus=$count${gpu_name:+ gpu=${gpu_name// /%20} driver=$driver}"
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
event hardware node "NODE_NAME" cpus "NODE_CPUS" cards 0 world_size 1
mark "hardware node=NODE_NAME gpus=0"
""".strip()


def hardware(plan: RunPlan, words: Mapping[str, str]) -> str:
    """The functions that look at the GPUs, and the commands that begin with it. `words`: NODE_NAME and NODE_CPUS."""
    if not plan.gpu_count:
        return fill(NO_GPUS, words)
    known = {"WORLD_SIZE": str(plan.gpu_count), "PERIOD": str(plan.telemetry_seconds), **words}
    begin = "cards\nsample_gpus" if plan.telemetry_seconds else "cards"
    return f"{fill(HARDWARE, known)}\n{begin}"
