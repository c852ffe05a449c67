"""The cluster's own facts: the command that asks Slurm for them, and the reading of what it prints. Pure.

Cost: one remote command with two requests to Slurm's controller (sinfo, scontrol show config), and a look at a small
directory: what jobs found on their nodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from speedrun_operator.backends.slurm import ask_text
from speedrun_operator.backends.slurm.commands import Section
from speedrun_operator.backends.slurm.hardware import NODES
from speedrun_operator.backends.slurm.parts import bash_path
from speedrun_operator.backends.slurm.queue import epoch
from speedrun_operator.facts import ClusterFacts, Gpus, Nodes, Partition

SINFO_FORMAT = "%P|%a|%l|%D|%t|%G|%f"
KNOWN_MINUTES = 24 * 60

ASK = r"""
unset "${!SINFO_@}" "${!SCONTROL_@}"
say() { printf '\n@%s %s\n' "$nonce" "$*"; }
inquire '[^|]*[|]' sinfo -h -o 'SINFO_FORMAT'
say sinfo "$?"
printf '%s\n' "$rows"
say started
ask scontrol show config 2>/dev/null | sed -nE 's/^BOOT_TIME *= *//p'
say nodes
cd "$root/NODES" 2>/dev/null && find . -maxdepth 1 -type f -name '[!.]*' -mmin -KNOWN_MINUTES -exec cat -- {} + |
  sort -u | head -c 65536
say "done"
""".strip()


def command(*, root: str, nonce: str) -> str:
    """The command that asks."""
    words = {
        "SINFO_FORMAT": SINFO_FORMAT,
        "NODES": NODES,
        "KNOWN_MINUTES": str(KNOWN_MINUTES),
    }
    body = re.sub(rf"\b({'|'.join(words)})\b", lambda found: words[found[1]], ASK)
    return f"{ask_text.CLEAN}\nroot={bash_path(root)}\nnonce={nonce}\n{body}\n"


def read(sections: Sequence[Section]) -> ClusterFacts | None:
    """What the sections of the answer say; None where Slurm did not answer, or the answer is not whole."""
    if not sections or sections[-1].words != ("done",):
        return None
    said = {each.words[0]: each for each in sections if each.words}
    sinfo = said.get("sinfo")
    if sinfo is None or sinfo.words != ("sinfo", "0"):
        return None
    text = {name: each.body.decode(errors="replace") for name, each in said.items()}
    return ClusterFacts(
        partitions=parse_sinfo(text["sinfo"]),
        controller_started=_moment(text.get("started", "").strip()),
        drivers=parse_nodes(text.get("nodes", "")),
    )


def parse_sinfo(text: str) -> tuple[Partition, ...]:
    """Rows of SINFO_FORMAT: one for each partition, state and kind of node. What is no such row is left out."""
    found: dict[str, Partition] = {}
    for line in text.split("\n"):
        fields = line.split("|", 6)
        if len(fields) != 7:
            continue
        name, up, most, count, state, gres, features = fields
        default = name.endswith("*")
        name = name.removesuffix("*")
        if not name or not re.fullmatch(r"[0-9]{1,9}", count):
            continue
        words = features.strip().removesuffix("(null)").split(",")
        nodes = Nodes(int(count), state, parse_gres(gres), tuple(each for each in words if each))
        before = found.get(name) or Partition(name, (), default, minutes(most), up == "up")
        kept = (*before.nodes, nodes) if nodes.count else before.nodes
        found[name] = Partition(name, kept, before.default, before.most_minutes, before.up)
    return tuple(found.values())


def parse_gres(text: str) -> tuple[Gpus, ...]:
    """`gpu:nvidia_h100:8(S:0-1),nvme:1` → 8 GPUs of nvidia_h100; `(null)` and what is no GPU → none."""
    found = []
    for each in re.sub(r"\([^)]*\)", "", text).split(","):
        parts = [part for part in each.strip().split(":") if part not in ("", "no_consume")]
        if len(parts) < 2 or parts[0].removeprefix("gres/") != "gpu" or not re.fullmatch(r"[0-9]{1,6}", parts[-1]):
            continue
        found.append(Gpus(":".join(parts[1:-1]) or None, int(parts[-1])))
    return tuple(found)


def minutes(text: str) -> int | None:
    """Slurm's time limits, `1-12:30:00`, `12:30:00`, `30:00`, `90`, in whole minutes; None: `infinite`."""
    found = re.fullmatch(r"(?:([0-9]{1,6})-)?([0-9]{1,6})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?", text.strip())
    if found is None:
        return None
    days, first, second, third = (int(part) if part is not None else None for part in found.groups())
    if days is not None:
        return (days * 24 + (first or 0)) * 60 + (second or 0)
    if third is not None:
        return (first or 0) * 60 + (second or 0)
    return first


def parse_nodes(text: str) -> dict[str, tuple[str, ...]]:
    """Lines of `NVIDIA H100 80GB HBM3, 580.95.05`, which jobs leave, as driver versions by name of the GPU."""
    found: dict[str, tuple[str, ...]] = {}
    for line in text.split("\n"):
        name, comma, version = line.strip().rpartition(", ")
        if comma and re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}", version) and len(name) <= 128:
            found[name] = tuple(sorted({*found.get(name, ()), version}))
    return found


def _moment(text: str) -> datetime | None:
    """Seconds since the epoch, or Slurm's own form in UTC."""
    if (moment := epoch(text)) is not None:
        return moment
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None
