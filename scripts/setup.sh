#!/bin/bash
# setup.sh VENV: makes the virtual environment. Says what it fetches; installs Python itself on a bare Debian.
set -euo pipefail
venv=$1
python=${PYTHON:-}

if [ -z "$python" ] || ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "setup: installing Debian's python3 and python3-venv (about 40 MB, half a minute)"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates; } >/dev/null
    python=/usr/bin/python3
  else
    echo "setup: Python 3.11 or newer with its venv module is needed (Debian: apt-get install python3-venv)" >&2
    exit 1
  fi
fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "setup: $("$python" --version) is too old; name a newer one: make PYTHON=/path/to/python3.11 ..." >&2
  exit 1
}

began=$SECONDS
echo "setup: making $venv with $("$python" --version): about 60 Python packages (70 MB when none is cached), half a minute"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
# The test bed is a package of the tests: `python -m testbed` works from .venv.
"$venv/bin/python" - "$PWD/tests" <<'PY'
import pathlib, sys, sysconfig
pathlib.Path(sysconfig.get_path("purelib"), "speedrun-tests.pth").write_text(sys.argv[1] + "\n")
PY
touch "$venv/ready"
echo "setup: done after $((SECONDS - began)) s"
