"""The client of the Platform API against a strict stand-in: parameters, refusals with a remedy, retries, secrets."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from speedrun_operator.api.cluster import Lifecycle
from speedrun_operator.platform import client
from speedrun_operator.platform.client import PlatformApi
from speedrun_operator.platform.errors import Denied, PlatformError, Unanswered
from testbed.platform import CLUSTER, ORGANIZATION, Person, Platform, Seen
from unit.outside.conftest import KUBECONFIG, Connect

READS = {
    "clusters": lambda api: api.clusters(),
    "cluster": lambda api: api.cluster(CLUSTER),
    "options": lambda api: api.options(CLUSTER),
    "ssh-access": lambda api: api.ssh_access(CLUSTER),
    "kubeconfig": lambda api: api.kubeconfig(CLUSTER),
    "me": lambda api: api.me(),
    "ssh-keys": lambda api: api.ssh_keys(),
}


async def refusal(api: PlatformApi, read: str) -> PlatformError:
    with pytest.raises(PlatformError) as raised:
        await READS[read](api)
    return raised.value


async def test_every_route_is_asked_with_its_own_parameter_and_nothing_is_written(
    platform: Platform, connect: Connect
) -> None:
    api = connect()
    for read in READS.values():
        await read(api)
    assert dict(api.answers) == {200: len(READS)}
    business, platform_ = {"businessOrgId": ORGANIZATION}, {"organizationId": ORGANIZATION}
    assert [(each.method, each.path, each.query, each.status) for each in platform.seen] == [
        ("GET", "/platform/clusters", business, 200),
        ("GET", f"/platform/clusters/{CLUSTER}", business, 200),
        ("GET", f"/platform/clusters/{CLUSTER}/options", business, 200),
        ("GET", f"/platform/clusters/{CLUSTER}/ssh-access", platform_, 200),
        ("GET", f"/platform/clusters/{CLUSTER}/kubeconfig", platform_, 200),
        ("GET", "/business/me", {}, 200),
        ("GET", "/business/me/ssh-keys", {}, 200),
    ]


async def test_what_the_routes_answer_is_read(platform: Platform, connect: Connect) -> None:
    platform.state.storage = {"ceph": "configured", "weka": "none"}
    api = connect()
    (cluster,) = await api.clusters()
    assert (cluster.id, cluster.spec.name, cluster.lifecycle) == (CLUSTER, "speedrun-h100", Lifecycle.ACTIVE)
    options = await api.options(CLUSTER)
    assert (options.scheduler.name, options.storage.kinds) == ("sunk", ("ceph",))
    access = await api.ssh_access(CLUSTER)
    assert (access.is_ready().ready, access.observation_current, access.ssh_key_set_generation) == (True, True, 3)
    assert (await api.me()).user.login_shell == "/bin/bash"


@pytest.mark.parametrize("form", ["yaml", "json", "wrapped", "base64"])
async def test_a_kubeconfig_in_any_wrapping_is_the_same(form: str, platform: Platform, connect: Connect) -> None:
    platform.kubeconfig_form = form
    assert "secret-of-the-kubeconfig" in await connect().kubeconfig(CLUSTER)


@pytest.mark.parametrize(
    ("person", "read", "says"),
    [
        (
            Person(service_account=True),
            "clusters",
            "403 .*a service account's token is refused here; sign in as a person",
        ),
        (Person(service_account=True), "me", "401 .*a service account's token is refused here; sign in as a person"),
        (Person(permissions=set()), "clusters", r"403 \(missing permission clusters.read\): .*clusters.read"),
        (Person(permissions={"clusters.read"}), "ssh-access", "needs membership in the organization .*clusters.ssh"),
        (Person(granted=True), "ssh-access", "a grant that shares one cluster gives its kubeconfig and no SSH"),
        (Person(granted=True), "options", "403 .*the options need the permission clusters.read"),
    ],
    ids=["account at Platform", "account at Business", "no clusters.read", "no clusters.ssh", "grant: SSH", "grant"],
)
async def test_who_is_refused_is_told_why_and_what_to_do(
    person: Person, read: str, says: str, platform: Platform, connect: Connect, token_file: Path
) -> None:
    token_file.write_text(platform.sign_in(person))
    error = await refusal(connect(), read)
    assert isinstance(error, Denied)
    assert re.search(says, str(error)), error
    assert len(platform.seen) <= 2, "a refusal is not tried again and again"


async def test_a_grant_gives_the_cluster_and_its_kubeconfig(
    platform: Platform, connect: Connect, token_file: Path
) -> None:
    token_file.write_text(platform.sign_in(Person(granted=True)))
    api = connect()
    assert (await api.cluster(CLUSTER)).id == CLUSTER
    assert await api.kubeconfig(CLUSTER) == KUBECONFIG


async def test_another_cluster_and_another_organization(connect: Connect) -> None:
    with pytest.raises(Denied, match="404 .*no such cluster or organization.*speedrun-operator clusters"):
        await connect().cluster("cl-other")
    with pytest.raises(Denied, match="403 .*not a member"):
        await connect(organization="org-other").cluster(CLUSTER)


@pytest.mark.parametrize("cluster", ["", "../me", "a/b", "a?x", "a b", ".."])
async def test_what_is_no_id_never_becomes_a_path(cluster: str, platform: Platform, connect: Connect) -> None:
    with pytest.raises(Denied, match="is no cluster id"):
        await connect().cluster(cluster)
    assert platform.seen == []


async def test_a_token_that_ran_out_is_told(platform: Platform, connect: Connect, token_file: Path) -> None:
    token_file.write_text(platform.sign_in(seconds=-1))
    error = await refusal(connect(), "clusters")
    assert isinstance(error, Denied)
    assert "401 (token is expired): the token is not accepted: it has expired" in str(error)


async def test_a_renewed_token_is_taken_up_without_a_restart(
    platform: Platform, connect: Connect, token_file: Path
) -> None:
    api = connect()
    await api.clusters()
    platform.revoke(token_file.read_text().strip())
    token_file.write_text(platform.sign_in())
    assert len(await api.clusters()) == 1
    assert [each.status for each in platform.seen] == [200, 401, 200]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_server_at_fault_is_asked_a_few_times(status: int, platform: Platform, connect: Connect) -> None:
    platform.fail(status, 60)
    api = connect()
    error = await refusal(api, "clusters")
    assert isinstance(error, Unanswered)
    assert f"GET /clusters: the API answers {status} (try again later)" in str(error)
    assert len(platform.seen) == 4
    assert [round(each, 1) for each in sorted(api.waited)] == pytest.approx([0.5, 1.0, 2.0], rel=0.25)


async def test_a_server_that_heals_costs_the_caller_nothing(platform: Platform, connect: Connect) -> None:
    api = connect()
    platform.fail(503, 60)

    async def heal(seconds: float) -> None:
        platform.heal()

    api._sleep = heal
    assert len(await api.clusters()) == 1
    assert [each.status for each in platform.seen] == [503, 200]


@pytest.mark.parametrize(("asked", "waits"), [("3", [3.0]), ("0", [0.0])])
async def test_a_wait_that_is_asked_for_is_kept(
    asked: str, waits: list[float], platform: Platform, connect: Connect
) -> None:
    platform.fail(429, 60, retry_after=asked)
    api = connect()
    error = await refusal(api, "clusters")
    assert error.retry_after == float(asked)
    assert api.waited[:1] == pytest.approx(waits, rel=0.25)


async def test_a_long_wait_is_the_callers(platform: Platform, connect: Connect) -> None:
    platform.fail(429, 60, retry_after="600")
    api = connect()
    assert (await refusal(api, "clusters")).retry_after == 600
    assert (len(platform.seen), api.waited) == (1, [])


async def test_a_page_in_place_of_the_api(platform: Platform, connect: Connect) -> None:
    platform.fail(200, 60, html=True)
    error = await refusal(connect(), "clusters")
    assert isinstance(error, Unanswered)
    assert "the answer is an HTML page: a proxy or a sign-in page answers in place of the API" in str(error)
    assert "<title>" not in str(error)


async def test_a_body_that_is_nested_without_end(
    platform: Platform, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "_cluster", lambda: "[" * 200_000)
    assert "the answer is no JSON" in str(await refusal(connect(), "cluster"))


async def test_a_redirect_gets_no_token(platform: Platform, connect: Connect) -> None:
    platform.fail(302, 60)
    error = await refusal(connect(), "clusters")
    assert "302: the address redirects elsewhere, which is not followed" in str(error)


async def test_nobody_answers(connect: Connect, unused_tcp_port: int) -> None:
    error = await refusal(connect(url=f"https://127.0.0.1:{unused_tcp_port}"), "clusters")
    assert isinstance(error, Unanswered)
    assert "the Platform API does not answer" in str(error)


async def test_an_answer_that_does_not_end(
    platform: Platform, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time."""
    over = threading.Event()

    def drip(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not over.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()

    monkeypatch.setattr(platform._server.RequestHandlerClass, "do_GET", drip)
    monkeypatch.setattr(client, "WHOLE_SECONDS", 0.3)
    monkeypatch.setattr(client, "TRIES", 1)
    try:
        error = await refusal(connect(), "clusters")
    finally:
        over.set()
    assert isinstance(error, Unanswered)
    assert "GET /clusters: the answer does not end within 0.3 s" in str(error)


async def test_a_server_that_cannot_be_verified_gets_no_request(platform: Platform, connect: Connect) -> None:
    error = await refusal(connect(trusted=False), "clusters")
    assert "CERTIFICATE_VERIFY_FAILED" in str(error)
    assert platform.seen == []


async def test_no_message_and_no_representation_holds_the_token(
    platform: Platform, connect: Connect, token_file: Path
) -> None:
    token = token_file.read_text().strip()
    api = connect()
    await api.clusters()
    platform.revoke(token)
    told = f"{await refusal(api, 'clusters')!r} {api.tokens.held!r} {vars(api.tokens)!r} {platform.seen!r}"
    assert token not in told
    assert Seen("GET", "/platform/clusters", {"businessOrgId": ORGANIZATION}, 401) in platform.seen
