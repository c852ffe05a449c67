"""A container's file that has its size and cannot be read all the same: real scripts, and an srun that says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from speedrun_operator.planning import RunPlan
from speedrun_operator.preparation.needs import Kind
from unit.slurm.prepare_node import CONTAINER, Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def in_container(made: RunPlan) -> RunPlan:
    return replace(made, steps=tuple(each.model_copy(update={"container": True}) for each in made.steps))


@pytest.mark.parametrize("mode", ["Separate", "Inline"])
@pytest.mark.parametrize("words", ["Invalid image format: {}", "FATAL ERROR:Can't find a SQUASHFS superblock on {}"])
def test_an_image_that_pyxis_cannot_read_is_set_aside_and_made_anew(node: Node, words: str, mode: str) -> None:
    """It has the size that it was made with, so only who mounts it finds out."""
    made = in_container(node.plan("echo trained", mode=mode, container=CONTAINER))
    for number, kind in enumerate((Kind.CODE, Kind.IMAGE)):
        assert node.makes(made, kind, number + 1)[0] == 0
    entry = node.entry(node.need(made, Kind.IMAGE))
    whole, srun = (entry / "image.sqsh").read_text(), node.home / "bin" / "srun"
    (entry / "image.sqsh").write_text("x" * len(whole))
    mounts = f"""
case $(cat "$image" 2>/dev/null) in
xxx*) echo "slurmstepd: error: pyxis:     [ERROR] {words.format("$image")}" >&2; exit 1 ;;
esac
"""
    srun.write_text(srun.read_text().replace('echo "$image" >>', mounts + 'echo "$image" >>'))
    code, said = node.trains(made)
    assert code == 75, said
    assert f"CacheMissing: image {entry.name}: its file is not one that Pyxis can read" in said
    assert not entry.exists()
    if mode == "Separate":
        assert node.makes(made, Kind.IMAGE, 3)[0] == 0
    code, said = node.trains(made, 41, 1)
    assert code == 0 and "trained" in said, said
    assert (entry / "image.sqsh").read_text() == whole


def test_a_program_that_speaks_of_images_harms_none(node: Node) -> None:
    made = in_container(node.plan("echo 'Invalid image format: cat.bmp'; exit 3", container=CONTAINER))
    for number, kind in enumerate((Kind.CODE, Kind.IMAGE)):
        assert node.makes(made, kind, number + 1)[0] == 0
    assert node.trains(made)[0] == 3
    assert node.entry(node.need(made, Kind.IMAGE)).exists()
