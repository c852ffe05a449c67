"""Keys of cache entries follow what goes into them, and needs come in the order in which they can be made."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedrun_operator.api.spec import Spec
from speedrun_operator.planning import Refusal, RunPlan, Site, plan
from speedrun_operator.preparation import keys
from speedrun_operator.preparation.manifest import read_manifest
from speedrun_operator.preparation.needs import Kind, kinds, needs
from speedrun_operator.recipes.recipe import BuildStep, Container, shipped
from speedrun_operator.source.resolved import Source

COMMIT = "f411b3d346aa52d3504324ca93c230fd84c6c07f"
INPUTS = {"files": "f" * 64, "mentions": "m" * 64}
BUILD = (BuildStep(kind="system", run="a"), BuildStep(kind="python", run="b"))
CONTAINER = Container(base_image="docker://base", build=BUILD, inputs=("requirements.txt",), probe="true")


def planned(recipe: str = "modded-nanogpt", **parameters: object) -> RunPlan:
    made = plan(Spec.model_validate({"recipe": {"name": recipe, "parameters": parameters}}), shipped(), Site())
    assert isinstance(made, RunPlan), made
    return made


def at(made: RunPlan, commit: str, repository: str = "https://somewhere/code.git") -> RunPlan:
    return replace(made, source=Source(repository=repository, commit=commit))


def by_kind(made: RunPlan, inputs: dict[str, str] | None = INPUTS) -> dict[Kind, str]:
    return {need.kind: need.key for need in needs(made, inputs)}


def test_only_a_recipe_with_a_repository_a_container_or_data_needs_anything() -> None:
    assert kinds(planned("smoke")) == kinds(planned("replay")) == ()
    assert kinds(planned()) == tuple(Kind)


def test_what_hangs_on_the_code_is_known_once_the_code_is_there() -> None:
    made = planned()
    assert [need.kind for need in needs(made, None)] == [Kind.CODE, Kind.DATA]
    after = {need.kind: need.after for need in needs(made, INPUTS)}
    assert after == {
        Kind.CODE: (),
        Kind.IMAGE: (Kind.CODE,),
        Kind.DATA: (Kind.CODE, Kind.IMAGE),
        Kind.DOWNLOADS: (Kind.CODE, Kind.IMAGE),
    }


def test_code_that_tells_nothing_holds_nobody_up() -> None:
    assert [need.kind for need in needs(planned(), {})] == [*Kind]


def test_a_commit_is_the_same_code_from_wherever_it_comes() -> None:
    made = at(planned(), COMMIT)
    elsewhere = at(made, COMMIT, "https://elsewhere/fork.git")
    assert by_kind(made)[Kind.CODE] == by_kind(elsewhere)[Kind.CODE]
    assert by_kind(made)[Kind.CODE] != by_kind(at(made, "0" * 40))[Kind.CODE]


@pytest.mark.parametrize(
    "other",
    [
        CONTAINER.model_copy(update={"base_image": "docker://base2"}),
        CONTAINER.model_copy(update={"build": BUILD[:1]}),
        CONTAINER.model_copy(update={"build": BUILD[::-1]}),
        CONTAINER.model_copy(update={"build": (BuildStep(kind="system", run="ab"),)}),
    ],
    ids=["base image", "a step less", "order", "two steps in one"],
)
def test_an_images_key_follows_base_image_and_build_steps(other: Container) -> None:
    made = replace(planned(), container=CONTAINER)
    assert by_kind(made)[Kind.IMAGE] != by_kind(replace(made, container=other))[Kind.IMAGE]


def test_an_images_key_follows_the_files_that_its_build_reads_and_not_the_probe() -> None:
    made = replace(planned(), container=CONTAINER)
    assert by_kind(made)[Kind.IMAGE] != by_kind(made, {**INPUTS, "files": "0" * 64})[Kind.IMAGE]
    assert by_kind(made)[Kind.IMAGE] == by_kind(made, {**INPUTS, "mentions": "0" * 64})[Kind.IMAGE]
    probed = replace(made, container=CONTAINER.model_copy(update={"probe": "false"}))
    assert by_kind(made)[Kind.IMAGE] == by_kind(probed)[Kind.IMAGE]


def test_the_datas_key_follows_its_files() -> None:
    assert by_kind(planned())[Kind.DATA] == by_kind(at(planned(), "0" * 40))[Kind.DATA]
    assert by_kind(planned())[Kind.DATA] != by_kind(planned(trainingShards=10))[Kind.DATA]
    assert len(planned(trainingShards=10).data_files) == 11


def test_the_downloads_key_follows_what_the_code_names_and_the_image() -> None:
    made = planned()
    assert by_kind(made)[Kind.DOWNLOADS] != by_kind(made, {**INPUTS, "mentions": "0" * 64})[Kind.DOWNLOADS]
    assert by_kind(made)[Kind.DOWNLOADS] != by_kind(made, {**INPUTS, "files": "0" * 64})[Kind.DOWNLOADS]


def test_a_number_of_shards_that_differs_between_runs_is_refused() -> None:
    spec = {"recipe": {"name": "modded-nanogpt", "parameters": {"trainingShards": "$(RUN)"}}, "runs": 1}
    refused = plan(Spec.model_validate(spec), shipped(), Site())
    assert isinstance(refused, Refusal)
    assert refused.message.startswith("spec.recipe.parameters.trainingShards: must be")


@given(st.lists(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=20), min_size=1))
def test_a_key_is_what_a_jobs_script_computes(parts: list[str]) -> None:
    command = ["bash", "-c", "printf '%s\\n' \"$@\" | sha256sum | head -c 16", "bash", *parts]
    assert keys.join(*parts) == subprocess.run(command, capture_output=True, text=True, check=True).stdout


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_other_parts_have_another_digest(one: list[str], other: list[str]) -> None:
    assert (keys.digest(*one) == keys.digest(*other)) == (one == other)


@given(st.text())
def test_a_manifest_is_read_whatever_it_holds(text: str) -> None:
    assert read_manifest(text).bytes is None or "bytes=" in text


def test_a_manifest_tells_size_and_what_others_need_to_know() -> None:
    manifest = read_manifest("kind=code\nbytes=120\ninput.files=ab\nnoise\ninput.mentions=cd\nlisting=ef\n")
    assert (manifest.bytes, manifest.inputs) == (120, {"files": "ab", "mentions": "cd"})
