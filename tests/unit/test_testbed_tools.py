"""Which binaries the bed uses: ready ones of the right version, else those that go.mod pins."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.part import Place
from testbed.tools import (
    ETCD,
    GOMOD,
    GOMOD_HELM,
    HELM,
    KUBERNETES,
    TOOLS,
    Toolbox,
    new_enough,
    suits,
    version_in,
    wanted,
)

GO_MOD = (GOMOD / "go.mod").read_text()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("etcd Version: 3.6.4\nGit SHA: Not provided\nGo Version: go1.26.8\n", (3, 6, 4)),
        ("Kubernetes v1.34.4\n", (1, 34, 4)),
        ("Client Version: v1.34.4\nKustomize Version: v5.7.1\n", (1, 34, 4)),
        ("Kubernetes v1.35.0-beta.1+abc\n", (1, 35, 0)),
        ("", None),
        ("command not found", None),
    ],
)
def test_version_in(text: str, version: tuple[int, ...] | None) -> None:
    assert version_in(text) == version


@given(st.text())
def test_version_in_survives_any_output(text: str) -> None:
    found = version_in(text)
    assert found is None or len(found) == 3


@pytest.mark.parametrize(
    ("have", "want", "used"),
    [
        ((1, 34, 0), (1, 34, 4), True),
        ((1, 34, 9), (1, 34, 4), True),
        ((1, 33, 4), (1, 34, 4), False),
        ((1, 35, 0), (1, 34, 4), False),
        ((3, 4, 23), (3, 6, 4), False),
        (None, (3, 6, 4), False),
    ],
)
def test_suits(have: tuple[int, ...] | None, want: tuple[int, ...], used: bool) -> None:
    assert suits(have, want) is used


@pytest.mark.parametrize(
    ("go", "enough"),
    [
        ("go version go1.26.8 linux/amd64", True),
        ("go version go1.24 linux/amd64", True),
        ("go version go1.19.8 linux/amd64", False),
        ("go version go2.0 linux/amd64", True),
        ("go version devel", False),
        ("", False),
    ],
)
def test_new_enough(go: str, enough: bool) -> None:
    assert new_enough(go, GO_MOD) is enough


def test_go_mod_pins_one_kubernetes_and_its_staging_modules() -> None:
    kubernetes = wanted(KUBERNETES, GO_MOD)
    assert kubernetes[:2] == (1, 34)
    assert wanted(ETCD, GO_MOD)[:2] == (3, 6)
    replaced = re.findall(r"=> k8s\.io/\S+ v(\S+)", GO_MOD)
    assert len(replaced) > 25
    assert set(replaced) == {f"0.{kubernetes[1]}.{kubernetes[2]}"}


def test_go_mod_names_every_tool() -> None:
    for tool in TOOLS.values():
        go_mod = (tool.directory / "go.mod").read_text()
        named = re.search(rf"^(\t|tool ){re.escape(tool.package)}$", go_mod, re.MULTILINE)
        assert named, f"`go mod edit -tool {tool.package}`"


def test_helm_is_built_from_the_kubernetes_that_the_bed_runs() -> None:
    """Then they share what Go has compiled, and what helm takes for the newest Kubernetes is the bed's."""
    go_mod = (GOMOD_HELM / "go.mod").read_text()
    kubernetes = wanted(KUBERNETES, GO_MOD)
    replaced = re.findall(r"=> k8s\.io/\S+ v(\S+)", go_mod)
    assert len(replaced) > 5
    assert set(replaced) == {f"0.{kubernetes[1]}.{kubernetes[2]}"}
    assert wanted(HELM, go_mod)[0] == 3


def test_an_unpinned_module_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"go\.mod does not require example\.com/absent"):
        wanted("example.com/absent", GO_MOD)


@pytest.mark.parametrize(("version", "used"), [("v1.34.0", True), ("v1.33.4", False)])
def test_kubebuilder_assets_are_used_if_their_version_suits(
    version: str, used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    binary = assets / "kube-apiserver"
    binary.write_text(f"#!/bin/sh\necho Kubernetes {version}\n")
    binary.chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    monkeypatch.setenv("PATH", "/nowhere")
    said: list[str] = []
    toolbox = Toolbox(Place(cache=tmp_path / "cache", say=said.append))
    assert toolbox.ready(TOOLS["kube-apiserver"]) == (binary if used else None)
    assert toolbox.ready(TOOLS["etcd"]) is None
    assert any(f"{binary}: not version 1.34" in line for line in said) is not used
