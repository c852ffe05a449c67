#!/bin/bash
# consent.sh COMMAND: the demo changes the machine (packages, users), so it asks first, and only where it can work.
set -euo pipefail
command=$1

if ! { [ "$(id -u)" = 0 ] && [ "$(. /etc/os-release 2>/dev/null; echo "${ID:-} ${VERSION_ID:-}")" = "debian 12" ]; }; then
  cat >&2 <<TEXT
$command runs a real API server, Slurm and sshd, and for that it needs Debian 12 with root. This is
$(. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-}" || uname -s), as user $(id -un). This gives such a machine:

    docker run --rm -it --privileged -v "\$PWD:/speedrun" -w /speedrun debian:12 \\
      bash -c 'apt-get update && apt-get install -y make && DEMO_YES=1 $command; exec bash'

TEXT
  exit 1
fi

[ -z "${DEMO_YES:-}${CI:-}" ] || exit 0
cat <<TEXT
$command sets up a test bed on this machine:
  - Debian packages: Slurm, munge, MariaDB, sshd, containerd, buildah, gcc, Python's venv (about 85 MB; no service is started by them)
  - users srbed-alice and srbed-bob and their login aliases, for jobs
  - state in /srv/speedrun-testbed, Python with torch in /opt/speedrun-testbed, built tools in ${SPEEDRUN_CACHE:-~/.cache/speedrun-operator}
Everything listens on loopback addresses alone. \`make down\` stops it, \`make clean\` removes users and state.
TEXT
if [ ! -t 0 ]; then
  echo "There is no terminal to ask: say yes with DEMO_YES=1 $command" >&2
  exit 1
fi
read -r -p "Go on? [y/N] " answer
[[ $answer == [yY]* ]] || { echo "Nothing was changed."; exit 1; }
