"""The batch script and sbatch's arguments: what a plan says is what a job gets, whatever text users write."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from speedrun_operator.backends.slurm.parts import bash_path
from speedrun_operator.backends.slurm.script import render, sbatch_arguments
from speedrun_operator.planning import PlannedRun, RunPlan
from speedrun_operator.source.resolved import Source
from testbed.processes import wait_for
from unit.slurm.compute_node import MINE, Node, step
from unit.slurm.plans import planned

HOSTILE = [
    "'; touch pwned; '",
    "$(touch pwned)",
    "`touch pwned`",
    "a\nb",
    "%j",
    "-rf",
    "\\",
    '"',
    "~",
    "*",
    "a\tb",
    "é☃",
    "",
]
TEXT = st.text(alphabet=st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=40)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# What users write -------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["one", "two", "three"]), TEXT, min_size=1))
@example({"one": "SPEEDRUN_STEP\ntouch pwned\n", "two": "a'b\"c$d`e\\"})
def test_parameters_reach_a_step_as_they_are(tmp_path_factory: pytest.TempPathFactory, values: dict[str, str]) -> None:
    node = Node(tmp_path_factory.mktemp("node"))
    look = step("".join(f'printf "%s" "$PARAM_{name.upper()}" >{name}\n' for name in values))
    runs = (PlannedRun(0, "A", parameters=tuple(values.items()), environment=()),)
    done = node.runs(replace(planned(), steps=(look,), runs=runs))
    assert done.returncode == 0, done.stdout
    seen = {name: (node.ledger / "run-0" / name).read_bytes().decode() for name in values}
    assert seen == values
    assert not list(node.home.rglob("pwned"))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text_everywhere(node: Node, text: str) -> None:
    made = replace(
        planned(),
        environment=(("RECIPE_VARIABLE", text),),
        runs=(PlannedRun(0, "A", parameters=(("log", text),), environment=(("MINE", text),)),),
        steps=(step('printf "%s|%s|%s" "$RECIPE_VARIABLE" "$PARAM_LOG" "$MINE" >seen'),),
    )
    assert node.runs(made).returncode == 0
    assert (node.ledger / "run-0/seen").read_text() == f"{text}|{text}|{text}"
    assert not list(node.home.rglob("pwned"))


@pytest.mark.parametrize("text", HOSTILE[:-1])
def test_hostile_repositories_and_revisions_are_only_looked_for(node: Node, text: str) -> None:
    done = node.runs(replace(planned(), source=Source(text, commit=text)))
    assert done.returncode != 0
    assert "stage=code end exit=" in done.stdout
    assert not list(node.home.rglob("pwned"))


ROOTS = ["/data/runs", "/data/a b/", "~", "~/runs", "~/a b/c'd", "/a$b", "/~/x", "/a/~"]


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("rest", [(), ("lab", "mine-0/alloc-0")])
def test_a_path_is_one_word_and_a_tilde_is_home(root: str, rest: tuple[str, ...]) -> None:
    word = bash_path(root, *rest)
    command = ["bash", "-c", f'set -- {word}; printf \'%s\\n\' "$#" "$1"']
    said = subprocess.run(command, capture_output=True, text=True, env={"HOME": "/home/me"}, timeout=10, check=True)
    home = "/home/me" + root[1:] if root.startswith("~") else root
    expected = "/".join([home.rstrip("/"), *rest])
    assert said.stdout == f"1\n{expected}\n"


@pytest.mark.parametrize("root", ["~/a b/c", "{home}/with $(touch pwned) 'quotes'"])
def test_a_job_runs_under_any_root(node: Node, root: str) -> None:
    done = node.runs(replace(planned(), steps=(step("pwd >where"),)), root=root.format(home=node.home))
    assert done.returncode == 0, done.stdout
    assert len(list(node.home.rglob("where"))) == 1
    assert not list(node.home.rglob("pwned"))


# What a job does --------------------------------------------------------------------------------------------------


def test_a_jobs_log_tells_its_life(node: Node) -> None:
    made = replace(planned(), steps=(step("echo one", "one"), step("echo two", "two"))).for_runs(
        [(each, "A") for each in range(2)]
    )
    done = node.runs(made)
    marks = [line.split(" time=")[0] for line in done.stdout.splitlines() if line.startswith("SPEEDRUN ")]
    of_a_run = ["run={0} begin", "run={0} stage=train begin", "run={0} stage=train end exit=0"]
    of_a_run += ["run={0} stage=train begin", "run={0} stage=train end exit=0", "run={0} end exit=0"]
    expected = [line.format(number) for number in (0, 1) for line in of_a_run]
    assert marks[0].startswith("SPEEDRUN attempt job=17 node=")
    assert marks[1].startswith("SPEEDRUN hardware node=") and marks[1].endswith(" gpus=0")
    assert marks[2:] == [f"SPEEDRUN {line}" for line in [*expected, "job end exit=0"]]
    assert (node.ledger / "owner").read_text() == "17\n"
    assert (node.ledger / "exit").read_text().startswith("job=17 exit=0 time=")


def test_a_failing_step_ends_its_run_and_not_the_next(node: Node) -> None:
    made = replace(
        planned(), steps=(step('[ "$SPEEDRUN_RUN" = 1 ] || exit 3'), step("touch reached", "second"))
    ).for_runs([(0, "A"), (1, "A")])
    done = node.runs(made)
    assert done.returncode == 3
    assert "run=0 end exit=3" in done.stdout and "run=1 end exit=0" in done.stdout
    assert [path.parent.name for path in node.ledger.glob("*/reached")] == ["run-1"]
    assert "exit=3" in (node.ledger / "exit").read_text()


@pytest.mark.parametrize("text", ["false | true\ntouch on", 'echo "$UNSET"\ntouch on', "false\ntouch on"])
def test_a_step_stops_at_its_first_fault(node: Node, text: str) -> None:
    assert node.runs(replace(planned(), steps=(step(text),))).returncode != 0
    assert not list(node.ledger.rglob("on"))


@pytest.mark.parametrize(("owner", "says"), [("16", "is 16"), ("cancelled", "is cancelled")])
def test_a_second_job_ends_at_its_first_line(node: Node, owner: str, says: str) -> None:
    node.ledger.mkdir(parents=True)
    (node.ledger / "owner").write_text(f"{owner}\n")
    done = node.runs(replace(planned(), steps=(step("touch ran"),)))
    assert done.returncode == 0
    assert says in done.stdout and "SPEEDRUN" not in done.stdout
    assert not list(node.ledger.rglob("ran")) and not (node.ledger / "exit").exists()


def test_a_job_that_starts_over_keeps_what_it_owns(node: Node) -> None:
    made = replace(planned(), steps=(step("true"),))
    assert node.runs(made).returncode == 0
    assert "attempt job=17" in node.runs(made).stdout


def test_a_job_that_starts_over_takes_its_earlier_end_back(node: Node) -> None:
    node.runs(replace(planned(), steps=(step("exit 3"),)))
    assert "exit=3" in (node.ledger / "exit").read_text()
    again = node.runs(replace(planned(), steps=(step(f"[ ! -e {node.ledger}/exit ]"),)))
    assert again.returncode == 0, again.stdout


def test_files_are_the_owners_alone(node: Node) -> None:
    node.runs(replace(planned(), steps=(step("touch made"),)))
    assert (node.ledger / "run-0/made").stat().st_mode & 0o077 == 0


def test_a_package_is_unpacked_where_the_steps_run(node: Node) -> None:
    done = node.runs(replace(planned(), package="hypothesis", steps=(step("ls hypothesis/core.py; pwd"),)))
    assert done.returncode == 0, done.stdout
    assert str(node.ledger / "run-0/code") in done.stdout


# What Slurm is told -----------------------------------------------------------------------------------------------

OPTIONS: list[tuple[Mapping[str, Any], str]] = [
    ({"partition": "compute-h100"}, "--partition=compute-h100"),
    ({"account": "team"}, "--account=team"),
    ({"qos": "high"}, "--qos=high"),
    ({"reservation": "night"}, "--reservation=night"),
    ({"constraint": "gpu&(cu128|cu131)"}, "--constraint=gpu&(cu128|cu131)"),
    ({"nodeList": ["a-[12]"]}, "--nodelist=a-[12]"),
    ({"exclude": ["c", "d-7"]}, "--exclude=c,d-7"),
    ({"nice": 7}, "--nice=7"),
]


def arguments(made: RunPlan) -> list[str]:
    return sbatch_arguments(made, MINE, "sr-c1-uid-0")


def test_what_sbatch_is_always_told() -> None:
    assert arguments(planned()) == [
        "--parsable",
        "--job-name=sr-c1-uid-0",
        "--comment=speedrun lab/mine",
        "--no-requeue",
        "--open-mode=append",
        "--nodes=1",
        "--time=11",
        "--signal=B:USR1@60",
        "--ntasks=1",
        "--cpus-per-task=1",
        "--mem=64M",
    ]


@pytest.mark.parametrize(("slurm", "argument"), OPTIONS)
def test_each_option_is_one_argument(slurm: Mapping[str, Any], argument: str) -> None:
    told = arguments(planned(slurm=slurm))
    assert told.count(argument) == 1
    assert set(told) - {argument} == set(arguments(planned()))


def test_all_fields_of_the_spec_are_told() -> None:
    fields = {name for slurm, _ in OPTIONS for name in slurm} | {"registrySecretRef"}  # goes sealed
    model = type(planned().slurm)
    assert fields == {field.alias or name for name, field in model.model_fields.items()} - {"prepare"}


def test_a_whole_node_is_asked_for_with_all_its_memory() -> None:
    told = arguments(planned("modded-nanogpt"))
    assert {"--exclusive", "--mem=0", "--gres=gpu:8", "--partition=compute-h100"} <= set(told)
    assert not any(each.startswith(("--cpus-per-task", "--ntasks")) for each in told)


@pytest.mark.parametrize(("seconds", "minutes"), [(60, 1), (61, 2), (3600, 60), (5401, 91)])
def test_time_limits_are_whole_minutes(seconds: int, minutes: int) -> None:
    """BR-026: --time is never given anything but minutes."""
    assert f"--time={minutes}" in arguments(planned(timeLimitSeconds=seconds))


# Images -----------------------------------------------------------------------------------------------------------


def test_a_contained_step_runs_in_the_image_and_a_plain_one_does_not() -> None:
    text = render(planned("modded-nanogpt"), MINE, 0, "~/runs", "python3")
    assert "stage image image_stage" in text and "stage train contained train" in text
    assert "stage train plain replay" in render(planned(), MINE, 0, "~/runs", "python3")


# Several runs in one job -------------------------------------------------------------------------------------------


def series(*commands: str) -> RunPlan:
    """A plan whose run R does `commands[R]`."""
    cases = " ".join(f"{number}) {command} ;;" for number, command in enumerate(commands))
    steps = (step(f"case $SPEEDRUN_RUN in {cases} esac"),)
    return replace(planned(), steps=steps).for_runs([(number, "A") for number in range(len(commands))])


def test_a_failed_run_does_not_stop_the_next_and_each_has_its_directory(node: Node) -> None:
    done = node.runs(series("pwd >here", "exit 3", "pwd >here"))
    assert done.returncode == 3
    assert [(node.ledger / f"run-{run}/here").read_text().strip() for run in (0, 2)] == [
        str(node.ledger / f"run-{run}") for run in (0, 2)
    ]
    ends = [
        line.split(" time=")[0] for line in done.stdout.splitlines() if " end exit=" in line and "stage" not in line
    ]
    assert ends == [f"SPEEDRUN run={run} end exit={code}" for run, code in ((0, 0), (1, 3), (2, 0))] + [
        "SPEEDRUN job end exit=3"
    ]


def test_a_stop_file_ends_the_series_between_runs(node: Node) -> None:
    done = node.runs(series(f"touch {node.ledger}/stop", "touch ran"))
    assert done.returncode == 0
    assert "SPEEDRUN job stopped" in done.stdout
    assert not (node.ledger / "run-1").exists()


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [(signal.SIGTERM, 143, ""), (signal.SIGUSR1, 140, "SPEEDRUN job limit"), (signal.SIGINT, 130, "")],
)
def test_a_signal_reaches_what_runs_and_the_job_marks_its_end(
    node: Node, number: signal.Signals, code: int, says: str
) -> None:
    """What the run does on SIGTERM is done before the job's last line; what comes after it is not begun."""
    slow = series(f"trap 'touch {node.ledger}/told; exit 9' TERM; touch {node.ledger}/up; sleep 60 & wait", "touch ran")
    job = node.start(slow)
    wait_for("the run to be up", (node.ledger / "up").exists, timeout=20)
    job.send_signal(number)
    said, _ = job.communicate(timeout=20)
    assert job.returncode == code
    assert (node.ledger / "told").exists()
    assert not (node.ledger / "run-1").exists()
    assert says in said
    assert said.rstrip().splitlines()[-1].startswith(f"SPEEDRUN job end exit={code}")
    job, exit_code, _, signalled = (node.ledger / "exit").read_text().split()
    assert (job, exit_code, signalled) == ("job=17", f"exit={code}", f"signal={number.name.removeprefix('SIG')}")


