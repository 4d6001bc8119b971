"""The guard: which caller reaches a handler, as which principal, in which namespaces; and how a host proves itself."""

import asyncio
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.api.auth import NEEDS, Guard, make_guard, proof_of, proofs_of
from foqs.bounds import RateLimit
from foqs.config.access import read
from foqs.config.load import Config
from foqs.config.schema import AuthSection, ServerSection
from foqs.errors import PROTOCOL_VERSION, FoqsError, Forbidden, Invalid, Overloaded, Unauthenticated
from foqs.idl import idl
from foqs.rpc.hub import Handler
from tests.support.one_host import Call

pytestmark = pytest.mark.memory

SECRET = "s" * 32
PROOF = proof_of(SECRET)
RIGHTS = {"producer": '"shop" = "produce"', "consumer": '"eu-*" = "consume"', "root": '"*" = ["consume", "admin"]'}
FILE = "\n".join(
    f'[principals.{name}]\ntoken_sha256 = "{sha256(name.encode()).hexdigest()}"\ncertificate = "cn-{name}"\n'
    f"rights = {{ {rights} }}"
    for name, rights in RIGHTS.items()
)


class Desk:
    """A guard over handlers that note their calls."""

    def __init__(self, principals: Path | None, pace: RateLimit | None = None, secret: str | None = SECRET) -> None:
        self.now_s = 0.0
        self.guard = Guard(principals, secret, pace, lambda: self.now_s)
        self.handled: list[Call] = []
        self.methods = self.guard.over(dict.fromkeys(NEEDS, self._handle))
        self.lines: list[Any] = []

    def _handle(self, call: Call) -> None:
        self.handled.append(call)

    def call(self, method: str, certified: tuple[str, ...] = (), peer: str = "c:1", **fields: Any) -> Call:
        """A call that passed the guard. Raises as the guard."""
        context = {key: fields.pop(key) for key in list(fields) if hasattr(idl.RequestContext(), key)}
        request = getattr(idl, f"{method}Request")(**fields)
        request.context = idl.RequestContext(**context) if context else None
        call = Call(method, request)
        call.certified, call.peer = certified, peer
        with capture_logs() as lines:
            try:
                self.methods[method](call)  # type: ignore[arg-type]
            finally:
                self.lines = lines
        assert self.handled[-1] is call
        return call

    def refused(self, kind: type[FoqsError], method: str, **fields: Any) -> str:
        before = len(self.handled)
        with pytest.raises(kind) as error:
            self.call(method, **fields)
        assert len(self.handled) == before
        assert [line["event"] for line in self.lines] == ["audit.refused"]
        return error.value.message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "principals.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def desk(path: Path) -> Desk:
    return Desk(path)


# ------------------------------------------------------------------------------------------ clients


@pytest.mark.parametrize("proof", [{"token": "producer"}, {"certified": ("unknown", "cn-producer")}])
def test_a_client_becomes_the_principal_it_proves(desk: Desk, proof: dict[str, Any]) -> None:
    call = desk.call("Enqueue", ns="shop", **proof)
    context = call.request.context
    assert (context.principal, context.token, context.host_proof) == ("producer", None, None)
    assert call.trusted


def test_a_client_without_a_valid_proof_is_refused(desk: Desk) -> None:
    assert desk.refused(Unauthenticated, "Enqueue", ns="shop") == "a token or a client's certificate is needed"
    assert desk.refused(Unauthenticated, "Enqueue", ns="shop", token="wrong") == "the token is not valid"
    why = desk.refused(Unauthenticated, "Enqueue", ns="shop", certified=("cn-other",))
    assert why == "no principal has the client's certificate"
    why = desk.refused(Unauthenticated, "Enqueue", ns="shop", token="wrong", certified=("cn-producer",))
    assert why == "the token is not valid"


def test_a_client_cannot_name_its_principal(desk: Desk) -> None:
    desk.refused(Unauthenticated, "Enqueue", ns="shop", principal="producer")
    assert "who" not in desk.lines[0], "it is not proven"
    call = desk.call("Enqueue", ns="shop", principal="root", token="producer")
    assert call.request.context.principal == "producer"


