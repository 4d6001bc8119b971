"""Who may call which method: looked at before a request reaches its handler.

A caller is a client, who proves by token or certificate to be a principal, or another host of the cluster, which proves
it by the cluster's secret and says on whose behalf it calls. Items are not looked at here: where a request names no
namespace, `Call.within` says in which ones the caller may find anything, and what is elsewhere does not exist for it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from foqs.config import Config
from foqs.errors import Forbidden, Invalid, Overloaded, Unauthenticated
from foqs.host.audit import Audit
from foqs.host.watch import Ask
from foqs.idl import idl
from foqs.pace import Pace
from foqs.principals import Principal, Principals, Right, read
from foqs.rpc.call import Call
from foqs.rpc.peer import Done
from foqs.sections import AuthSection

log = structlog.get_logger("foqs.host")

Handler = Callable[[Call], None]
Handlers = Mapping[str, Handler]

_HOST, _ANYBODY, _SEES = "host", "anybody", "sees"
NEEDS: Mapping[str, Right | str] = {
    "Enqueue": Right.PRODUCE,
    "Dequeue": Right.CONSUME,
    "Ack": Right.CONSUME,
    "Nack": Right.CONSUME,
    "ExtendLease": Right.CONSUME,
    "GetItem": Right.ADMIN,
    "ListItems": Right.ADMIN,
    "DeleteItems": Right.ADMIN,
    "GetActiveTopics": _SEES,
    "GetServerInfo": _ANYBODY,
    "GetRouting": _ANYBODY,
    "WatchTopics": _HOST,
    "GiveSlot": _HOST,
    "TakeTokens": _HOST,
    "CountItems": _HOST,
}
_ADMINISTRATIVE = frozenset({"DeleteItems"})


class Guard:
    """Of one host. Without `principals` everybody may do everything, with `pace` clients not too often."""

    def __init__(
        self, principals_file: Path | None, cluster_secret: str | None, pace: Pace | None, now_s: Callable[[], float]
    ) -> None:
        """Raises Invalid: the file cannot be read, or what it holds is wrong."""
        self._pace = pace
        self._now_s = now_s
        self._file = principals_file
        self._principals = None if principals_file is None else read(principals_file)
        self._reading: asyncio.Future[Principals] | None = None
        self._proof = None if cluster_secret is None else proof_of(cluster_secret)
        self._audit = Audit(now_s)

    def trusts(self, certified: tuple[str, ...]) -> bool:
        """Whether a connection needs no token: authentication is off, or these names of its certificate are a
        principal's."""
        return self._principals is None or self._principals.of_certificate(certified) is not None

    def read_again(self) -> None:
        """The principals file, on a thread. What it says holds from the next request on, as a connection holds no
        rights; one that is not valid changes nothing."""
        if self._file is not None:
            self._reading = asyncio.get_running_loop().run_in_executor(None, read, self._file)
            self._reading.add_done_callback(self._read)

    def over(self, handlers: Handlers) -> dict[str, Handler]:
        """The same handlers, behind the guard. Raises KeyError for a method that nobody said the needs of."""
        if self._principals is None:
            guarded = dict(handlers)
        else:
            guarded = {name: partial(self._check, NEEDS[name], handle) for name, handle in handlers.items()}
        for name in _ADMINISTRATIVE & guarded.keys():
            guarded[name] = partial(self._told, guarded[name])
        if self._pace is None:
            return guarded
        return {name: partial(self._bound, self._pace, handle) for name, handle in guarded.items()}

    def proven(self, ask: Ask) -> Ask:
        """`ask` of other hosts, with the proof that it is a host who asks."""
        if self._proof is None:
            return ask

        def asked(address: str, method: str, request: Any, timeout_ms: int, done: Done) -> None:
            context = request.context
            if context is None:
                context = request.context = idl.RequestContext()
            context.host_proof = self._proof
            if self._principals is None:
                context.principal = None  # who was not asked to prove it may say anything
            ask(address, method, request, timeout_ms, done)

        return asked

    def introduction(self) -> tuple[str, Any] | None:
        """(method, request) by which this host proves itself on a connection before its first large request; None
        without a secret. The other host may ask for proofs although this one does not."""
        if self._proof is None:
            return None
        return "GetServerInfo", idl.GetServerInfoRequest(context=idl.RequestContext(host_proof=self._proof))

    # ------------------------------------------------------------------------------------- inside

    def _read(self, reading: asyncio.Future[Principals]) -> None:
        if reading is not self._reading:
            reading.exception()  # it counts no more, as what was begun later may have been done before
            return
        try:
            self._principals = reading.result()
            log.info("principals.reloaded", principals=len(self._principals.by_name))
        except Invalid as error:
            log.error("principals.not_reloaded", reason=error.message)

    def _bound(self, pace: Pace, handle: Handler, call: Call) -> None:
        context = call.request.context
        # Who shows a wrong proof is a client, too: the handler behind this refuses it.
        if context is None or context.host_proof is None or not self._proves(context.host_proof):
            wait_ms = pace.wait_ms(call.peer.rpartition(":")[0], self._now_s())
            if wait_ms:
                raise Overloaded("too many requests from this address", wait_ms)
        handle(call)

    def _check(self, need: Right | str, handle: Handler, call: Call) -> None:
        try:
            self._admit(need, call)
        except (Unauthenticated, Forbidden) as error:
            self._audit.refused(call, error.message)
            raise
        handle(call)

    def _told(self, handle: Handler, call: Call) -> None:
        context = call.request.context
        if context is not None and self._principals is None:
            context.principal = None  # who was not asked to prove it may say anything
        handle(call)
        if context is None or not context.hops:  # else the first host told
            self._audit.admin(call)

    def _admit(self, need: Right | str, call: Call) -> None:
        """Raises Unauthenticated, Forbidden."""
        context = call.request.context
        if context is None:
            context = call.request.context = idl.RequestContext()
        claimed, context.principal = context.principal, None
        is_host = context.host_proof is not None and self._is_host(context.host_proof)
        if is_host:
            call.trust()
        if need is _HOST:
            if not is_host:
                raise Forbidden("only hosts of the cluster may ask this")
            return
        if is_host and need is _ANYBODY and claimed is None and context.token is None:
            return  # the host asks for itself
        if context.hops and not is_host:
            raise Forbidden("hops: only hosts of the cluster forward requests")
        who = self._vouched(call, claimed) if is_host else self._proven(call, call.certified)
        call.trust()
        # Another host believes what this one says, so the token goes no further.
        context.principal, context.token, context.host_proof = who.name, None, None
        self._look_at(need, who, call)

    def _is_host(self, proof: str) -> bool:
        if not self._proves(proof):
            raise Unauthenticated("host_proof: the cluster's secret is another one")
        return True

    def _proves(self, proof: str) -> bool:
        return self._proof is not None and hmac.compare_digest(proof.encode(), self._proof.encode())

    def _vouched(self, call: Call, name: str | None) -> Principal:
        """For whom a host says that it asks. One without principals says nothing and passes the token on; the
        certificate is its own then, and nobody's proof.
        """
        assert self._principals is not None
        if name is None:
            return self._proven(call, ())
        found = self._principals.by_name.get(name)
        if found is None:
            raise Unauthenticated("this host's principals_file does not have the principal")
        return found

    def _proven(self, call: Call, certified: Sequence[str]) -> Principal:
        """Whom a token or a certificate is of."""
        assert self._principals is not None
        token = call.request.context.token
        if token is not None:
            found, why = self._principals.of_token(token), "the token is not valid"
        elif certified:
            found, why = self._principals.of_certificate(certified), "nobody is known by the client's certificate"
        else:
            found, why = None, "a token or a client's certificate is needed"
        if found is None:
            raise Unauthenticated(why)
        return found

    def _look_at(self, need: Right | str, who: Principal, call: Call) -> None:
        if need is _ANYBODY:
            return
        namespaces = who.may(need) if isinstance(need, Right) else who.sees
        ns = getattr(call.request, "ns", None)
        if ns is None:
            if not namespaces:
                raise Forbidden(_may_not(who, need, "any namespace"))
            if not namespaces.everywhere:
                call.within = namespaces
        elif ns not in namespaces:
            raise Forbidden(_may_not(who, need, f"the namespace {ns[:255]!r}"))


def _may_not(who: Principal, need: Right | str, where: str) -> str:
    return f"{who.name} has no right {need.value + ' ' if isinstance(need, Right) else ''}in {where}"


def proof_of(cluster_secret: str) -> str:
    """What hosts show each other: made of the secret, which itself is sent nowhere."""
    return hmac.new(cluster_secret.encode(), b"a host of this foqs cluster", "sha256").hexdigest()


def make_guard(config: Config, now_s: Callable[[], float]) -> Guard:
    """Raises Invalid: a file cannot be read, or what it holds is wrong."""
    auth, a_second = config.auth or AuthSection(), config.server.requests_per_second_per_address
    pace = None if a_second is None else Pace(a_second)
    return Guard(auth.principals_file, auth.cluster_secret, pace, now_s)
