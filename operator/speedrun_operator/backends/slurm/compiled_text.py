"""The text by which a job uses what torch and Triton compiled before, and keeps what they compile now. Bash, data."""

from __future__ import annotations

COMPILED = r"""
compiled='' compiled_entry='' compiled_before=''
compile_begin() { # what torch and Triton compiled before, in a directory of the node: many small files
  local torch triton
  torch=$(told "image/$image_key" version.torch) triton=$(told "image/$image_key" version.triton)
  [ -n "$gpu_name" ] && [ -n "$driver" ] && [ -n "$torch" ] || return 0
  compiled=$(mktemp -d "${SLURM_TMPDIR:-/tmp}/speedrun-compiled.$SLURM_JOB_ID.XXXXXX") || return 0
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
  rm -rf "$compiled" # of a run that went otherwise, the job does it as it ends
}
""".strip()
MOST_COMPILED_MIB = 4096