@pytest.mark.parametrize(
    ("method", "token", "good", "bad"),
    [
        ("Enqueue", "producer", "shop", "shop2"),
        ("Dequeue", "consumer", "eu-west", "us"),
        ("ListItems", "root", "shop", None),
        ("GetActiveTopics", "producer", "shop", "eu-west"),
        ("GetTopicStats", "producer", "shop", "eu-west"),
    ],
)
def test_a_right_is_of_a_namespace(desk: Desk, method: str, token: str, good: str, bad: str | None) -> None:
    assert desk.call(method, ns=good, token=token).within is None
    if bad is not None:
        assert desk.refused(Forbidden, method, ns=bad, token=token).endswith(f"in the namespace {bad!r}")


def test_one_right_does_not_give_another(desk: Desk) -> None:
    why = desk.refused(Forbidden, "Dequeue", ns="shop", token="producer")
    assert why == "producer has no right consume in the namespace 'shop'"
    assert desk.refused(Forbidden, "Enqueue", ns="shop", token="root").startswith("root has no right produce")
    assert desk.refused(Forbidden, "GetItem", id=1, token="consumer") == (
        "consumer has no right admin in any namespace"
    )


def test_a_request_without_a_namespace_sees_those_of_its_caller(desk: Desk) -> None:
    call = desk.call("Ack", token="consumer")
    assert call.within is not None
    assert ("eu-1" in call.within, "shop" in call.within) == (True, False)
    assert desk.call("Ack", token="root").within is None, "everywhere"
    within = desk.call("GetActiveTopics", token="producer").within
    assert within is not None
    assert "shop" in within


async def read_again(guard: Guard, path: Path) -> None:
    """What `Guard.read_again` does, without its thread."""
    guard._reading = asyncio.get_running_loop().create_future()
    guard._reading.set_result(read(path))
    guard._read(guard._reading)


@pytest.mark.parametrize("ns", ["eu-1", None])
def test_a_check_that_was_passed_holds_until_the_file_changes(path: Path, ns: str | None) -> None:
    desk, fields = Desk(path), {"ns": ns, "token": "consumer"}
    first, second = desk.call("Ack", **fields), desk.call("Ack", **fields)
    assert second.trusted
    assert (second.request.context.principal, second.request.context.token) == ("consumer", None)
    assert second.within == first.within
    for other in ({**fields, "token": "producer"}, {**fields, "ns": "us"}, {**fields, "hops": 1}):
        desk.refused(Forbidden, "Ack", **other)
    desk.refused(Unauthenticated, "Ack", **{**fields, "host_proof": "wrong"})
    desk.refused(Forbidden, "Enqueue", **{**fields, "ns": "eu-1"})
    path.write_text(FILE.replace("eu-*", "us-*"))
    asyncio.run(read_again(desk.guard, path))
    if ns is not None:
        desk.refused(Forbidden, "Ack", **fields)
    else:
        assert desk.call("Ack", **fields).within != first.within


def test_any_principal_may_ask_for_information(desk: Desk) -> None:
    for method in ("GetServerInfo", "GetRouting"):
        assert desk.call(method, token="producer").within is None
        desk.refused(Unauthenticated, method)


@pytest.mark.parametrize("again", [False, True])
def test_a_caller_learns_its_rights(desk: Desk, *, again: bool) -> None:
    expected = {
        "producer": {"shop": ["produce"]},
        "consumer": {"eu-*": ["consume"]},
        "root": {"*": ["consume", "admin"]},
    }
    for name, rights in expected.items():
        if again:
            desk.call("GetServerInfo", token=name)
        call = desk.call("GetServerInfo", token=name, principal="root")
        assert desk.guard.rights_of(call.request.context) == (name, rights)


def test_rights_are_those_of_the_file_that_was_read_last(desk: Desk, path: Path) -> None:
    path.write_text(FILE.replace('"shop" = "produce"', ""))
    asyncio.run(read_again(desk.guard, path))
    call = desk.call("GetServerInfo", token="producer")
    assert desk.guard.rights_of(call.request.context) == ("producer", {}), "known, and without a right"


def test_hosts_have_no_rights_of_their_own(desk: Desk) -> None:
    assert desk.guard.rights_of(desk.call("GetServerInfo", host_proof=PROOF).request.context) is None


def test_without_authentication_a_caller_has_no_name() -> None:
    free = Desk(None)
    for context in ({}, {"principal": "root"}, {"token": "root"}):
        assert free.guard.rights_of(free.call("GetServerInfo", **context).request.context) is None


@pytest.mark.parametrize("method", [name for name, need in NEEDS.items() if need == "host"])
def test_only_hosts_may_call_the_methods_of_hosts(desk: Desk, method: str) -> None:
    assert desk.refused(Forbidden, method, token="root") == "only hosts of the cluster may ask this"
    assert desk.call(method, host_proof=PROOF).trusted


