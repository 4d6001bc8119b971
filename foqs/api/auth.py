"""Authentication, authorisation, and the audit log: a caller is checked before its request reaches the handler.

A caller is a client or another host of the cluster. A client proves by token or certificate that it is a principal. A
host proves its part by the cluster's secret, and names the principal for which it calls. Items are not checked here:
where a request names no namespace, `Call.within` holds the namespaces of the caller, and it finds no other items. The
audit log has the requests that were refused because a proof or a right is missing, and administrative requests.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import structlog

from foqs.bounds import NAME_BYTES, LogThrottle, RateLimit
from foqs.config.access import Principal, Principals, Right, read
from foqs.config.load import Config
from foqs.config.schema import AuthSection
from foqs.errors import PROTOCOL_VERSION, FoqsError, Forbidden, Invalid, Overloaded, Unauthenticated
from foqs.idl import idl, trace_of
from foqs.peers.forwarded import Ask
from foqs.policies.settings import Settings
from foqs.rpc.call import Call
from foqs.rpc.hub import Handler
from foqs.rpc.peer_caller import Done
from foqs.settings_log import Value, ValueDigest

log = structlog.get_logger("foqs.host")
_audit_log = structlog.get_logger("foqs.audit")

REFUSED_A_SECOND = 10
ADMIN_A_SECOND = 100
_IDS = 10
_MOST_PASSED = 10_000
_TEXT = 64
_VALUE_BYTES, _MARK = 256, "..."

Handlers = Mapping[str, Handler]

_HOST, _ANYBODY, _SEES = "host", "anybody", "sees"
NEEDS: Mapping[str, Right | str] = {
    "Enqueue": Right.PRODUCE,
    "Dequeue": Right.CONSUME,
    "Ack": Right.CONSUME,
    "Nack": Right.CONSUME,
    "ExtendLease": Right.CONSUME,
    "AckAndDequeue": Right.CONSUME,
    "GetItem": Right.ADMIN,
    "GetResult": _SEES,
    "CancelItem": Right.PRODUCE,
    "CreateBatch": Right.PRODUCE,
    "CloseBatch": Right.PRODUCE,
    "CancelBatch": Right.PRODUCE,
    "GetBatch": _SEES,
    "ListItems": Right.ADMIN,
    "DeleteItems": Right.ADMIN,
    "ChangeItems": Right.ADMIN,
    "ReleaseLeases": Right.ADMIN,
    "ExplainItem": Right.ADMIN,
    "ListFailures": Right.ADMIN,
    "ListFailing": Right.ADMIN,
    "RedriveItems": Right.ADMIN,
    "GetActiveTopics": _SEES,
    "GetTopicStats": _SEES,
    "GetThrottles": _SEES,
    "GetRates": _SEES,
    "ListSchedules": _SEES,
    "RunSchedule": Right.ADMIN,
    "GetSettings": _SEES,
    "GetSettingsLog": Right.ADMIN,
    "PutSettings": Right.ADMIN,
    "TryHook": Right.ADMIN,
    "GetStatus": Right.ADMIN,
    "ListConsumers": Right.ADMIN,
    "GetServerInfo": _ANYBODY,
    "GetRouting": _ANYBODY,
    "WatchTopics": _HOST,
    "GiveSlot": _HOST,
    "ChangeKeys": _HOST,
    "ReportMembers": _HOST,
    "AskMembers": _HOST,
    "ReplaceItems": _HOST,
    "TakeTokens": _HOST,
    "Lend": _HOST,
    "CountItems": _HOST,
    "TellShares": _HOST,
    "CountSlots": _HOST,
    "TellSlots": _HOST,
    "AwaitSettings": _HOST,
}
_ADMINISTRATIVE = frozenset({"ChangeItems", "DeleteItems", "PutSettings", "RedriveItems", "ReleaseLeases"})
_AT_THE_END = frozenset({"PutSettings"})
"""Administrative requests whose handlers write the line, with the outcome (`Audit.settings`)."""


class Guard:
    """The checks of one host. Without `principals_file` every caller has every right. `pace` limits the requests of an
    address."""

    def __init__(
        self,
        principals_file: Path | None,
        cluster_secret: str | None,
        pace: RateLimit | None,
        now_s: Callable[[], float],
        previous_secret: str | None = None,
    ) -> None:
        """Raises Invalid: the file cannot be read, or its content is wrong."""
        self._pace = pace
        self._now_s = now_s
        self._file = principals_file
        self._principals = None if principals_file is None else read(principals_file)
        # (principal, `within`) of clients' requests that passed, by need, token or certificate, and namespace.
        self._passed: dict[tuple[Any, ...], tuple[str, Any]] = {}
        self._reading: asyncio.Future[Principals] | None = None
        self.take_secrets(cluster_secret, previous_secret)
        self._audit = Audit(now_s)

    def trusts(self, certified: tuple[str, ...]) -> bool:
        """Return True if a connection needs no token: authentication is off, or a principal has one of these names of
        its certificate."""
        return self._principals is None or self._principals.of_certificate(certified) is not None

    def rights_of(self, context: Any) -> tuple[str, dict[str, list[str]]] | None:
        """Return the principal of a request that passed the checks, and its rights by pattern of namespaces. None
        where authentication is off, and for a host that asks on its own behalf."""
        if self._principals is None or context is None or context.principal is None:
            return None
        who = self._principals.by_name[context.principal]
        return who.name, who.by_pattern()

    def take_secrets(self, secret: str | None, previous: str | None) -> None:
        """Prove and accept these secrets of the cluster from the next request on."""
        self._proof, self._next_proof = proofs_of(secret, previous)
        self._accepted = [proof.encode() for proof in (self._proof, self._next_proof) if proof is not None]

    def read_again(self) -> None:
        """Read the principals file again, on a thread. Its rights hold from the next request on, as a connection
        has none of its own. An invalid file changes nothing."""
        if self._file is not None:
            self._reading = asyncio.get_running_loop().run_in_executor(None, read, self._file)
            self._reading.add_done_callback(self._read)

    def over(self, handlers: Handlers) -> dict[str, Handler]:
        """Return the same handlers behind the checks. Raises KeyError for a method that is not in `NEEDS`."""
        if self._principals is None:
            guarded = dict(handlers)
        else:
            guarded = {name: partial(self._check, NEEDS[name], handle) for name, handle in handlers.items()}
        for name in _ADMINISTRATIVE & guarded.keys():
            guarded[name] = partial(self._audited, guarded[name])
        if self._pace is None:
            return guarded
        return {name: partial(self._bound, self._pace, handle) for name, handle in guarded.items()}

    def proven(self, ask: Ask) -> Ask:
        """Return `ask` with this host's protocol version, and with the proof that a host asks."""

        def asked(
            address: str, method: str, request: Any, timeout_ms: int, done: Done
        ) -> Callable[[], None] | None:  # fmt: skip
            context = request.context
            if context is None:
                context = request.context = idl.RequestContext()
            context.peer_version = PROTOCOL_VERSION
            context.host_proof, context.host_proof_next = self._proof, self._next_proof
            if self._proof is not None and self._principals is None:
                context.principal = None  # not proven: authentication is off
            return ask(address, method, request, timeout_ms, done)

        return asked

    def introduction(self) -> tuple[str, Any] | None:
        """Return (method, request) by which this host proves itself on a connection before its first large request;
        None without a secret. The other host may require proofs although this one does not."""
        if self._proof is None:
            return None
        context = idl.RequestContext(host_proof=self._proof, host_proof_next=self._next_proof)
        return "GetServerInfo", idl.GetServerInfoRequest(context=context)

    # ------------------------------------------------------------------------------------- inside

    def _read(self, reading: asyncio.Future[Principals]) -> None:
        if reading is not self._reading:
            reading.exception()  # a later reading may have ended before this one
            return
        try:
            self._principals = reading.result()
            self._passed.clear()
            log.info("principals.reloaded", principals=len(self._principals.by_name))
        except Invalid as error:
            log.error("principals.not_reloaded", reason=error.message)

    def _bound(self, pace: RateLimit, handle: Handler, call: Call) -> None:
        context = call.request.context
        # A caller with a wrong proof counts as a client: the handler behind this refuses it.
        if context is None or context.host_proof is None or not self._proves(context):
            wait_ms = pace.wait_ms(call.peer.rpartition(":")[0], self._now_s())
            if wait_ms:
                raise Overloaded("too many requests from this address", wait_ms)
        handle(call)

    def _check(self, need: Right | str, handle: Handler, call: Call) -> None:
        context, ns, asked = call.request.context, getattr(call.request, "ns", None), None
        if context is not None and context.host_proof is None and not context.hops:
            asked = need, call.certified if context.token is None else context.token, ns
            if (passed := self._passed.get(asked)) is not None:
                context.principal, call.within = passed
                context.token = None
                call.trust()
                handle(call)
                return
        try:
            self._admit(need, call)
        except (Unauthenticated, Forbidden) as error:
            self._audit.refused(call, error.message)
            raise
        if asked is not None and (ns is None or len(ns) <= NAME_BYTES):
            if len(self._passed) >= _MOST_PASSED:
                self._passed.clear()
            self._passed[asked] = call.request.context.principal, call.within
        handle(call)

    def _audited(self, handle: Handler, call: Call) -> None:
        context = call.request.context
        if context is not None and self._principals is None:
            context.principal = None  # not proven: authentication is off
        handle(call)
        if call.method not in _AT_THE_END and (context is None or not context.hops):
            self._audit.admin(call)  # with hops, the first host has written the line

    def _admit(self, need: Right | str, call: Call) -> None:
        """Raises Unauthenticated, Forbidden."""
        context = call.request.context
        if context is None:
            context = call.request.context = idl.RequestContext()
        claimed, context.principal = context.principal, None
        is_host = context.host_proof is not None and self._is_host(context)
        if is_host:
            call.trust()
        if need is _HOST:
            if not is_host:
                raise Forbidden("only hosts of the cluster may ask this")
            return
        if is_host and need is _ANYBODY and claimed is None and context.token is None:
            return  # the host asks on its own behalf
        if context.hops and not is_host:
            raise Forbidden("hops: only hosts of the cluster forward requests")
        who = self._vouched(call, claimed) if is_host else self._proven(call, call.certified)
        call.trust()
        # Another host trusts the name that this host gives, so the token goes no further.
        context.principal, context.token = who.name, None
        context.host_proof = context.host_proof_next = None
        self._look_at(need, who, call)

    def _is_host(self, context: Any) -> bool:
        if not self._proves(context):
            raise Unauthenticated("host_proof: the cluster's secret is another one")
        return True

    def _proves(self, context: Any) -> bool:
        if self._accepts(context.host_proof):
            return True
        return context.host_proof_next is not None and self._accepts(context.host_proof_next)

    def _accepts(self, proof: str) -> bool:
        given = proof.encode()
        for accepted in self._accepted:  # noqa: SIM110 - any() takes longer, and every forwarded call comes here
            if hmac.compare_digest(given, accepted):
                return True
        return False

    def _vouched(self, call: Call, name: str | None) -> Principal:
        """Return the principal that another host names. A host without principals names none and passes the token on;
        the certificate is that host's own then, and proves no principal."""
        assert self._principals is not None
        if name is None:
            return self._proven(call, ())
        found = self._principals.by_name.get(name)
        if found is None:
            raise Unauthenticated("this host's principals_file does not have the principal")
        return found

    def _proven(self, call: Call, certified: Sequence[str]) -> Principal:
        """Return the principal of a token or a certificate."""
        assert self._principals is not None
        token = call.request.context.token
        if token is not None:
            found, why = self._principals.of_token(token), "the token is not valid"
        elif certified:
            found, why = self._principals.of_certificate(certified), "no principal has the client's certificate"
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
    """Return the proof that hosts send each other. It is derived from the secret, which is never sent."""
    return hmac.new(cluster_secret.encode(), b"a host of this foqs cluster", "sha256").hexdigest()


