"""What the cluster says of itself: sinfo's rows in all their forms, asked with the real command's text."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedrun_operator.backends.slurm import commands, facts
from speedrun_operator.backends.slurm.facts import minutes, parse_gres, parse_nodes, parse_sinfo
from speedrun_operator.facts import ClusterFacts, Gpus, Nodes, Partition, has
from unit.slurm.login_node import NONCE, LoginNode

SUNK = """\
compute-h100|up|infinite|2|idle|gpu:nvidia_h100:8|compute-h100,gpu,cu128
all*|up|infinite|2|idle|gpu:nvidia_h100:8|compute-h100,gpu,cu128
"""
H100 = (Gpus("nvidia_h100", 8),)


def test_what_the_guide_shows() -> None:
    nodes = (Nodes(2, "idle", H100, ("compute-h100", "gpu", "cu128")),)
    assert parse_sinfo(SUNK) == (Partition("compute-h100", nodes), Partition("all", nodes, default=True))


def test_rows_of_one_partition_belong_together() -> None:
    rows = ["3|mix|gpu:h100:8|x", "1|down*|gpu:h100:8|x", "1|idle|(null)|(null)"]
    (found,) = parse_sinfo("".join(f"p|up|1-00:00:00|{row}\n" for row in rows))
    assert (found.name, found.most_minutes, found.size) == ("p", 1440, 5)
    assert [(each.count, each.state, each.gpus, each.features) for each in found.nodes] == [
        (3, "mix", (Gpus("h100", 8),), ("x",)),
        (1, "down*", (Gpus("h100", 8),), ("x",)),
        (1, "idle", (), ()),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(null)", ()),
        ("", ()),
        ("gpu:nvidia_h100:8", (Gpus("nvidia_h100", 8),)),
        ("gpu:h100:8(S:0-1)", (Gpus("h100", 8),)),
        ("gpu:h100:8(S:0,1),nvme:2", (Gpus("h100", 8),)),
        ("gpu:8", (Gpus(None, 8),)),
        ("gpu:h100:4,gpu:a100:4", (Gpus("h100", 4), Gpus("a100", 4))),
        ("nvme:1,gpu:nvidia_h100_80gb_hbm3:8(IDX:0-7)", (Gpus("nvidia_h100_80gb_hbm3", 8),)),
        ("gpu:h100:no_consume:8", (Gpus("h100", 8),)),
        ("gpu", ()),
        ("gpu:x", ()),
        ("mps:100", ()),
    ],
)
def test_gpus_of_a_node(text: str, found: tuple[Gpus, ...]) -> None:
    assert parse_gres(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("infinite", None), ("UNLIMITED", None), ("n/a", None), ("", None), ("90", 90), ("30:00", 30), ("1:30:00", 90),
        ("1-00:00:00", 1440), ("3-12:30:00", 5070), ("3-12", 5040), ("0:30", 0),
    ],
)  # fmt: skip
def test_the_longest_time_of_a_partition(text: str, found: int | None) -> None:
    assert minutes(text) == found


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        ("idle", True), ("mix", True), ("alloc", True), ("comp", True), ("plnd", True), ("mix-", True), ("resv", True),
        ("idle~", True), ("idle#", True), ("idle*", False), ("mix*", False), ("alloc*", False), ("down", False),
        ("down*", False), ("drain", False), ("drng", False), ("drain*", False), ("maint", False), ("idle$", False),
        ("idle@", False), ("idle^", False), ("idle!", False), ("idle%", False), ("boot", False), ("fail", False),
        ("unk", False), ("planned", True), ("", False), ("somethingnew", False),
    ],
)  # fmt: skip
def test_nodes_that_can_run_a_job(state: str, usable: bool) -> None:
    assert Nodes(1, state).usable is usable


@given(st.text(alphabet="p|*:(),0123456789abgu \n~-", max_size=200))
def test_no_text_makes_it_fail(text: str) -> None:
    parse_sinfo(text)
    parse_gres(text)
    minutes(text)
    parse_nodes(text)


def asked(node: LoginNode) -> tuple[ClusterFacts | None, str]:
    done = node.run(facts.command(root="~/runs", nonce=NONCE))
    return facts.read(commands.sections(done.stdout, NONCE)), done.stderr.decode()


def test_the_whole_answer(node: LoginNode) -> None:
    node.says("sinfo", SUNK)
    node.says("scontrol", "Configuration data as of 1782907300\nBOOT_TIME               = 1782907200\nX = y\n")
    known = node.home / "runs" / ".cache" / "nodes"
    known.mkdir(parents=True)
    (known / "slurm-h100-0").write_text("NVIDIA H100 80GB HBM3, 580.95.05\n")
    (known / ".slurm-h100-1.17").write_text("NVIDIA H100 80GB HBM3, 1.0\n")
    (known / "old").write_text("NVIDIA H100 80GB HBM3, 550.1\n")
    os.utime(known / "old", (time.time() - 90000,) * 2)
    found, _ = asked(node)
    assert found is not None
    assert found.partitions == parse_sinfo(SUNK)
    assert found.controller_started == datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert found.drivers == {"NVIDIA H100 80GB HBM3": ("580.95.05",)}
    assert node.asked("sinfo") == ["-h -o %P|%a|%l|%D|%t|%G|%f"]


def test_without_a_controllers_time_and_without_notes_of_nodes(node: LoginNode) -> None:
    node.says("sinfo", SUNK)
    found, _ = asked(node)
    assert found == ClusterFacts(parse_sinfo(SUNK))


def test_times_in_slurms_own_form(node: LoginNode) -> None:
    node.says("sinfo", SUNK)
    node.says("scontrol", "BOOT_TIME               = 2026-07-01T12:00:00\n")
    found, _ = asked(node)
    assert found and found.controller_started == datetime(2026, 7, 1, 12, tzinfo=UTC)


def test_a_sinfo_that_fails_is_no_empty_cluster(node: LoginNode) -> None:
    node.says("sinfo", "", "slurm_load_partitions: Unable to contact slurm controller (connect failure)\n", 1)
    found, said = asked(node)
    assert found is None
    assert "Unable to contact slurm controller" in said


def test_half_an_answer_is_none(node: LoginNode) -> None:
    node.says("sinfo", SUNK)
    done = node.run(facts.command(root="~/runs", nonce=NONCE))
    cut = done.stdout[: done.stdout.rindex(b"@")]
    assert facts.read(commands.sections(cut, NONCE)) is None
    assert facts.read([]) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            SUNK,
            "compute-h100: 2 nodes of 8 nvidia_h100 (2 idle); all, the default: 2 nodes of 8 nvidia_h100 (2 idle)",
        ),
        ("p|up|infinite|1|idle*|gpu:8|(null)\n", "p: 1 node of 8 GPUs (1 idle*)"),
        ("p|down|infinite|3|mix|(null)|(null)\n", "p, not up: 3 nodes without GPUs (3 mix)"),
        (
            "p|up|1:00:00|1|idle|gpu:a:8|x\np|up|1:00:00|2|down|gpu:a:8|x\n",
            "p: 3 nodes of 8 a (1 idle, 2 down)",
        ),
        ("p|up|infinite|0|n/a|(null)|(null)\n", "p: no nodes"),
        ("", "no partition at all"),
    ],
)
def test_what_a_person_reads(text: str, said: str) -> None:
    assert has(ClusterFacts(parse_sinfo(text))) == said
