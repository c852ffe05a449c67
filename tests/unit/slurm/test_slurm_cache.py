"""The shared cache as jobs make and use it: real scripts in real bash, with code from a real git repository."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from speedrun_operator.backends import cache_text
from speedrun_operator.preparation.needs import Kind
from testbed.processes import wait_for
from unit.slurm.prepare_node import CONTAINER, DATA, DOWNLOADS, NAMES, Node, kill, shard


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks and looks in seconds that a test can wait for."""
    monkeypatch.setattr(cache_text, "LEASE_SECONDS", 2)
    monkeypatch.setattr(cache_text, "BEAT_SECONDS", 0.3)
    monkeypatch.setattr(cache_text, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(cache_text, "WATCH_SECONDS", 0.1)


def left(node: Node) -> list[str]:
    """What lies beside the entries: parts and locks of jobs."""
    return [path.name for path in (node.root / ".cache").glob("*/*") if "." in path.name]


# Code -------------------------------------------------------------------------------------------------------------


def test_code_is_there_whole_at_its_commit_and_tells_what_others_need_to_know(node: Node) -> None:
    made = node.plan(container=CONTAINER, downloads=DOWNLOADS)
    code, said = node.makes(made, Kind.CODE)
    assert code == 0, said
    need = node.need(made, Kind.CODE)
    facts = node.manifest(need).facts
    assert facts["commit"] == node.head
    assert (node.entry(need) / "tree" / "train.py").exists()
    assert (node.entry(need) / "mentions").read_text() == 'get_kernel("some/kernel", version=1)\n'
    assert set(node.manifest(need).inputs) == {"files", "mentions"}
    assert "SPEEDRUN stage=code progress done=2 total=2 unit=steps" in said
    assert left(node) == []


def test_a_commit_that_is_not_there_leaves_nothing_behind(node: Node) -> None:
    node.head = "0" * 40
    code, said = node.makes(node.plan(), Kind.CODE)
    assert code != 0
    assert "could not be made" in said and "stage=code end exit=" in said
    assert [*(node.root / ".cache" / "code").iterdir()] == []


def test_the_image_follows_the_requirements_and_not_the_commit(node: Node) -> None:
    made = node.plan(container=CONTAINER)
    node.makes(made, Kind.CODE, 1)
    first = node.need(made, Kind.IMAGE).key
    node.commit(other="text")
    same = node.plan(container=CONTAINER)
    node.makes(same, Kind.CODE, 2)
    assert node.need(same, Kind.CODE).key != node.need(made, Kind.CODE).key
    assert node.need(same, Kind.IMAGE).key == first
    node.commit(needs="torch==3")
    other = node.plan(container=CONTAINER)
    node.makes(other, Kind.CODE, 3)
    assert node.need(other, Kind.IMAGE).key != first


# Once, whole, under a lock ----------------------------------------------------------------------------------------


def test_a_second_job_finds_the_entry_and_makes_nothing(node: Node) -> None:
    made = node.plan()
    node.makes(made, Kind.CODE, 1)
    before = (node.entry(node.need(made, Kind.CODE)) / "tree").stat().st_mtime_ns
    shutil.rmtree(node.upstream)
    code, said = node.makes(made, Kind.CODE, 2)
    assert code == 0, said
    assert (node.entry(node.need(made, Kind.CODE)) / "tree").stat().st_mtime_ns == before


def test_a_job_that_waits_takes_over_from_one_that_died(node: Node) -> None:
    made = node.plan(data=DATA, data_files=NAMES)
    node.makes(made, Kind.CODE, 1)
    (node.store / "slow").touch()
    first = node.starts(made, Kind.DATA, 2)
    wait_for("the first to be halfway", (node.home / "halfway").exists, timeout=20)
    second = node.starts(made, Kind.DATA, 3)
    said = second.stdout
    assert said is not None
    entry = node.entry(node.need(made, Kind.DATA))
    wait_for("the second to look at the lock", lambda: bool([*entry.parent.glob("*.clock.3")]), timeout=20)
    (node.store / "slow").unlink()
    kill(first)
    text, _ = second.communicate(timeout=40)
    assert second.returncode == 0, text
    assert "has not been heard of" in text, "the lock of the dead job was taken"
    fetched = (node.home / "fetched").read_text().split()
    assert fetched.count("val_000000") == fetched.count("train_000001") == 1, "what was whole was fetched again"
    assert fetched.count("train_000002") == 2, "half a file was taken for a whole one"
    assert left(node) == []


def test_a_job_that_is_told_to_end_leaves_no_part_and_no_lock(node: Node) -> None:
    made = node.plan(data=DATA, data_files=NAMES)
    node.makes(made, Kind.CODE, 1)
    (node.store / "slow").touch()
    job = node.starts(made, Kind.DATA, 2)
    wait_for("it to be halfway", (node.home / "halfway").exists, timeout=20)
    job.terminate()
    said, _ = job.communicate(timeout=20)
    assert job.returncode == 143, said
    assert not node.entry(node.need(made, Kind.DATA)).exists()
    assert left(node) == []


@pytest.mark.parametrize("harm", ["file gone", "file shorter", "no manifest"])
def test_a_broken_entry_is_made_anew_and_said_so(node: Node, harm: str) -> None:
    made = node.plan()
    node.makes(made, Kind.CODE, 1)
    entry = node.entry(node.need(made, Kind.CODE))
    if harm == "no manifest":
        (entry / "manifest").unlink()
    elif harm == "file gone":
        (entry / "tree" / "train.py").unlink()
    else:
        (entry / "tree" / "train.py").write_text("x")
    code, said = node.makes(made, Kind.CODE, 2)
    assert code == 0
    assert "SPEEDRUN stage=code cache=broken key=" in said
    assert "get_kernel" in (entry / "tree" / "train.py").read_text()
    assert left(node) == []


# Images -----------------------------------------------------------------------------------------------------------


def test_an_image_is_built_beside_its_place_step_by_step(node: Node) -> None:
    made = node.plan(container=CONTAINER)
    node.makes(made, Kind.CODE, 1)
    code, said = node.makes(made, Kind.IMAGE, 2)
    assert code == 0, said
    for done in range(5):
        assert f"SPEEDRUN stage=image progress done={done} total=4 unit=steps" in said
    assert (node.entry(node.need(made, Kind.IMAGE)) / "image.sqsh").exists()
    assert len(node.manifest(node.need(made, Kind.IMAGE)).facts["sha256"]) == 64


@pytest.mark.parametrize("fault", ["build", "probe"])
def test_a_half_built_image_is_no_image(node: Node, fault: str) -> None:
    """Pyxis saves a container after a failed step, too."""
    bad = (failing_step(), *CONTAINER.build) if fault == "build" else CONTAINER.build
    container = CONTAINER.model_copy(update={"build": bad, "probe": "false" if fault == "probe" else "true"})
    made = node.plan(container=container)
    node.makes(made, Kind.CODE, 1)
    code, said = node.makes(made, Kind.IMAGE, 2)
    assert code != 0, said
    assert not node.entry(node.need(made, Kind.IMAGE)).exists()
    assert left(node) == []


def failing_step() -> object:
    return CONTAINER.build[0].model_copy(update={"run": "exit 9"})


# Data -------------------------------------------------------------------------------------------------------------


def prepared_data(node: Node) -> tuple[int, str, Path]:
    made = node.plan(data=DATA, data_files=NAMES)
    node.makes(made, Kind.CODE, 1)
    code, said = node.makes(made, Kind.DATA, 2)
    return code, said, node.entry(node.need(made, Kind.DATA))


def test_shards_are_there_by_header_size_and_count(node: Node) -> None:
    """BR-090: a last shard that is shorter than the others is whole when it agrees with its own header."""
    (node.store / "train_000003.bin").write_bytes(shard(539))
    code, said, entry = prepared_data(node)
    assert code == 0, said
    assert sorted(path.name for path in (entry / "files").iterdir()) == sorted(NAMES)
    assert "SPEEDRUN stage=data progress done=4 total=4 unit=files" in said


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (shard(magic=20240801, version=7) + b"\0\0" * 1000, "magic 20240801, 20240520 expected"),
        (shard(found=2000), "1000 tokens claimed, 2000 found (4000 bytes after the header, 2000 expected)"),
        (shard(version=2), "version 2, 1 expected"),
        (b"<!DOCTYPE html><html>429 Too Many Requests</html>", "20240520 expected: no token shard"),
        (b"", "magic none, 20240520 expected: no token shard"),
    ],
    ids=["another tokenizer", "four bytes a token", "version", "a web page", "empty"],
)
def test_what_is_no_token_shard_is_refused_with_path_found_and_expected(node: Node, content: bytes, says: str) -> None:
    """BR-088."""
    (node.store / "train_000002.bin").write_bytes(content)
    code, said, entry = prepared_data(node)
    assert code != 0
    assert "train_000002.bin: " in said and says in said
    assert not entry.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (shard(100000, found=60000), "100000 tokens claimed, 60000 found"),
        (shard(100000)[:-1], "100000 tokens claimed, 99999 found"),
        (shard(100000) + b"0123456789", "100000 tokens claimed, 100005 found"),
        (shard(-1, found=1000), "claims -1 tokens"),
    ],
    ids=["60 %", "a byte short", "ten bytes long", "minus one"],
)
def test_a_shard_that_is_not_as_long_as_it_says_is_refused_before_training(
    node: Node, content: bytes, says: str
) -> None:
    """BR-089: every shard that the run will need is looked at, by the job that prepares and by the one that trains."""
    made = node.plan(data=DATA, data_files=NAMES)
    code, said, entry = prepared_data(node)
    assert code == 0, said
    (entry / "files" / "train_000003.bin").write_bytes(content)
    listing = [line for line in (entry / "manifest").read_text().splitlines() if not line.startswith("listing=")]
    sealed = _listing(node, entry)
    (entry / "manifest").write_text("\n".join([*listing, f"listing={sealed}", ""]))
    code, said = node.trains(made)
    assert code == 75
    assert f"CacheMissing: data {entry.name}: {entry}/files/train_000003.bin: {says}" in said
    assert not entry.exists(), "a broken entry is set aside, so that it is made anew"


