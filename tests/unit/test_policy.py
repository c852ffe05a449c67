"""What a site lets people run: each rule, and the setting that a refusal names."""

from __future__ import annotations

from typing import Any

import pytest

from speedrun_operator.api.names import Identity
from speedrun_operator.api.phases import Phase
from speedrun_operator.api.schema import custom_resource_definition
from speedrun_operator.api.spec import Spec
from speedrun_operator.backends.memory import Cluster
from speedrun_operator.entries import Setup
from speedrun_operator.lifecycle.situation import Policy
from speedrun_operator.planning import Site
from speedrun_operator.policy import Asked, Rules, asked_code, forbidden, is_listed
from speedrun_operator.recipes.recipe import shipped
from unit.builders import REPLAY, resource
from unit.engine_world import running_engine

MINE = "https://github.com/me/modded-nanogpt.git"
SOURCE = (Asked("spec.recipe.source.repository", MINE),)
PATCH = (Asked("spec.recipe.source.patch"),)
HERE = Identity("lab", "mine", "0f0e0d0c-1111-2222-3333-444455556666")


def said(rules: Rules, recipe: str = "replay", asked: tuple[Asked, ...] = (), namespace: str = "lab") -> str | None:
    identity = Identity(namespace, HERE.name, HERE.uid)
    later = forbidden(rules, identity, Spec.model_validate({"recipe": {"name": recipe}}), asked)
    assert later is None or later.reason == "NotAllowed"
    return later.message if later else None


@pytest.mark.parametrize(
    ("rules", "asks", "field", "setting"),
    [
        pytest.param(Rules(), {"recipe": "custom", "asked": SOURCE}, None, None, id="without rules all is allowed"),
        pytest.param(Rules(recipes=("replay", "smoke")), {}, None, None, id="a recipe on the list"),
        pytest.param(
            Rules(recipes=("smoke",)), {}, "spec.recipe.name", "replay in policy.allowed_recipes", id="one that is not"
        ),
        pytest.param(
            Rules(custom=False),
            {"recipe": "custom"},
            "spec.recipe.name",
            "policy.custom_recipes=true",
            id="a recipe of one's own",
        ),
        pytest.param(Rules(foreign=False), {}, None, None, id="the recipe's own code"),
        pytest.param(
            Rules(foreign=False),
            {"asked": SOURCE},
            "spec.recipe.source.repository",
            "policy.foreign_sources=true",
            id="another repository",
        ),
        pytest.param(
            Rules(foreign=False),
            {"asked": PATCH},
            "spec.recipe.source.patch",
            "policy.foreign_sources=true",
            id="a patch",
        ),
        pytest.param(Rules(repositories=("https://github.com/me/*",)), {"asked": SOURCE}, None, None, id="listed"),
        pytest.param(
            Rules(repositories=("https://github.com/you/*",)),
            {"asked": SOURCE},
            "spec.recipe.source.repository",
            f"{MINE} in policy.allowed_repositories",
            id="not listed",
        ),
        pytest.param(Rules(repositories=("https://x/y",)), {"asked": PATCH}, None, None, id="a patch"),
        pytest.param(
            Rules(home="speedrun-system"),
            {"namespace": "speedrun-system"},
            "metadata.namespace",
            "policy.own_namespace=true",
            id="the operator's own namespace",
        ),
        pytest.param(
            Rules(home="speedrun-system", home_allowed=True), {"namespace": "speedrun-system"}, None, None, id="told so"
        ),
        pytest.param(Rules(home="speedrun-system"), {}, None, None, id="another namespace"),
    ],
)
def test_a_rule(rules: Rules, asks: dict[str, Any], field: str | None, setting: str | None) -> None:
    message = said(rules, **asks)
    assert (message is None) == (field is None)
    if message is not None:
        assert message.startswith(f"{field}: ")
        assert message.endswith(f"the operator's setting {setting} allows it")


def test_no_speedrun_is_run_where_the_secrets_of_logins_are() -> None:
    rules = Rules(home="speedrun-system", home_allowed=True, secrets="speedrun-system")
    message = said(rules, namespace="speedrun-system")
    assert message is not None and "holds the Secrets of all logins" in message
    assert said(rules) is None


