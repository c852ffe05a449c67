"""Credentials of registries: Docker's form in, enroot's form out, and what cannot be used said without quoting it."""

from __future__ import annotations

import base64
import json

import pytest

from speedrun_operator.sealed.registry import credentials, registry_of
from speedrun_operator.sealed.sealed import MOST_VALUE, Unusable, git_secret, text_of

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("docker://nvidia/cuda:13.1.1-cudnn-devel-ubuntu24.04", "registry-1.docker.io"),
        ("docker://docker.io#nvidia/cuda:13.1.1", "registry-1.docker.io"),
        ("docker://nvcr.io#nvidia/pytorch:24.10-py3", "nvcr.io"),
        ("docker://$oauthtoken@nvcr.io#nvidia/pytorch:24.10-py3", "nvcr.io"),
        ("docker://localhost:5000#acme/trainer:1", "localhost:5000"),
    ],
)
def test_which_registry_an_image_is_in(image: str, registry: str) -> None:
    assert registry_of(image) == registry


def docker(**auths: object) -> bytes:
    return json.dumps({"auths": auths}).encode()


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


HUB = "docker://nvidia/cuda:13.1.1"
NVIDIA = "docker://nvcr.io#nvidia/pytorch:24.10-py3"


@pytest.mark.parametrize(
    ("value", "image", "user", "netrc"),
    [
        (
            docker(**{"https://index.docker.io/v1/": {"username": "me", "password": "p"}}),
            HUB,
            "me",
            "machine registry-1.docker.io login me password p\nmachine auth.docker.io login me password p\n",
        ),
        (
            docker(**{"other": auth("x:y"), "docker.io": auth("me:p:q")}),
            HUB,
            "me",
            "machine registry-1.docker.io login me password p:q\nmachine auth.docker.io login me password p:q\n",
        ),
        (
            docker(**{"nvcr.io": {"username": "$oauthtoken", "password": "k"}}),
            NVIDIA,
            "$oauthtoken",
            "machine nvcr.io login $oauthtoken password k\nmachine authn.nvidia.com login $oauthtoken password k\n",
        ),
        (
            docker(**{"https://localhost:5000": auth("me:p")}),
            "docker://localhost:5000#acme/trainer:1",
            "me",
            "machine localhost login me password p\n",
        ),
    ],
)
def test_credentials_as_enroot_reads_them(value: bytes, image: str, user: str, netrc: str) -> None:
    assert credentials(value, image) == (user, netrc)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"machine a login b password c", "is no Docker configuration"),
        (b"[]", "is no Docker configuration"),
        (b"{}", "is no Docker configuration"),
        (docker(), "has no credentials for registry-1.docker.io, where the base image is; it has: "),
        (docker(**{"nvcr.io": auth("a:b")}), "it has: nvcr.io"),
        (docker(**{"docker.io": {"auth": "?"}}), "cannot be read"),
        (docker(**{"docker.io": auth("me:")}), "a password for registry-1.docker.io that is empty"),
        (docker(**{"docker.io": auth("me:s3cret x")}), "has white space"),
        (docker(**{"docker.io": auth("me:$(s3cret)")}), "begins with $"),
        (docker(**{"docker.io": auth("me;s3cret\nmachine x:p")}), "a user name for registry-1.docker.io that enroot"),
        (docker(**{"docker.io": auth("me@x:s3cret")}), "a user name"),
        (b"\xff", "is no Docker configuration"),
    ],
)
def test_what_enroot_could_not_use_is_said_and_never_quoted(value: bytes, says: str) -> None:
    with pytest.raises(Unusable) as fault:
        credentials(value, HUB)
    assert says in str(fault.value)
    assert "s3cret" not in str(fault.value)


@pytest.mark.parametrize("value", [b"", b"hf_x", "é\n".encode(), b"a" * MOST_VALUE])
def test_values_of_variables_are_taken_as_they_are(value: bytes) -> None:
    assert text_of(value).encode() == value


@pytest.mark.parametrize(
    ("value", "says"),
    [(b"s3cret\0", "a NUL byte"), (b"\xffs3cret", "UTF-8"), (b"s3cret" * 20000, "holds 120000 bytes")],
)
def test_what_no_variable_can_hold(value: bytes, says: str) -> None:
    with pytest.raises(Unusable) as fault:
        text_of(value)
    assert says in str(fault.value) and "s3cret" not in str(fault.value)


@pytest.mark.parametrize(
    ("value", "repository", "taken"),
    [
        (b"ghp_x\n", "https://github.com/a/b", "ghp_x"),
        (b"me:glpat-x", "https://gitlab.com/a/b", "me:glpat-x"),
        (KEY.encode(), "git@github.com:a/b", KEY.strip()),
    ],
)
def test_what_git_is_given(value: bytes, repository: str, taken: str) -> None:
    assert git_secret(value, repository) == taken


@pytest.mark.parametrize(
    ("value", "repository", "says"),
    [
        (b" \n", "https://a/b", "is empty"),
        (b"s3cret\nhost=evil", "https://a/b", "one word"),
        (KEY.encode(), "https://a/b", "put a token there"),
        (b"s3cret", "git@a:b", "is no private SSH key"),
        (KEY.replace("OPENSSH", "ENCRYPTED").encode(), "git@a:b", "with a passphrase"),
    ],
)
def test_what_does_not_fit_the_repository(value: bytes, repository: str, says: str) -> None:
    with pytest.raises(Unusable) as fault:
        git_secret(value, repository)
    assert says in str(fault.value) and "s3cret" not in str(fault.value)
