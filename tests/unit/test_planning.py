"""spec + recipe + site → plan: everything resolved, or a refusal that names the field."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from speedrun_operator.api.phases import Reason
from speedrun_operator.api.spec import KeyRef, Spec
from speedrun_operator.planning import Refusal, RunPlan, Site, plan, substitute
from speedrun_operator.recipes.recipe import Recipe, shipped
from speedrun_operator.source.resolved import Source, Wanted, wanted
from unit.builders import SITE

ANY: dict[str, Any] = {
    "name": "any",
    "about": "Runs on anything.",
    "target": 3.28,
    "logFormat": "modded-nanogpt",
    "gpus": {"counts": [2, 0, 4]},
    "startUpSeconds": 60,
    "runSeconds": 61,
    "environment": {"B": "2", "A": "1"},
    "parameters": {
        "seed": {"type": "integer", "default": 7, "description": "", "maximum": 99},
        "tag": {"type": "string", "default": "x", "description": ""},
    },
    "steps": [{"name": "train", "stage": "train", "run": "true"}],
}
RECIPES = {
    "any": Recipe.model_validate(ANY),
    "hopper": Recipe.model_validate({**ANY, "name": "hopper", "gpus": {"types": ["H100", "H200"], "counts": [8, 1]}}),
    "even": Recipe.model_validate(
        {
            **ANY,
            "name": "even",
            "parameters": {"tag": {"type": "string", "default": "0", "description": "", "pattern": "[02468]"}},
        }
    ),
    "hosted": Recipe.model_validate(
        {
            **ANY,
            "name": "hosted",
            "gpus": {"counts": [8, 1]},
            "repository": "https://example.com/x",
            "revision": "a" * 40,
            "data": {
                "dataset": "x",
                "path": "data",
                "fetch": "true",
                "files": [{"pattern": "%06d.bin", "first": 0, "count": 1}],
                "fileMib": 1,
            },
            "layouts": [
                {"name": "new", "root": "new", "gpuCounts": [8]},
                {"name": "old", "root": "old"},
            ],
        }
    ),
    "cpu": Recipe.model_validate({**ANY, "name": "cpu", "gpus": {"counts": [0]}, "parameters": {}}),
}


def planned(name: str = "any", site: Site = SITE, source: Source | None = None, **spec: Any) -> RunPlan | Refusal:
    recipe = {"name": name, **spec.pop("recipe", {})}
    return plan(Spec.model_validate({"recipe": recipe, **spec}), RECIPES, site, source)


REF = {"name": "mine", "key": "it"}
COMMIT = "a" * 40


CODE = Source("https://example.com/me/x", "mine", "1" * 40, patch_hash="2" * 64)


def test_the_code_is_the_one_that_was_resolved() -> None:
    made = fits(planned("hosted", source=CODE))
    assert made.source == CODE
    summary = made.summary()
    assert summary.commit == CODE.commit
    assert summary.source is not None and Source.of(summary.source) == CODE


def test_a_recipe_that_pins_its_commit_needs_no_look_up() -> None:
    made = fits(planned("hosted"))
    assert made.source == Source("https://example.com/x", COMMIT, COMMIT)
    assert wanted(Spec.model_validate({"recipe": {"name": "hosted"}}), RECIPES["hosted"]) is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"revision": "mine"}, Wanted("https://example.com/x", "mine", roots=("new", "old"))),
        # Another repository does not have the recipe's own commit.
        ({"repository": "https://a/b"}, Wanted("https://a/b", "HEAD", roots=("new", "old"))),
        ({"repository": "https://a/b", "revision": "v1"}, Wanted("https://a/b", "v1", roots=("new", "old"))),
        ({"path": "~/x"}, Wanted(None, "", "~/x", ("new", "old"), ("data",))),
        (
            {"patch": {"configMapRef": REF}, "secretRef": REF},
            Wanted("https://example.com/x", COMMIT, roots=("new", "old"), patch=KeyRef(**REF), secret=KeyRef(**REF)),
        ),
    ],
)
def test_what_must_be_looked_up(source: dict[str, Any], expected: Wanted) -> None:
    spec = Spec.model_validate({"recipe": {"name": "hosted", "source": source}})
    assert wanted(spec, RECIPES["hosted"]) == expected


def test_without_a_look_up_the_plan_shows_what_was_asked_for() -> None:
    made = fits(planned("hosted", recipe={"source": {"repository": "https://a/b", "revision": "mine"}}))
    assert made.source == Source("https://a/b", "mine")
    assert fits(planned("hosted", recipe={"source": {"path": "~/x"}})).source == Source(path="~/x")


@pytest.mark.parametrize(
    ("layout", "count", "fits_on"),
    [("new", None, 8), ("old", None, 8), ("old", 1, 1), (None, 1, 1), ("new", 8, 8)],
)
def test_a_layout_says_how_many_gpus_its_code_takes(layout: str | None, count: int | None, fits_on: int) -> None:
    spec = {"gpus": {"count": count}} if count else {}
    assert fits(planned("hosted", source=replace(CODE, layout=layout), **spec)).gpu_count == fits_on


def test_a_count_that_the_layout_forbids_is_refused_with_the_layout() -> None:
    refused = planned("hosted", source=replace(CODE, layout="new"), gpus={"count": 1})
    assert refused == Refusal(
        Reason.UNSUPPORTED_HARDWARE,
        "spec.gpus.count: recipe hosted with code of the layout 'new' (new at its root) runs on 8 GPUs, not on 1",
    )


def test_a_source_for_code_of_our_own_is_refused() -> None:
    refused = planned("any", recipe={"source": {"revision": "mine"}})
    assert isinstance(refused, Refusal)
    assert refused.message.startswith("spec.recipe.source: recipe any has no repository")


def test_values_of_secrets_are_no_part_of_the_plan() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": REF}}]
    made = fits(planned(env=env))
    assert (made.env, made.secret_env) == ((("A", "1"),), ("HF_TOKEN",))


def fits(made: RunPlan | Refusal) -> RunPlan:
    assert isinstance(made, RunPlan), made
    return made


def test_what_the_recipe_knows_is_resolved() -> None:
    made = fits(planned())
    assert (made.recipe, made.target, made.metric, made.log_format) == (
        "any",
        Decimal("3.28"),
        "val_loss",
        "modded-nanogpt",
    )
    assert (made.gpu_type, made.gpu_count, made.cpus, made.memory_mib) == (None, 2, 1, 512)
    assert made.time_limit_minutes == 3  # 121 seconds, rounded up
    assert made.parameters == (("seed", "7"), ("tag", "x"))
    assert made.environment == (("A", "1"), ("B", "2"))


@pytest.mark.parametrize(("seconds", "minutes"), [(60, 1), (61, 2), (119, 2), (120, 2), (3600, 60), (2592000, 43200)])
def test_time_limit_is_rounded_up_to_minutes(seconds: int, minutes: int) -> None:
    made = fits(planned(timeLimitSeconds=seconds))
    assert made.time_limit_minutes == minutes
    assert made.summary().time_limit_seconds == 60 * minutes


@pytest.mark.parametrize(
    ("spec", "minutes"),
    [
        pytest.param({}, 3, id="start-up and a run"),  # 60 + 61 seconds
        pytest.param({"runsPerAllocation": 2}, 4, id="two runs of a job"),  # 60 + 122
        pytest.param({"runsPerAllocation": 64}, 67, id="many"),  # 60 + 3904
        pytest.param({"runs": 64}, 3, id="runs in jobs of their own"),
        pytest.param({"runs": 2, "runsPerAllocation": 4}, 6, id="not fewer for fewer runs, which may be raised"),
        pytest.param({"runsPerAllocation": 64, "timeLimitSeconds": 60}, 1, id="as it was asked for"),
    ],
)
def test_the_time_limit_is_that_of_a_whole_job(spec: dict[str, Any], minutes: int) -> None:
    assert fits(planned(**spec)).time_limit_minutes == minutes


@pytest.mark.parametrize(
    ("text", "run", "arm", "expected"),
    [
        ("", 0, "A", ""),
        ("plain $HOME $(id) `id`", 3, "A", "plain $HOME $(id) `id`"),
        ("$(RUN)", 0, "A", "0"),
        ("$(RUN)", 255, "A", "255"),
        ("$(ARM)$(RUN)", 7, "B", "B7"),
        ("a-$(RUN)-b-$(RUN)", 7, "A", "a-7-b-7"),
        ("$$(RUN)", 7, "A", "$(RUN)"),
        ("$$(ARM) $(ARM)", 7, "A", "$(ARM) A"),
        ("$$$(RUN)", 7, "A", "$$(RUN)"),
        ("$$(id)", 7, "A", "$$(id)"),
        ("$(run) $( RUN) $(RUN $RUN ${RUN}", 7, "A", "$(run) $( RUN) $(RUN $RUN ${RUN}"),
        ("$($(RUN))", 7, "A", "$(7)"),
        ("line\n$(RUN)\n", 7, "A", "line\n7\n"),
    ],
)
def test_substitution(text: str, run: int, arm: str, expected: str) -> None:
    assert substitute(text, run, arm) == expected


def test_each_run_has_its_own_values() -> None:
    made = fits(
        planned(
            runs=4,
            recipe={"parameters": {"seed": "$(RUN)", "tag": "$(ARM)-$(RUN)"}},
            env=[{"name": "NAME", "value": "run $(RUN) of '$(ARM)'; $$(RUN)"}, {"name": "EMPTY"}],
        )
    )
    assert made.parameters == (("seed", "$(RUN)"), ("tag", "$(ARM)-$(RUN)"))
    assert made.summary().parameters == {"seed": "$(RUN)", "tag": "$(ARM)-$(RUN)"}
    assert made.runs == ()
    first, second = made.for_runs([(1, "A"), (3, "B")]).runs
    assert (first.index, first.arm, second.index, second.arm) == (1, "A", 3, "B")
    assert first.parameters == (("seed", "1"), ("tag", "A-1"))
    assert second.parameters == (("seed", "3"), ("tag", "B-3"))
    assert first.environment == (("NAME", "run 1 of 'A'; $(RUN)"), ("EMPTY", ""))
    assert second.environment == (("NAME", "run 3 of 'B'; $(RUN)"), ("EMPTY", ""))


def test_an_integer_for_each_run_fits_up_to_its_bounds() -> None:
    made = fits(planned(runs=100, recipe={"parameters": {"seed": "$(RUN)"}}))
    assert made.for_runs([(99, "A")]).runs[0].parameters[0] == ("seed", "99")


def test_what_does_not_differ_is_the_same_in_each_run() -> None:
    runs = fits(planned(runs=2, recipe={"parameters": {"seed": "042"}})).for_runs([(0, "A"), (1, "A")]).runs
    assert [each.parameters for each in runs] == [(("seed", "42"), ("tag", "x"))] * 2


@pytest.mark.parametrize("target", [3.28, 3.3821, 0.1, 10])
def test_a_target_stays_the_decimal_that_was_written(target: float) -> None:
    made = fits(planned(target=target))
    assert made.target == Decimal(str(target))
    assert made.summary().target == target


@pytest.mark.parametrize(
    ("name", "gpus", "type_", "count"),
    [
        ("any", None, None, 2),
        ("any", {}, None, 2),
        ("any", {"count": 0}, None, 0),
        ("any", {"count": 4, "type": "MI300X"}, "MI300X", 4),
        ("hopper", None, "H100", 8),
        ("hopper", {"type": "h200"}, "H200", 8),
        ("hopper", {"count": 1}, "H100", 1),
        ("cpu", None, None, 0),
    ],
)
def test_gpus(name: str, gpus: dict[str, Any] | None, type_: str | None, count: int) -> None:
    made = fits(planned(name, gpus=gpus))
    assert (made.gpu_type, made.gpu_count) == (type_, count)


@pytest.mark.parametrize(
    ("name", "gpus", "slurm", "site", "partition"),
    [
        pytest.param("hopper", None, {"partition": "mine"}, SITE, "mine", id="the one that was asked for"),
        pytest.param("hopper", None, {}, Site("", "all"), "", id="chosen by what the cluster has"),
        pytest.param("hopper", None, {}, Site("gpus", "all"), "gpus", id="one for all GPUs"),
        pytest.param("any", None, {}, Site("gpus", "all"), "gpus", id="one for all, type unknown"),
        pytest.param("any", {"count": 0}, {}, Site("gpus", "all"), "all", id="no GPUs"),
        pytest.param("cpu", None, {}, SITE, "", id="Slurm's own default"),
    ],
)
def test_partition(name: str, gpus: dict[str, Any] | None, slurm: dict[str, Any], site: Site, partition: str) -> None:
    made = fits(planned(name, site, gpus=gpus, slurm=slurm))
    assert made.partition == partition
    assert made.summary().partition == (partition or None)


@pytest.mark.parametrize(
    ("name", "spec", "reason", "message"),
    [
        (
            "nanogpt",
            {},
            "UnknownRecipe",
            "spec.recipe.name: no recipe is called 'nanogpt'; there are: any, cpu, even, hopper, hosted",
        ),
        (
            "any",
            {"recipe": {"parameters": {"sed": 1}}},
            "InvalidParameter",
            "spec.recipe.parameters.sed: recipe any has no such parameter; it has: seed, tag",
        ),
        (
            "cpu",
            {"recipe": {"parameters": {"seed": 1}}},
            "InvalidParameter",
            "spec.recipe.parameters.seed: recipe cpu has no such parameter; it has: none",
        ),
        (
            "any",
            {"recipe": {"parameters": {"seed": 100}}},
            "InvalidParameter",
            "spec.recipe.parameters.seed: must be from 0 to 99, not 100",
        ),
        (
            "any",
            {"recipe": {"parameters": {"seed": "$(id)"}}},
            "InvalidParameter",
            "spec.recipe.parameters.seed: must be a whole number, not '$(id)'",
        ),
        *(
            (
                "any",
                {"recipe": {"parameters": {"seed": text}}},
                "InvalidParameter",
                f"spec.recipe.parameters.seed: must be a whole number, or $(RUN) alone, not {text!r}",
            )
            for text in ("1$(RUN)", "$(RUN)0", " $(RUN)", "$(RUN)\n", "$$(RUN)", "$(ARM)", "$(RUN)$(RUN)")
        ),
        (
            "any",
            {"runs": 101, "recipe": {"parameters": {"seed": "$(RUN)"}}},
            "InvalidParameter",
            "spec.recipe.parameters.seed: must be from 0 to 99, not '100' as in run 100",
        ),
        (
            "even",
            {"runs": 3, "recipe": {"parameters": {"tag": "$(RUN)"}}},
            "InvalidParameter",
            "spec.recipe.parameters.tag: must match [02468], not '1' as in run 1",
        ),
        (
            "any",
            {"recipe": {"parameters": {"tag": "$$(RUN)"}}},
            "InvalidParameter",
            "spec.recipe.parameters.tag: must match [A-Za-z0-9_.-]*, not '$(RUN)' as in run 0",
        ),
        (
            "any",
            {"recipe": {"parameters": {"tag": "a b$(RUN)"}}},
            "InvalidParameter",
            "spec.recipe.parameters.tag: must match [A-Za-z0-9_.-]*, not 'a b0' as in run 0",
        ),
        *(
            (
                "any",
                {"env": [{"name": "MINE"}, {"name": name}]},
                "InvalidSpec",
                f"spec.env[1].name: {name} is reserved; names must not begin with SPEEDRUN_, PARAM_, SLURM_",
            )
            for name in ("SPEEDRUN_RUN", "SPEEDRUN_", "PARAM_SEED", "SLURM_JOB_ID")
        ),
        *(
            (
                "any",
                {"env": [{"name": name, "value": "1"}]},
                "InvalidSpec",
                f"spec.env[0].name: {name} is bash's own and cannot be set",
            )
            for name in ("UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO")
        ),
        *(
            (
                "any",
                {"env": [{"name": name, "value": "/nowhere"}]},
                "InvalidSpec",
                f"spec.env[0].name: {name} is a variable of the batch script itself; choose another name",
            )
            for name in ("ledger", "root", "commit", "repository", "image", "base_image", "runs", "child")
        ),
        (
            "any",
            {"env": [{"name": "A", "value": "1"}, {"name": "B"}, {"name": "A", "value": "2"}]},
            "InvalidSpec",
            "spec.env[2].name: A stands there twice",
        ),
        (
            "any",
            {"recipe": {"parameters": {"tag": "a b\n"}}},
            "InvalidParameter",
            r"spec.recipe.parameters.tag: must match [A-Za-z0-9_.-]*, not 'a b\n'",
        ),
        (
            "any",
            {"gpus": {"count": 8}},
            "UnsupportedHardware",
            "spec.gpus.count: recipe any runs on 0, 2, 4 GPUs, not on 8",
        ),
        (
            "hopper",
            {"gpus": {"count": 0}},
            "UnsupportedHardware",
            "spec.gpus.count: recipe hopper runs on 1, 8 GPUs, not on 0",
        ),
        (
            "hopper",
            {"gpus": {"type": "A100"}},
            "UnsupportedHardware",
            "spec.gpus.type: recipe hopper runs on H100, H200, not on A100",
        ),
    ],
)
def test_a_refusal_names_the_field_and_what_would_do(
    name: str, spec: dict[str, Any], reason: str, message: str
) -> None:
    assert planned(name, **spec) == Refusal(reason, message)  # type: ignore[arg-type]


def test_parameters_are_taken_as_text_in_the_order_of_the_recipe() -> None:
    made = fits(planned(recipe={"parameters": {"tag": "a-b", "seed": "042"}}))
    assert made.parameters == (("seed", "42"), ("tag", "a-b"))
    assert made.summary().parameters == {"seed": "42", "tag": "a-b"}


@pytest.mark.parametrize("name", shipped())
def test_every_recipe_that_ships_can_be_planned_with_nothing_but_its_name(name: str) -> None:
    recipe = shipped()[name]
    made = plan(Spec.model_validate({"recipe": {"name": name}}), shipped(), SITE)
    assert isinstance(made, RunPlan)
    assert (made.target, made.gpu_count) == (recipe.target, recipe.gpus.counts[0])
    assert (made.source.revision if made.source else None) == recipe.revision
    assert 60 * made.time_limit_minutes >= recipe.start_up_seconds + recipe.run_seconds


@pytest.mark.parametrize("names", [["a", "b"], ["a-[1-2]"], ["a-[1,3]"], ["a-[1]", "a-[1]"]])
def test_several_nodes_that_must_be_part_of_a_job_on_one_are_refused(names: list[str]) -> None:
    made = planned(slurm={"nodeList": names})
    assert isinstance(made, Refusal)
    assert made.message.startswith("spec.slurm.nodeList: a job runs on one node")


@pytest.mark.parametrize("names", [[], ["a"], ["a-b-1"], ["a-[12]"]])
def test_one_node_by_name(names: list[str]) -> None:
    assert fits(planned(slurm={"nodeList": names})).slurm.node_list == names