# What a GPU job looks at first ------------------------------------------------------------------------------------


def with_gpus(node: Node, said: str, code: int = 0, driver: int | None = 580) -> subprocess.CompletedProcess[str]:
    """A GPU job on a node whose nvidia-smi says so."""
    programs = node.home / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "nvidia-smi").write_text(f"#!/bin/bash\nprintf '{said}'\nexit {code}\n")
    (programs / "nvidia-smi").chmod(0o755)
    made = replace(planned(), gpu_count=8, driver=driver, steps=(step("echo at work"),))
    node.ledger.mkdir(parents=True)
    script = node.home / "job.sh"
    script.write_text(render(made, MINE, 0, "~/runs", "python3"))
    return subprocess.run(
        ["bash", script],
        env={
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(node.home),
            "SLURM_JOB_ID": "17",
            "SLURMD_NODENAME": "node-a",
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_gpu_job_notes_its_nodes_driver(node: Node) -> None:
    done = with_gpus(node, "NVIDIA H100 80GB HBM3, 580.95.05\\n" * 8)
    assert (done.returncode, "at work" in done.stdout) == (0, True)
    (kept,) = (node.home / "runs/.cache/nodes").iterdir()
    assert (kept.name, kept.read_text()) == ("node-a", "NVIDIA H100 80GB HBM3, 580.95.05\n")


def test_a_driver_that_is_too_old_ends_the_job_before_anything_is_fetched(node: Node) -> None:
    done = with_gpus(node, "NVIDIA H100 80GB HBM3, 550.54.15\\n")
    assert (done.returncode, "run=0" in done.stdout) == (1, False)
    assert "speedrun: the driver is too old: 550.54.15 on node-a, and 580 or later is needed" in done.stderr
    assert (node.ledger / "exit").read_text().startswith("job=17 exit=1 ")


@pytest.mark.parametrize(
    ("said", "code", "driver"),
    [("", 0, 580), ("NVIDIA-SMI has failed\\n", 9, 580), ("odd\\n", 0, 580), ("NVIDIA T4, 450.1\\n", 0, None)],
)
def test_what_nvidia_smi_does_not_say_is_not_held_against_the_node(
    node: Node, said: str, code: int, driver: int | None
) -> None:
    done = with_gpus(node, said, code, driver)
    assert (done.returncode, "at work" in done.stdout) == (0, True)