def proofs_of(secret: str | None, previous: str | None) -> tuple[str | None, str | None]:
    """Return `host_proof` and `host_proof_next` of a host with these secrets.

    While the secret is replaced, a host that has only the old one accepts the first, and a host that has only the new
    one the second. The old one is the first, because hosts of earlier versions read no other.
    """
    if secret is None:
        return None, None
    return (proof_of(secret), None) if previous is None else (proof_of(previous), proof_of(secret))


def make_guard(config: Config, now_s: Callable[[], float]) -> Guard:
    """Raises Invalid: a file cannot be read, or its content is wrong."""
    auth, a_second = config.auth or AuthSection(), config.server.requests_per_second_per_address
    pace = RateLimit(a_second) if a_second else None
    return Guard(auth.principals_file, auth.cluster_secret, pace, now_s, auth.cluster_secret_previous)


class Audit:
    """Bounded, so that no caller fills a disk with it: `left_out` in a line counts the lines that were not written
    before it. `now_s` is monotonic."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._refusals = LogThrottle(REFUSED_A_SECOND)
        self._admin = LogThrottle(ADMIN_A_SECOND)

    def refused(self, call: Call, why: str) -> None:
        left_out = self._refusals.take(self._now_s())
        if left_out is not None:
            _audit_log.warning("audit.refused", why=why, **_said(call), left_out=left_out)

    def admin(self, call: Call) -> None:
        """The request was started; its outcome is not part of the line."""
        left_out = self._admin.take(self._now_s())
        if left_out is not None:
            _audit_log.info("audit.admin", **_SUBJECTS[call.method](call.request), **_said(call), left_out=left_out)

    def settings(self, call: Call, outcome: Settings | FoqsError) -> None:
        """A change of settings was made, with the values of the first keys, or refused."""
        left_out = self._admin.take(self._now_s())
        if left_out is not None:
            subject = _refused(call.request, outcome) if isinstance(outcome, FoqsError) else _changed(outcome)
            _audit_log.info("audit.admin", **subject, **_said(call), left_out=left_out)


def caller_of(call: Call) -> str:
    """Return the author of a change: the principal, the first name of its certificate, its program with its host, or
    its `host:port`."""
    said, program = _said(call), call.request.context and call.request.context.program
    where = f"{_short(program)} at {call.peer.rpartition(':')[0]}" if program else call.peer
    return str(said.get("who") or said.get("certificate") or where)


def _items(request: Any) -> dict[str, Any]:
    ids = request.ids or ()
    return {"items": len(ids), "first": ids[:_IDS]}


def _items_changed(request: Any) -> dict[str, Any]:
    names = ("priority", "delay_ms", "deliver_after_ms")
    given = {name: value for name in names if (value := getattr(request, name)) is not None}
    return {**_items(request), **given}


def _refused(request: Any, error: FoqsError) -> dict[str, Any]:
    """Return the first keys of the request, those to set and to remove, and the kind of the error."""
    keys, remove = list(request.entries or ()), list(request.remove or ())
    return {
        "ns": _short(request.ns or ""),
        "entries": len(keys),
        "first": [_short(key) for key in keys[:_IDS]],
        "remove": len(remove),
        "first_removed": [_short(key) for key in remove[:_IDS]],
        "error": error.code.name,
    }


def _changed(made: Settings) -> dict[str, Any]:
    """Return the number of changed keys, and the first of them with their old and new values."""
    record = next((one for one in made.log.records[-1:] if one.version == made.version), None)
    changes = {} if record is None else record.changes
    return {
        "ns": _short(made.ns),
        "version": made.version,
        "changed": len(changes) + (0 if record is None else record.left_out),
        "changes": [
            {"key": _cut(key), "old": _cut(old), "new": _cut(new)} for key, (old, new) in islice(changes.items(), _IDS)
        ],
    }


def _cut(value: Value) -> str | None:
    """Return a key or a value in at most `_VALUE_BYTES`, with a mark where it is cut at a character; None for none."""
    if isinstance(value, ValueDigest):
        return f"({value.size_bytes} bytes)"
    if value is None:
        return None
    data = _one_line(value).encode()
    if len(data) <= _VALUE_BYTES:
        return data.decode()
    return data[: _VALUE_BYTES - len(_MARK)].decode(errors="ignore") + _MARK


def _topic(request: Any) -> dict[str, Any]:
    return {"ns": _short(request.ns or ""), "topic": _short(request.topic or "")}


def _redrive(request: Any) -> dict[str, Any]:
    return {**_topic(request), "count": request.count, "dry_run": bool(request.dry_run)}


_SUBJECTS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "DeleteItems": _items,
    "ChangeItems": _items_changed,
    "ReleaseLeases": _topic,
    "RedriveItems": _redrive,
}
"""The fields about the subject of each administrative request."""


def _short(text: str | bytes) -> str:
    return _one_line(str(text)[:_TEXT])


def _said(call: Call) -> dict[str, Any]:
    """Return the fields about the caller: the first name of a certificate, and nothing of a token."""
    context = call.request.context
    said: dict[str, Any] = {"method": call.method, "address": call.peer}
    if context is not None and context.principal is not None:
        said["who"] = context.principal
    elif call.certified:
        said["certificate"] = _one_line(call.certified[0][:128])
    if context is not None and context.request_id is not None:
        said["request_id"] = context.request_id
    return {**said, **trace_of(context)}


def _one_line(text: str) -> str:
    """Return the caller's text so that it cannot look like a line of the log."""
    return text if text.isprintable() else ascii(text)
