"""The command line as a user meets it: what it prints, where, and with which exit code."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from speedrun_operator import __version__
from speedrun_operator.api.schema import crd_yaml
from speedrun_operator.cli import main
from speedrun_operator.recipes.recipe import shipped

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("SPEEDRUN_"):
            monkeypatch.delenv(name)


def speedrun(**spec: Any) -> dict[str, Any]:
    recipe = {"name": "replay", **spec.pop("recipe", {})}
    return {
        "apiVersion": "speedrun.dev/v1alpha1",
        "kind": "Speedrun",
        "metadata": {"name": "mine", "namespace": "lab"},
        "spec": {"recipe": recipe, **spec},
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "speedrun.yaml"
    path.write_text(yaml.safe_dump(speedrun()))
    return path


def ends(*arguments: str) -> int:
    """The exit code, also where argparse ends by itself."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def is_bash(script: str) -> None:
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("--version") == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_the_module_is_the_command() -> None:
    run = [sys.executable, "-m", "speedrun_operator.cli", "--version"]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == f"{__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["run", "check", "render", "crd", "--version"]),
        (["run", "--help"], ["--config FILE", "--login.host", "--slurm.root", "--watch.namespaces", "(default: 10)"]),
        (["check", "-h"], ["--config FILE", "--kubeconfig", "--login.key-file"]),
        (["render", "--help"], ["-f FILE, --file FILE", "--slurm.gpu-partition"]),
        (["crd", "--help"], ["usage: speedrun-operator crd"]),
    ],
    ids=lambda each: each[0],
)
def test_help(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ends(*arguments) == 0
    printed = capsys.readouterr().out
    for word in words:
        assert word in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["walk"], "invalid choice: 'walk'"),
        (["crd", "now"], "unrecognized arguments: now"),
        (["run", "now"], "unrecognized arguments: now"),
        (["run", "--login.hots=x"], "unrecognized arguments: --login.hots=x"),
        (["run", "-f", "x.yaml"], "unrecognized arguments: -f"),
        (["run", "--conf=x"], "unrecognized arguments: --conf=x"),
        (["render"], "render needs -f FILE (- reads standard input)"),
        (["check", "--login.port=0"], "speedrun-operator: login.port: Input should be greater than 0"),
        (["run", "--config=/nowhere/at-all"], "speedrun-operator: settings file /nowhere/at-all: "),
    ],
    ids=" ".join,
)
def test_wrong_use_is_told_with_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err


