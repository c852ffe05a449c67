#!/bin/bash
# Every bench in turn; each ends with one line of JSON.
set -euo pipefail
for bench in bench/*.py; do
  case $bench in bench/_*) continue ;; esac
  echo "== $bench"
  .venv/bin/python "$bench"
done
