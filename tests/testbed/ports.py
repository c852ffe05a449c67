"""Ports that stay the same from one start of the bed to the next, as long as nobody else took them meanwhile.

They lie below the range from which the kernel gives ports to outgoing connections: a daemon that a test stops and
starts again must find its port free. Beds that are up side by side draw from ranges of their own: between a draw and
the daemon's start lie seconds in which the port looks free to others, too.
"""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

from testbed.part import NAME

RANGES = {"": range(18000, 23000), "w1": range(23000, 28000)}  # the machine's bed, and the tests' second worker's
RANGE = RANGES.get(NAME, range(28000, 32000))

# A bed's halves start side by side in one process. A port that is in one file is in no other.
_drawing = threading.Lock()
_drawn: dict[int, Path] = {}


def kept_ports(file: Path, names: Sequence[str]) -> dict[str, int]:
    """A port of 127.0.0.1 for each name: those in `file` where still free, else new ones, written to `file`.

    Call it while the daemons that use them are down.
    """
    kept = read_ports(file) if file.exists() else {}
    ports: dict[str, int] = {}
    with _drawing:
        for name in names:
            port = kept.get(name)
            while port is None or port in ports.values() or _drawn.get(port, file) != file or not is_free(port):
                port = random.choice(RANGE)
            ports[name] = port
        _drawn.update(dict.fromkeys(ports.values(), file))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(ports))
    return ports


def read_ports(file: Path) -> dict[str, int]:
    """The ports that `kept_ports` wrote."""
    read: dict[str, int] = json.loads(file.read_text())
    return read


def is_free(port: int) -> bool:
    """Whether a daemon could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
        return True


def answers(port: int) -> bool:
    """Whether something listens on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
