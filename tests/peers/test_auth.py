"""Rights on two hosts that forward to each other: callers with rights, through any host, and strangers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from foqs.api import auth as api_auth
from foqs.api import status as api_status
from foqs.api.auth import NEEDS, proof_of
from foqs.config.access import Principals
from foqs.engine import stats
from foqs.errors import Code
from foqs.fairness import rates as of_rates
from foqs.idl import idl
from foqs.peers import gather
from tests.api.hosts import until
from tests.api.wire import Refused, Wire
from tests.peers.every_request import BETWEEN_HOSTS, REQUESTS
from tests.peers.nodes import Cluster, Member
from tests.support.certificates import Authority
from tests.support.waiting import wait_until

SECRET = "0123456789-0123456789-0123456789-the-cluster"
RIGHTS = {
    "shop": '{ shop = ["produce", "consume"] }',
    "taker": '{ "shop*" = ["consume"] }',
    "maker": '{ shop = ["produce"] }',
    "rival": '{ rival = ["produce", "consume", "admin"] }',
    "admin": '{ "*" = ["produce", "consume", "admin"] }',
    "nobody": "{}",
}
NewWire = Callable[..., Wire]


def principals(*without: str) -> str:
    entries = [
        f'[principals.{name}]\ntoken_sha256 = "{sha256(name.encode()).hexdigest()}"\n'
        f'certificate = "{name}.test"\nrights = {rights}\n'
        for name, rights in RIGHTS.items()
        if name not in without
    ]
    return "\n".join(entries)


@pytest.fixture
def auth(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "principals.toml"
    path.write_text(principals())
    return {"principals_file": path, "cluster_secret": SECRET}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def hosts(cluster: Cluster, auth: dict[str, Any], authority: Authority) -> tuple[Member, Member]:
    """With TLS, each with a shard of its own."""
    own = authority.issue("127.0.0.1")
    tls = authority.section(own, client_certificates="optional").model_dump()
    pair = cluster.add("a", 1, auth=auth, tls=tls), cluster.add("b", 2, auth=auth, tls=tls)
    cluster.tell()
    return pair


@pytest.fixture
def wire(cluster: Cluster, authority: Authority, hosts: tuple[Member, Member]) -> NewWire:
    """`wire("shop")` is that principal's connection to the first host, `wire("shop", 1)` to the second."""

    def connect(who: str | None, at: int = 0, ns: str = "shop", **context: Any) -> Wire:
        given = context if who is None else {"token": who} | context
        return cluster.wire(hosts[at], tls=authority.client(), ns=ns, **given)

    return connect


def code(do: Callable[[], Any]) -> int:
    with pytest.raises(Refused) as refused:
        do()
    return refused.value.code


# ------------------------------------------------------------------------------------------------ one's own


def test_a_principal_works_through_any_host(wire: NewWire, hosts: tuple[Member, Member]) -> None:
    """Items of each host's shard, settled at the other one: forwarded calls are believed."""
    for at in (0, 1):
        (item_id,) = wire("shop", at).put("t", b"x")
        item = wire("shop", at).one("t")
        assert item.id == item_id
        other = wire("shop", 1 - at)
        assert other.extend(item, 60_000) == 0
        assert other.nack(item) == 0
        again = other.one("t")
        assert again.id == item_id
        assert other.ack(again) == [0]
    for at in (0, 1):
        (item_id,) = wire("admin", at).put("t", b"x")
        other = wire("admin", 1 - at)
        assert other.look(item_id).item.payload == b"x"
        assert [item.id for item in other.listed("t")] == [item_id]
        assert other.delete(item_id) == [0]
    assert sum(host.counters.forwarded for host in hosts) >= 10


def test_a_certificate_names_the_client_also_when_forwarded(
    cluster: Cluster, hosts: tuple[Member, Member], authority: Authority, wire: NewWire
) -> None:
    (item_id,) = wire("maker", 0).put("t", b"x")
    tls = authority.client(authority.issue("taker.test"))
    certified = cluster.wire(hosts[1], tls=tls, ns="shop")
    item = certified.one("t")
    assert item.id == item_id
    assert certified.ack(item) == [0]
    assert code(lambda: certified.put("t", b"x")) == Code.FORBIDDEN
    # A token counts before the certificate, and a wrong one is not made good by it.
    assert cluster.wire(hosts[1], tls=tls, ns="rival", token="rival").put("t", b"x")
    assert code(lambda: cluster.wire(hosts[1], tls=tls, token="wrong").ask("GetServerInfo")) == Code.UNAUTHENTICATED
    unknown = authority.client(authority.issue("unknown.test"))
    assert code(lambda: cluster.wire(hosts[0], tls=unknown).ask("GetRouting")) == Code.UNAUTHENTICATED


