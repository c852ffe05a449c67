#!/bin/bash
# test.sh [--full]: everything that must pass. Long forms are marked `full` and run only with --full.
set -euo pipefail
select='not full'
[ "${1:-}" != --full ] || select=''

part() { # part NAME COMMAND...: says how long it took
  local name=$1 began=$SECONDS
  shift
  echo "== $name"
  "$@"
  echo "== $name: passed in $((SECONDS - began)) s"
}

part lint bash scripts/lint.sh
# It has torch, and nothing of the operator. Debian's packages come with it.
echo "== the jobs' Python (the first time it fetches torch)"
job_python=$(.venv/bin/python -m testbed python)
# Four at a time: many wait, for a timeout or a process, most of their time.
part "unit tests" .venv/bin/python -m pytest -q -n 4 --dist worksteal -m "$select" tests/unit
# With the Python that jobs run with.
part "trainer tests" "$job_python" -m pytest -q -m "$select" -c tests/trainer/pytest.ini tests/trainer
# Two at a time, each with a bed of its own; those of one file after another, for they share what they start.
beds=2
[ -z "${SPEEDRUN_TESTBED-}" ] || beds=0
part "contract and cluster tests" .venv/bin/python -m pytest -q -n "$beds" --dist loadfile -m "$select" tests/contract tests/cluster