def _listing(node: Node, entry: Path) -> str:
    import subprocess

    text = cache_text.fill(cache_text.WHOLE) + '\nlisting "$1"'
    done = subprocess.run(["bash", "-c", text, "bash", str(entry)], capture_output=True, text=True, check=True)
    return done.stdout


def test_strays_are_no_data_and_a_missing_validation_shard_is_named(node: Node) -> None:
    """BR-091: which files count is said by name, never by what lies there."""
    (node.store / "val_000000.bin").unlink()
    for stray in ("zzz.bin.tmp", ".train_000005.bin.incomplete", "train_10.bin"):
        (node.store / stray).write_bytes(shard())
    code, said, entry = prepared_data(node)
    assert code != 0
    assert "val_000000.bin" in said
    assert not entry.exists()


def test_a_killed_download_leaves_no_file_under_its_final_name(node: Node) -> None:
    """BR-097: after SIGKILL at half of a shard the next job fetches that shard again, and no other."""
    made = node.plan(data=DATA, data_files=NAMES)
    node.makes(made, Kind.CODE, 1)
    (node.store / "slow").touch()
    job = node.starts(made, Kind.DATA, 2)
    wait_for("it to be halfway", (node.home / "halfway").exists, timeout=20)
    kill(job)
    assert not node.entry(node.need(made, Kind.DATA)).exists()
    (node.store / "slow").unlink()
    code, said = node.makes(made, Kind.DATA, 3)
    assert code == 0, said
    assert sorted((node.home / "fetched").read_text().split()) == sorted(
        ["val_000000", "train_000001", "train_000002", "train_000002", "train_000003"]
    )
    assert left(node) == []