# ------------------------------------------------------------------------------------------ hosts


def test_a_host_names_the_principal_for_which_it_asks(desk: Desk) -> None:
    call = desk.call("Enqueue", ns="shop", host_proof=PROOF, principal="producer", hops=1)
    assert call.request.context.principal == "producer"
    assert call.request.context.host_proof is None
    desk.refused(Forbidden, "Enqueue", ns="us", host_proof=PROOF, principal="producer", hops=1)
    why = desk.refused(Unauthenticated, "Enqueue", ns="us", host_proof=PROOF, principal="new", hops=1)
    assert why == "this host's principals_file does not have the principal"


def test_a_host_without_principals_passes_the_token_on(desk: Desk) -> None:
    call = desk.call("Enqueue", ns="shop", host_proof=PROOF, token="producer", hops=1)
    assert call.request.context.principal == "producer"
    # The certificate is the other host's own.
    desk.refused(Unauthenticated, "Enqueue", ns="shop", host_proof=PROOF, hops=1, certified=("cn-producer",))


def test_a_wrong_proof_is_refused_whatever_else_is_right(desk: Desk) -> None:
    why = desk.refused(Unauthenticated, "Enqueue", ns="shop", host_proof="x", token="producer")
    assert why == "host_proof: the cluster's secret is another one"


def test_a_client_cannot_say_that_it_forwards(desk: Desk) -> None:
    why = desk.refused(Forbidden, "Enqueue", ns="shop", token="producer", hops=1)
    assert why == "hops: only hosts of the cluster forward requests"


def test_a_host_asks_for_information_on_its_own_behalf(desk: Desk) -> None:
    assert desk.call("GetServerInfo", host_proof=PROOF).trusted


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_host_proves_itself_when_it_has_a_secret(path: Path, secret: str | None) -> None:
    asked: list[Any] = []
    for principals in (None, path):
        guard = Guard(principals, secret, None, lambda: 0.0)
        ask: Callable[..., None] = guard.proven(lambda *args: asked.append(args[2]))
        ask("b:1", "Ack", idl.AckRequest(context=idl.RequestContext(principal="ann")), 10, print)
        assert (guard.introduction() is None) == (secret is None)
    contexts = [request.context for request in asked]
    proof = None if secret is None else PROOF
    assert [context.host_proof for context in contexts] == [proof, proof]
    assert [context.peer_version for context in contexts] == [PROTOCOL_VERSION] * 2
    # Without authentication here, the name is one that a client gave.
    assert [context.principal for context in contexts] == (["ann"] * 2 if secret is None else [None, "ann"])


def test_an_introduction_has_the_proof_and_never_the_secret() -> None:
    introduction = Guard(None, SECRET, None, lambda: 0.0).introduction()
    assert introduction is not None
    assert (introduction[0], introduction[1].context.host_proof) == ("GetServerInfo", PROOF)
    assert SECRET not in PROOF
    assert proof_of("t" * 32) != PROOF


# ------------------------------------------------------------------------------------------ replacement of the secret

NEW = "n" * 32
STEPS = {"before": (SECRET, None), "both": (NEW, SECRET), "after": (NEW, None)}


@pytest.mark.parametrize(
    ("asks", "asked", "accepted"),
    [(one, other, {one, other} != {"before", "after"}) for one in STEPS for other in STEPS],
)
def test_neighbouring_steps_of_a_new_secret_accept_each_other(
    path: Path, asks: str, asked: str, accepted: bool
) -> None:
    """Hosts take each step in any order, so any two hosts are at most one step apart."""
    secret, previous = STEPS[asked]
    desk, sent = Desk(path), []
    desk.guard.take_secrets(secret, previous)
    host = Guard(None, STEPS[asks][0], None, lambda: 0.0, STEPS[asks][1])
    ask: Callable[..., None] = host.proven(lambda *args: sent.append(args[2].context))
    ask("b:1", "Ack", idl.AckRequest(context=idl.RequestContext()), 10, print)
    introduction = host.introduction()
    assert introduction is not None
    for context in (sent[0], introduction[1].context):
        proofs = {"host_proof": context.host_proof, "host_proof_next": context.host_proof_next}
        if accepted:
            assert desk.call("Enqueue", ns="shop", principal="producer", hops=1, **proofs).trusted
        else:
            desk.refused(Unauthenticated, "Enqueue", ns="shop", principal="producer", hops=1, **proofs)