def test_an_answer_names_the_caller(wire: NewWire) -> None:
    for name, rights in (("taker", {"shop*": ["consume"]}), ("nobody", {})):
        info = wire(name).ask("GetServerInfo")
        assert (info.principal, info.rights) == (name, rights)


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates have steps of 100 ms on hosts that start after this."""
    for module in (of_rates, stats, api_status, gather):
        monkeypatch.setattr(module, "STEP_MS", 100)


def test_rates_of_the_callers_namespaces(short_steps: None, wire: NewWire) -> None:
    for at in (0, 1):
        wire("shop", at).put("t", b"x")
        wire("rival", at, ns="rival").put("t", b"x", b"y")

    def enqueued(who: str) -> dict[str, int]:
        answer = wire(who).ask("GetRates")
        assert answer.missing == []
        return {one.ns: sum(one.enqueued) for one in answer.namespaces}

    wait_until(lambda: enqueued("admin") == {"shop": 2, "rival": 4}, "the end of a step")
    assert enqueued("shop") == {"shop": 2}
    assert code(lambda: wire("shop").ask("GetRates", ns="rival")) == Code.FORBIDDEN


def test_without_a_proof_every_request_is_refused(wire: NewWire) -> None:
    assert REQUESTS.keys() | BETWEEN_HOSTS.keys() == NEEDS.keys()
    nobody, wrong, none = wire("nobody"), wire("x" * 4_000), wire(None)
    for method, fields in REQUESTS.items():
        assert code(lambda m=method, f=fields: wrong.ask(m, **f)) == Code.UNAUTHENTICATED, method
        assert code(lambda m=method, f=fields: none.ask(m, **f)) == Code.UNAUTHENTICATED, method
        if method not in ("GetServerInfo", "GetRouting"):
            assert code(lambda m=method, f=fields: nobody.ask(m, **f)) == Code.FORBIDDEN, method
    assert nobody.ask("GetServerInfo").version
    assert nobody.ask("GetRouting").hosts


@pytest.mark.parametrize("at", [0, 1])
def test_acks_with_a_dequeue_need_the_right_to_consume(wire: NewWire, at: int) -> None:
    """An item of another tenant is not found, on this host or on another one, and stays leased."""
    (item_id,) = wire("shop", at).put("t", b"x")
    item = wire("shop", at).one("t")
    asked = {"acks": [idl.AckItem(item.id, item.lease)], "wants": [idl.TopicCount("t", 1)]}
    assert code(lambda: wire("maker").ask("AckAndDequeue", ns="shop", **asked)) == Code.FORBIDDEN
    assert code(lambda: wire("rival").ask("AckAndDequeue", ns="shop", **asked)) == Code.FORBIDDEN
    (outcome,) = wire("rival").ask("AckAndDequeue", ns="rival", **asked).outcomes
    assert outcome.error.code == Code.NOT_FOUND
    assert wire("admin").state(item_id) is not None
    (outcome,) = wire("taker").ask("AckAndDequeue", ns="shop", **asked).outcomes
    assert outcome.error is None
    assert wire("admin").state(item_id) is None


# ------------------------------------------------------------------------------------------------ another tenant's


@pytest.mark.parametrize("at", [0, 1], ids=["here", "forwarded"])
def test_another_tenants_item_does_not_exist(wire: NewWire, at: int) -> None:
    """The answer about an item in another namespace is, to the letter, that about an item that does not exist."""
    shop, rival, admin = wire("shop"), wire("rival", at, ns="rival"), wire("admin")
    shop.put("t", b"secret", b"waits")
    item = shop.one("t")
    (waiting,) = [one.id for one in admin.listed("t") if one.id != item.id]
    unknown = idl.Item(id=item.id + 1_000_000, lease=item.lease)
    asked = [("Ack", idl.AckItem), ("Nack", idl.NackItem), ("ExtendLease", idl.ExtendItem)]
    for method, entry in asked:
        there, none = (rival.ask(method, items=[entry(one.id, one.lease)]) for one in (item, unknown))
        assert there.outcomes[0].error == none.outcomes[0].error, method
        assert there.outcomes[0].error.code == Code.NOT_FOUND
        named = rival.ask(method, items=[entry(item.id, item.lease)], ns="rival")
        assert named.outcomes[0].error == none.outcomes[0].error
        assert code(lambda m=method, e=entry: rival.ask(m, items=[e(item.id, 1)], ns="shop")) == Code.FORBIDDEN
    for item_id in (item.id, waiting):
        assert rival.delete(item_id, unknown.id) == [Code.NOT_FOUND, Code.NOT_FOUND]
        assert rival.state(item_id) is None
    assert code(lambda: rival.ask("ListItems", ns="shop", topic="t")) == Code.FORBIDDEN
    assert code(lambda: rival.ask("ListItems", ns="shop", topic="t", shard=1)) == Code.FORBIDDEN
    assert code(lambda: rival.ask("Dequeue", ns="shop", wants=[idl.TopicCount("t", 1)])) == Code.FORBIDDEN
    assert rival.ask("GetActiveTopics").topics == []
    assert code(lambda: rival.ask("GetActiveTopics", ns="shop")) == Code.FORBIDDEN
    assert shop.ack(item) == [0]  # nothing of that did anything
    assert admin.delete(waiting) == [0]


# ------------------------------------------------------------------------------------------------ hosts


@pytest.mark.parametrize("proof", [None, "x", "ü", proof_of("another secret of another cluster")])
def test_a_client_cannot_pretend_to_be_a_host(wire: NewWire, proof: str | None) -> None:
    (item_id,) = wire("admin").put("t", b"x")
    claims: dict[str, Any] = {"hops": 1, "principal": "admin", "host_proof": proof}
    wanted = Code.FORBIDDEN if proof is None else Code.UNAUTHENTICATED
    for who in ("rival", None):
        pretender = wire(who, **claims)
        assert code(lambda w=pretender: w.delete(item_id)) == wanted
        for method, fields in BETWEEN_HOSTS.items():
            assert code(lambda w=pretender, m=method, f=fields: w.ask(m, **f)) == wanted
    assert code(lambda: wire("admin", hops=1).look(item_id)) == Code.FORBIDDEN
    # Without a proof of a host, the principal that it names is ignored.
    assert wire("rival", principal="admin").delete(item_id) == [Code.NOT_FOUND]
    assert code(lambda: wire(None, principal="admin").delete(item_id)) == Code.UNAUTHENTICATED


def test_the_owner_checks_the_principal_that_a_host_names(wire: NewWire) -> None:
    (item_id,) = wire("admin").put("t", b"x")
    proof = proof_of(SECRET)
    assert code(lambda: wire(None, host_proof=proof, hops=1).look(item_id)) == Code.UNAUTHENTICATED
    assert code(lambda: wire(None, host_proof=proof, hops=1, principal="ghost").look(item_id)) == Code.UNAUTHENTICATED
    assert code(lambda: wire(None, host_proof=proof, hops=1, principal="maker").look(item_id)) == Code.FORBIDDEN
    assert wire(None, host_proof=proof, hops=1, principal="rival").state(item_id) is None
    assert wire(None, host_proof=proof, hops=1, principal="admin").look(item_id).item.payload == b"x"
    # One that has no principals yet forwards the token.
    assert wire("admin", host_proof=proof, hops=1).look(item_id).item.payload == b"x"
    assert wire(None, host_proof=proof).ask("WatchTopics").whole


def test_a_host_without_principals_names_no_principal(
    cluster: Cluster, auth: dict[str, Any], authority: Authority
) -> None:
    """As while authentication is being turned on, host by host: the secret comes first."""
    keys = authority.section(authority.issue("127.0.0.1"), client_certificates="optional")
    tls = keys.model_dump()
    with auth["principals_file"].open("a") as file:
        file.write('[principals.the-host-itself]\ncertificate = "127.0.0.1"\nrights = { "*" = ["admin"] }\n')
    open_host = cluster.add("a", 1, auth={"cluster_secret": SECRET}, tls=tls)
    guarded = cluster.add("b", 2, auth=auth, tls=tls)
    cluster.tell()
    (item_id,) = cluster.wire(guarded, tls=authority.client(), ns="shop", token="shop").put("t", b"x")
    claims = cluster.wire(open_host, tls=authority.client(), ns="shop", principal="admin")
    assert code(lambda: claims.look(item_id)) == Code.UNAUTHENTICATED
    assert claims.delete(item_id) == [Code.UNAUTHENTICATED]
    assert code(lambda: cluster.wire(open_host, tls=authority.client()).look(item_id)) == Code.UNAUTHENTICATED
    admin = cluster.wire(open_host, tls=authority.client(), ns="shop", token="admin")
    assert admin.look(item_id).item.payload == b"x"


def test_other_principals_count_from_the_next_request_on(
    wire: NewWire, hosts: tuple[Member, Member], cluster: Cluster, auth: dict[str, Any]
) -> None:
    shop = wire("shop")
    shop.put("t", b"x")
    auth["principals_file"].write_text(principals("shop"))
    cluster.on_loop(hosts[0].guard.read_again)
    until(lambda: not put(shop), "the file without the principal")
    assert code(lambda: shop.put("t", b"x")) == Code.UNAUTHENTICATED
    auth["principals_file"].write_text(principals())
    cluster.on_loop(hosts[0].guard.read_again)
    until(lambda: put(shop), "the file with it")


def test_a_file_that_was_read_before_another_counts_no_more(
    auth: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the reading took."""
    path, read = auth["principals_file"], api_auth.read
    first, waiting, go_on = read(path), threading.Event(), threading.Event()

    def slowly(_: Path) -> Principals:
        waiting.set()
        assert go_on.wait(60)
        return first

    async def twice() -> None:
        of_host = api_auth.Guard(path, SECRET, None, time.monotonic)
        monkeypatch.setattr(api_auth, "read", slowly)
        of_host.read_again()
        early = of_host._reading
        await asyncio.to_thread(waiting.wait, 60)
        monkeypatch.setattr(api_auth, "read", read)
        path.write_text(principals("shop"))
        of_host.read_again()
        await asyncio.wait([of_host._reading])
        go_on.set()
        await asyncio.wait([early])
        await asyncio.sleep(0)
        assert of_host._principals.by_name.keys() == RIGHTS.keys() - {"shop"}

    asyncio.run(twice())


def put(wire: Wire) -> bool:
    try:
        return bool(wire.put("t", b"x"))
    except Refused:
        return False