def test_crd(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("crd") == 0
    assert capsys.readouterr().out == crd_yaml()


@pytest.mark.parametrize("name", shipped())
def test_render_every_recipe(name: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = speedrun(recipe={"name": name})
    file.write_text(yaml.safe_dump(spec))
    assert ends("render", "-f", str(file)) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith("# Plan of lab/mine\n")
    assert f"#   recipe: {name}\n" in printed.out
    assert "\n#!/bin/bash\n" in printed.out
    is_bash(printed.out)


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_render_every_example(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = [each for each in yaml.safe_load_all(example.read_text()) if each and each["kind"] == "Speedrun"]
    assert documents, "an example of a Speedrun"
    assert ends("render", "-f", str(example)) == 0
    printed = capsys.readouterr()
    assert printed.out.count("# Plan of ") == len(documents)
    is_bash(printed.out)


def test_the_plan_is_yaml_behind_number_signs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(yaml.safe_dump(speedrun(recipe={"parameters": {"steps": 5}}, target=3.3, gpus={"count": 2})))
    assert ends("render", "-f", str(file)) == 0
    printed = capsys.readouterr().out
    shown = yaml.safe_load("\n".join(line[4:] for line in printed.splitlines() if line.startswith("#   ")))
    assert (shown["target"], shown["gpuCount"], shown["parameters"]["steps"]) == (3.3, 2, "5")
    arguments = shlex.split(next(line for line in printed.splitlines() if line.startswith("# sbatch "))[9:])
    assert {"--no-requeue", "--gres=gpu:2", "--time=11"} <= set(arguments)


def test_render_looks_at_the_settings(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--slurm.partition=short", "--slurm.root=/shared/runs", "--cluster-id=lab1"]
    assert ends("render", "-f", str(file), *flags) == 0
    printed = capsys.readouterr().out
    assert "--partition=short" in printed
    assert "root=/shared/runs\n" in printed
    assert "--job-name=sr-lab1-00000000-0000-0000-0000-000000000000-0" in printed


def test_render_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(speedrun())))
    assert ends("render", "-f", "-") == 0
    assert "# Plan of lab/mine" in capsys.readouterr().out


def test_values_of_parameters_stay_values(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(yaml.safe_dump(speedrun(recipe={"parameters": {"log": "/my log/a b.txt"}})))
    assert ends("render", "-f", str(file)) == 0
    assert "export PARAM_LOG='/my log/a b.txt'\n" in capsys.readouterr().out


def test_values_of_variables_stay_values_and_each_run_has_its_own(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = [{"name": "MINE", "value": "it's run $(RUN)\n$(id)"}]
    file.write_text(yaml.safe_dump(speedrun(env=env, runs=3, runsPerAllocation=2, target=3.3)))
    assert ends("render", "-f", str(file)) == 0
    printed = capsys.readouterr().out
    is_bash(printed)
    functions = printed[printed.index("variables_0() {") : printed.index("\nset -m")]
    for run in (0, 1):
        shown = f'{functions}\nvariables_{run}; printf %s "$MINE"'
        value = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True).stdout
        assert value == f"it's run {run}\n$(id)"
    assert "variables_2" not in printed, "the third run is of another job"
    assert "--time=21" in printed, "a minute of start-up and ten for each run"


def renamed(**metadata: Any) -> dict[str, Any]:
    return {**speedrun(), "metadata": metadata}


NAMED = "must be lower-case letters, digits, - and ., at most 63 of them, not "


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("", "holds no Speedrun", id="nothing"),
        pytest.param("---\n---\n", "holds no Speedrun", id="empty documents"),
        pytest.param("kind: [", "while parsing a flow", id="no YAML"),
        pytest.param("- a\n", "not a speedrun.dev/v1alpha1 Speedrun", id="a list"),
        pytest.param("hello\n", "not a speedrun.dev/v1alpha1 Speedrun", id="a word"),
        pytest.param({**speedrun(), "kind": "Job"}, "not a speedrun.dev/v1alpha1 Speedrun", id="another kind"),
        pytest.param(
            {**speedrun(), "apiVersion": "speedrun.dev/v2"}, "not a speedrun.dev/v1alpha1", id="another version"
        ),
        pytest.param({**speedrun(), "metadata": None}, f"metadata.name: {NAMED}''", id="no metadata"),
        pytest.param({**speedrun(), "metadata": "mine"}, f"metadata.name: {NAMED}''", id="metadata that are a word"),
        pytest.param(renamed(name="a\nid"), f"metadata.name: {NAMED}'a\\nid'", id="a name with a line end"),
        pytest.param(renamed(name="a" * 64), f"metadata.name: {NAMED}'aaa", id="a long name"),
        pytest.param(renamed(name="a", namespace="../x"), f"metadata.namespace: {NAMED}'../x'", id="a way out"),
        pytest.param({**speedrun(), "spec": None}, "spec.recipe: Field required", id="no spec"),
        pytest.param({**speedrun(), "spec": []}, "spec.recipe: Field required", id="an empty list for a spec"),
        pytest.param({**speedrun(), "spec": "x"}, "spec: Input should be a valid dictionary", id="a word for a spec"),
        pytest.param(speedrun(gpu=3), "spec.gpu: Extra inputs are not permitted", id="an unknown field"),
        pytest.param(
            speedrun(recipe={"name": "nanogpt"}),
            "UnknownRecipe: spec.recipe.name: no recipe is called 'nanogpt'; there are: ",
            id="an unknown recipe",
        ),
        pytest.param(
            speedrun(gpus={"count": 3}),
            "UnsupportedHardware: spec.gpus.count: recipe replay runs on 0, 1, 2, 4, 8 GPUs, not on 3",
            id="a count that the recipe forbids",
        ),
        pytest.param(
            speedrun(recipe={"parameters": {"steps": "$(id)"}}),
            "InvalidParameter: spec.recipe.parameters.steps: must be a whole number, not '$(id)'",
            id="a parameter",
        ),
    ],
)
def test_what_cannot_be_rendered_is_told_with_exit_code_1(
    content: str | dict[str, Any], message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    assert ends("render", "-f", str(file)) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"speedrun-operator: {file}: ")
    assert message in printed.err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("render", "-f", str(tmp_path / "absent")) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_a_file_in_another_encoding(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_bytes(b"kind: \xe9\n")
    assert ends("render", "-f", str(file)) == 1
    assert f"speedrun-operator: {file}: 'utf-8' codec can't decode" in capsys.readouterr().err


def test_one_bad_document_does_not_hide_the_others(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(yaml.safe_dump_all([speedrun(gpus={"count": 3}), speedrun()]))
    assert ends("render", "-f", str(file)) == 1
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert printed.out.count("# Plan of ") == 1


KUBECONFIG = """\
{apiVersion: v1, kind: Config, current-context: here, users: [{name: me, user: {token: t}}],
 contexts: [{name: here, context: {cluster: here, user: me}}],
 clusters: [{name: here, cluster: {server: "https://127.0.0.1:1", certificate-authority-data: AAAA}}]}
"""


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("clusters: [", "{path}: neither YAML nor JSON (line 2)"),
        ("a: b", "{path}: not a kubeconfig: it has no list of clusters"),
        (KUBECONFIG, "cannot use the certificates for https://127.0.0.1:1: "),
    ],
    ids=["no yaml", "no kubeconfig", "no certificate"],
)
@pytest.mark.parametrize(("command", "code"), [("run", 78), ("check", 1)])
def test_a_kubeconfig_that_cannot_be_used(tmp_path: Path, command: str, code: int, content: str, says: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    argv = [sys.executable, "-m", "speedrun_operator.cli", command, f"--kubeconfig={path}", "--health-address="]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert says.format(path=path) in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


OPEN = (
    "is open to every user of this machine (mode 0{mode:o}, owner {uid}, group {gid}). Close it with `chmod 600 {path}`"
)


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        (0o644, OPEN),
        (0o446, OPEN),
        (0o640, "The private key {path} cannot be used: "),
        (None, "Cannot read the private key {path}: No such file or directory"),
    ],
    ids=["read by all", "written by all", "read by its group, and no key", "absent"],
)
@pytest.mark.parametrize(("command", "code"), [("run", 78), ("check", 1)])
def test_a_login_key_that_cannot_be_used(tmp_path: Path, command: str, code: int, mode: int | None, says: str) -> None:
    """BR-009: told as it starts, before anybody is asked anything. A key that its group may read is read."""
    path = tmp_path / "key"
    if mode is not None:
        path.write_text("no key")
        path.chmod(mode)
    (tmp_path / "kubeconfig").write_text("a: b")
    login = {"host": "127.0.0.1", "port": "1", "user": "me", "key-file": path, "known-hosts-file": "/dev/null"}
    argv = [sys.executable, "-m", "speedrun_operator.cli", command, f"--kubeconfig={tmp_path / 'kubeconfig'}"]
    argv += ["--health-address=", *(f"--login.{name}={value}" for name, value in login.items())]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    wanted = says.format(path=path, mode=mode or 0, uid=os.getuid(), gid=os.getgid())
    assert wanted in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_fault() -> None:
    argv = f"set -o pipefail; {shlex.quote(sys.executable)} -m speedrun_operator.cli crd | true"
    done = subprocess.run(["bash", "-c", argv], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")