@pytest.mark.parametrize(
    ("repository", "listed", "found"),
    [
        ("https://github.com/me/x.git", ("https://github.com/me/x",), True),
        ("https://github.com/me/x/", ("https://github.com/me/x.git",), True),
        ("https://GitHub.com/me/x", ("https://github.com/me/*",), True),
        ("https://github.com/me/deep/x", ("https://github.com/me/*",), True),
        ("git@github.com:me/x", ("git@github.com:me/x",), True),
        ("git@github.com:me/x.git", ("git@github.com:me/*",), True),
        ("/shared/code/x", ("/shared/code/*",), True),
        ("https://github.com/ME/x", ("https://github.com/me/*",), False),
        ("https://github.com/me", ("https://github.com/me/*",), False),
        ("https://github.com/me-too/x", ("https://github.com/me/*",), False),
        ("https://github.com.evil.example/me/x", ("https://github.com/me/*",), False),
        ("https://github.com/me/../you/x", ("https://github.com/me/*",), False),
        ("https://github.com/me/%2e%2e/you/x", ("https://github.com/me/*",), False),
        ("https://github.com/me/..\\you", ("https://github.com/me/*",), False),
        ("https://github.com@evil.example/me/x", ("https://github.com@evil.example/*",), False),
        ("http://github.com/me/x", ("https://github.com/me/*",), False),
        ("git@github.com:me/x", ("https://github.com/me/*",), False),
        ("/shared/code/../secret", ("/shared/code/*",), False),
        ("https://github.com/me/x", (), False),
    ],
)
def test_repositories_on_a_list(repository: str, listed: tuple[str, ...], found: bool) -> None:
    assert is_listed(repository, listed) is found


async def test_what_is_forbidden_waits_and_nothing_is_submitted() -> None:
    cluster = Cluster()
    async with running_engine(cluster, REPLAY, rules=Rules(recipes=("smoke",))) as world:
        status = await world.until("waiting", lambda status: status.reason == "NotAllowed")
        assert (status.phase, status.allocations, cluster.submissions) == (Phase.PENDING, (), 0)
        ((kind, reason, words),) = world.told()
        assert (kind, reason) == ("Warning", "NotAllowed")
        assert words.endswith("replay in policy.allowed_recipes allows it")


def test_every_field_of_a_recipes_reference_is_known_to_the_rules() -> None:
    """A field that names code must become an `Asked`; then it may be added here."""
    spec = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert set(spec["properties"]["recipe"]["properties"]) == {"name", "parameters", "source"}
    source = spec["properties"]["recipe"]["properties"]["source"]["properties"]
    assert set(source) == {"repository", "revision", "path", "patch", "secretRef"}
    assert "image" in spec["properties"]["pods"]["properties"]


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        (None, ()),
        ({}, ()),
        ({"secretRef": {"name": "a", "key": "b"}}, ()),
        ({"repository": "https://a/b"}, (Asked("spec.recipe.source.repository", "https://a/b"),)),
        ({"revision": "mine"}, (Asked("spec.recipe.source.revision"),)),
        ({"path": "/a"}, (Asked("spec.recipe.source.path"),)),
        (
            {"repository": "https://a/b", "patch": {"configMapRef": {"name": "a", "key": "b"}}},
            (Asked("spec.recipe.source.repository", "https://a/b"), Asked("spec.recipe.source.patch")),
        ),
    ],
)
def test_other_code_than_the_recipes_own_is_foreign(source: dict[str, Any] | None, asked: tuple[Asked, ...]) -> None:
    spec = Spec.model_validate({"recipe": {"name": "replay", "source": source}})
    assert asked_code(spec) == asked
    in_a_pod = {"recipe": {"name": "replay", "source": source}, "backend": "Pods", "pods": {"image": "a"}}
    assert asked_code(Spec.model_validate(in_a_pod)) == (Asked("spec.pods.image"), *asked)


@pytest.mark.parametrize("foreign", [True, False])
def test_an_image_of_ones_own_is_foreign_code(foreign: bool) -> None:
    spec = {"recipe": {"name": "replay"}, "backend": "Pods", "pods": {"image": "registry.test/mine:1"}}
    setup = Setup(
        cluster="c1c1c1c1",
        recipes=shipped(),
        site=Site(),
        policy=Policy(),
        poll_seconds=10,
        release_seconds=60,
        rules=Rules(foreign=foreign),
    )
    waits = setup.waits(resource(spec))
    assert (waits is None) == foreign
    assert waits is None or (waits.reason, waits.message.startswith("spec.pods.image: ")) == ("NotAllowed", True)
