"""A client that says exactly what a test wants: every field as given, one frame a call, nothing repeated."""

import socket
import ssl
import time
from typing import Any

from foqs.idl import idl
from tests.rpc.serving import Peer, decoded, framed, message

PATIENCE_S = 60.0

Code = idl.ErrorCode
State = idl.ItemState
Delivery = idl.Delivery


class Refused(Exception):
    """The server threw RequestError."""

    def __init__(self, error: Any) -> None:
        super().__init__(f"{error.code} {error.message}")
        self.code: int = error.code
        self.message: str = error.message
        self.retry_after_ms: int | None = error.retry_after_ms


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def spec(topic: Any, payload: Any = b"", **fields: Any) -> Any:
    return idl.ItemSpec(topic=topic, payload=payload, **fields)


class Wire(Peer):
    """One connection. Methods are the contract's; keywords are fields of the request."""

    def __init__(
        self, address: tuple[str, int], ns: str = "test", tls: ssl.SSLContext | None = None, **context: Any
    ) -> None:
        """`context` are fields of the RequestContext of every call that names none."""
        super().__init__(address, tls)
        self._context = context
        self.socket.settimeout(PATIENCE_S)
        self.ns = ns
        self._sequence = 0

    # ---------------------------------------------------------------------------------- any call

    def send_call(self, method: str, **fields: Any) -> None:
        """Sends and does not wait."""
        self._sequence += 1
        if self._context:
            fields = {"context": idl.RequestContext(**self._context)} | fields
        self.send(framed(message(method, getattr(idl, f"{method}Request")(**fields), self._sequence)))

    def receive(self, method: str) -> Any:
        """The response; raises Refused."""
        content = self.frame()
        assert content is not None, f"the server closed the connection instead of answering {method}"
        seqid, result = decoded(content, method)
        assert seqid == self._sequence
        if isinstance(result, idl.RequestError):
            raise Refused(result)
        return result

    def ask(self, method: str, **fields: Any) -> Any:
        self.send_call(method, **fields)
        return self.receive(method)

    def server_has_seen(self, other: "Wire") -> None:
        """Returns when the server has read what `other` sent: both are read by one loop, in the order of arrival.

        Two rounds, as one turn of the loop may take the two sockets in any order.
        """
        assert other is not self
        for _ in range(2):
            self.ask("GetServerInfo")

    def reset(self) -> None:
        """Goes away without a word."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    # ---------------------------------------------------------------------------------- enqueue

    def outcomes(self, *items: Any, ns: Any = None, **fields: Any) -> list[Any]:
        """Enqueues; one outcome each, of which exactly one field is set."""
        made = self.ask("Enqueue", ns=self.ns if ns is None else ns, items=list(items), **fields).outcomes
        assert len(made) == len(items)
        assert all((outcome.id is None) != (outcome.error is None) for outcome in made)
        return made

    def enqueue(self, *items: Any, **fields: Any) -> list[int]:
        """Enqueue items; each must be stored."""
        made = self.outcomes(*items, **fields)
        assert [outcome.error for outcome in made if outcome.error is not None] == []
        assert all(outcome.id > 0 for outcome in made)
        return [outcome.id for outcome in made]

    def put(self, topic: str, *payloads: bytes, ns: Any = None, **fields: Any) -> list[int]:
        """One item for each payload, alike otherwise."""
        return self.enqueue(*(spec(topic, payload, **fields) for payload in payloads), ns=ns)

    def refusal(self, item: Any) -> str:
        """Enqueue an item between two good ones. It must be INVALID and they stored. Return the reason."""
        before, outcome, after = self.outcomes(spec("neighbour"), item, spec("neighbour"))
        self.delete(before.id, after.id)
        assert outcome.error is not None, "it was taken"
        assert outcome.error.code == Code.INVALID, outcome
        assert outcome.error.message
        assert outcome.error.retry_after_ms is None
        return str(outcome.error.message)

    # ---------------------------------------------------------------------------------- dequeue

    def dequeue(self, topic: str, count: int = 1, **fields: Any) -> list[Any]:
        return self.take([(topic, count)], **fields)

    def take(self, wants: list[tuple[str, int]], ns: Any = None, **fields: Any) -> list[Any]:
        wanted = [idl.TopicCount(topic, count) for topic, count in wants]
        return list(self.ask("Dequeue", ns=self.ns if ns is None else ns, wants=wanted, **fields).items)

    def one(self, topic: str, wait_ms: int = 30_000, **fields: Any) -> Any:
        """The next item, which has to come."""
        items = self.dequeue(topic, wait_ms=wait_ms, **fields)
        assert len(items) == 1, "nothing came"
        return items[0]

    def drain(self, topic: str, count: int = 1000) -> list[Any]:
        """All that is ready, acked."""
        found: list[Any] = []
        while items := self.dequeue(topic, count):
            assert self.ack(*items) == [0] * len(items)
            found += items
        return found

    def hold_nothing_back(self, *topics: str) -> None:
        """Return when one answer may hold all ready items of `topics`. A shard that is late in writing its leases, for
        example after the test before this one, leases nothing, and an answer has only the items of other shards that
        precede its own. A listing makes each shard of the topic write all its leases."""
        for topic in topics:
            self.listed(topic, 1000)

    # ---------------------------------------------------------------------------------- leases; 0 stands for done

    def ack(self, *items: Any, **fields: Any) -> list[int]:
        return self.settle("Ack", [idl.AckItem(item.id, item.lease) for item in items], **fields)

    def nack(self, item: Any, ns: Any = None, **fields: Any) -> int:
        return self.settle("Nack", [idl.NackItem(item.id, item.lease, **fields)], ns=ns)[0]

    def extend(self, item: Any, lease_ms: int | None = None, ns: Any = None) -> int:
        return self.settle("ExtendLease", [idl.ExtendItem(item.id, item.lease, lease_ms)], ns=ns)[0]

    def delete(self, *ids: int, **fields: Any) -> list[int]:
        return codes(self.ask("DeleteItems", ids=list(ids), **fields).outcomes)

    def settle(self, method: str, items: list[Any], **fields: Any) -> list[int]:
        outcomes = self.ask(method, items=items, **fields).outcomes
        assert len(outcomes) == len(items)
        return codes(outcomes)

    # ---------------------------------------------------------------------------------- looking

    def look(self, item_id: int) -> Any:
        return self.ask("GetItem", id=item_id)

    def state(self, item_id: int) -> int | None:
        """None when there is no such item."""
        try:
            return int(self.look(item_id).state)
        except Refused as refused:
            assert refused.code == Code.NOT_FOUND
            return None

    def listed(self, topic: str, limit: int | None = None, state: int | None = None) -> list[Any]:
        """All items of a topic, page by page."""
        found: list[Any] = []
        cursor = None
        while True:
            page = self.ask("ListItems", ns=self.ns, topic=topic, limit=limit, state=state, cursor=cursor)
            assert len(page.items) <= (limit or 100)
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found


def codes(outcomes: list[Any]) -> list[int]:
    """Of each outcome the error's code, 0 for none."""
    assert all(outcome.error is None or outcome.error.message for outcome in outcomes)
    return [0 if outcome.error is None else outcome.error.code for outcome in outcomes]
