"""What the server did, counted. Plain integers that only the event loop changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from foqs.errors import Code


class MethodCounters:
    """Of answered calls: `request_bytes` and `answer_bytes` are those of whole frames, `errors` answers that were a
    RequestError."""

    __slots__ = ("answer_bytes", "calls", "errors", "request_bytes")

    def __init__(self) -> None:
        self.calls = 0
        self.request_bytes = 0
        self.answer_bytes = 0
        self.errors: Counter[Code] = Counter()


@dataclass(slots=True)
class RpcCounters:
    """`connections` is how many are open now; everything else only grows.

    `closed` counts connections the server closed, by why (CLOSED; "slow frame" is a TLS handshake too, "tls" one that
    failed, or bytes that are not TLS). `refused` counts whole frames that reached no handler, by why (REFUSED).
    `failed` counts handlers that let an exception out or answered with what cannot be encoded, and `lost` calls whose
    caller was gone before the answer.
    """

    methods: dict[str, MethodCounters]
    connections: int = 0
    connections_accepted: int = 0
    connections_refused: int = 0
    failed: int = 0
    too_large: int = 0
    lost: int = 0
    budget_waits: int = 0
    closed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        return sum(method.calls for method in self.methods.values())


CLOSED = ("oversized", "malformed", "slow frame", "slow reader", "idle", "tls")
REFUSED = ("invalid", "unknown method", "message type", "oneway", "unauthenticated")


def counters_of(methods: Iterable[str]) -> RpcCounters:
    return RpcCounters({name: MethodCounters() for name in methods})