def test_more_shards_of_the_same_set_are_not_downloaded_twice(node: Node) -> None:
    few = node.plan(data=DATA, data_files=NAMES[:3])
    node.makes(few, Kind.CODE, 1)
    node.makes(few, Kind.DATA, 2)
    (node.home / "fetched").unlink()
    more = node.plan(data=DATA, data_files=NAMES)
    code, said = node.makes(more, Kind.DATA, 3)
    assert code == 0, said
    assert node.need(more, Kind.DATA).key != node.need(few, Kind.DATA).key
    fetched = (node.home / "fetched").read_text().split() if (node.home / "fetched").exists() else []
    assert fetched == [], "upstream's own fetch had left all four there"


# Runs -------------------------------------------------------------------------------------------------------------


USES = (
    'touch mine; echo "$HF_HOME" >../home; ls data/shards >../shards; echo changed >"$HF_HOME/kernel"',
    'cat "$HF_HOME/kernel" "$SPEEDRUN_MENTIONS" >../kernel',
)


def test_a_run_has_code_of_its_own_data_by_path_and_downloads_that_it_may_change(node: Node) -> None:
    made = node.plan(*USES, container=CONTAINER, data=DATA, data_files=NAMES, downloads=DOWNLOADS)
    for number, kind in enumerate(Kind):
        code, said = node.makes(made, kind, number + 1)
        assert code == 0, said
    code, said = node.trains(made)
    assert code == 0, said
    run = node.run_directory()
    assert (run / "code" / "mine").exists() and (run / "code" / "train.py").exists()
    assert (run / "shards").read_text().split() == sorted(NAMES)
    assert (run / "code" / "data" / "shards").is_symlink()
    assert (run / "kernel").read_text() == 'changed\nget_kernel("some/kernel", version=1)\n'
    own = Path((run / "home").read_text().strip())
    assert own.is_relative_to(run) and (own / "large").is_symlink() and not (own / "kernel").is_symlink()
    for kind in Kind:
        code, said = node.makes(made, kind, 20 + list(Kind).index(kind))
        assert code == 0 and "cache=broken" not in said, "a run changed an entry"


def test_a_run_whose_entry_is_gone_says_so_and_the_runs_after_it_are_not_begun(node: Node) -> None:
    made = node.plan("touch ../trained").for_runs([(0, "A"), (1, "A")])
    code, said = node.trains(made)
    assert code == 75
    key = node.need(made, Kind.CODE).key
    assert f"SPEEDRUN run=0 stage=code cache=missing key={key} why=it%20is%20not%20there" in said
    assert "run=1 begin" not in said
    assert not (node.run_directory() / "trained").exists()


def test_inline_makes_everything_in_the_training_job_itself(node: Node) -> None:
    made = node.plan(*USES, mode="Inline", container=CONTAINER, data=DATA, data_files=NAMES, downloads=DOWNLOADS)
    code, said = node.trains(made)
    assert code == 0, said
    assert all(node.entry(node.need(made, kind)).exists() for kind in Kind), "the keys are those of separate jobs"
    assert "SPEEDRUN run=0 stage=data progress done=4 total=4 unit=files" in said
    again, said = node.trains(made, 41, allocation=1)
    assert again == 0 and "progress" not in said