def test_earlier_versions_read_the_old_proof() -> None:
    """It knows `host_proof` alone, and has the old secret until it is replaced itself."""
    assert proofs_of(NEW, SECRET) == (proof_of(SECRET), proof_of(NEW))


def test_no_proof_is_passed_on(desk: Desk) -> None:
    desk.guard.take_secrets(NEW, SECRET)
    proofs = {"host_proof": proof_of(SECRET), "host_proof_next": proof_of(NEW)}
    context = desk.call("Enqueue", ns="shop", principal="producer", hops=1, **proofs).request.context
    assert (context.host_proof, context.host_proof_next) == (None, None)
    sent: list[Any] = []
    ask: Callable[..., None] = Guard(None, SECRET, None, lambda: 0.0).proven(lambda *args: sent.append(args[2].context))
    ask("b:1", "Ack", idl.AckRequest(context=idl.RequestContext(host_proof_next="a client's")), 10, print)
    assert sent[0].host_proof_next is None


# ------------------------------------------------------------------------------------------ without authentication


def test_without_principals_every_caller_may_do_everything() -> None:
    desk = Desk(None)
    for method in NEEDS:
        assert desk.call(method).within is None
    assert desk.guard.trusts(())


def test_an_unproven_name_is_in_no_audit_line() -> None:
    desk = Desk(None)
    desk.call("DeleteItems", ids=[1], principal="ann")
    (line,) = desk.lines
    assert line["event"] == "audit.admin"
    assert "who" not in line


def test_a_delete_is_audited_by_the_first_host_alone(desk: Desk) -> None:
    desk.call("DeleteItems", ids=[1], token="root")
    assert [(line["event"], line["who"]) for line in desk.lines] == [("audit.admin", "root")]
    desk.call("DeleteItems", ids=[1], host_proof=PROOF, principal="root", hops=1)
    assert desk.lines == []


def test_a_delete_that_its_handler_refuses_is_not_audited(path: Path) -> None:
    desk = Desk(path)

    def refuse(call: Call) -> None:
        raise Invalid("ids is empty")

    handler: Handler = refuse  # type: ignore[assignment]
    desk.methods = desk.guard.over({"DeleteItems": handler})
    with pytest.raises(Invalid):
        desk.call("DeleteItems", token="root")
    assert desk.lines == []


# ------------------------------------------------------------------------------------------ the rate of an address


def test_an_address_is_limited_whatever_its_port(desk: Desk, path: Path) -> None:
    desk = Desk(path, RateLimit(2))
    for port in (1, 2):
        desk.call("Enqueue", ns="shop", token="producer", peer=f"c:{port}")
    with pytest.raises(Overloaded, match="too many requests from this address") as error:
        desk.call("Enqueue", ns="shop", token="producer", peer="c:3")
    assert error.value.retry_after_ms == 500
    desk.call("Enqueue", ns="shop", token="producer", peer="d:1")
    desk.now_s += 0.5
    desk.call("Enqueue", ns="shop", token="producer", peer="c:4")


def test_hosts_are_not_limited_and_a_wrong_proof_is(path: Path) -> None:
    desk = Desk(path, RateLimit(1))
    for _ in range(5):
        desk.call("GetServerInfo", host_proof=PROOF)
    with pytest.raises(Unauthenticated):
        desk.call("GetServerInfo", host_proof="x")
    with pytest.raises(Overloaded):
        desk.call("GetServerInfo", host_proof="x")


# ------------------------------------------------------------------------------------------ the file


def test_a_certificate_of_a_principal_makes_a_connection_trusted(desk: Desk) -> None:
    assert desk.guard.trusts(("unknown", "cn-root"))
    assert not desk.guard.trusts(("unknown",))
    assert not desk.guard.trusts(())


def test_a_guard_is_made_of_the_configuration(path: Path) -> None:
    config = Config(
        auth=AuthSection(principals_file=path, cluster_secret=SECRET),
        server=ServerSection(requests_per_second_per_address=1),
    )
    guard = make_guard(config, lambda: 0.0)
    assert not guard.trusts(())
    assert guard.introduction() is not None
    path.write_text("[principals.ann]")
    with pytest.raises(Invalid, match="needs token_sha256 or certificate"):
        make_guard(config, lambda: 0.0)
    assert make_guard(Config(), lambda: 0.0).introduction() is None
