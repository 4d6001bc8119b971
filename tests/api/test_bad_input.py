"""Ten thousand of each kind of bad input at a real host, while a neighbour is served all along."""

import itertools
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from thriftpy2.thrift import TApplicationException

from foqs.idl import idl
from tests.api.hosts import HostProcess
from tests.api.wire import Wire
from tests.rpc.serving import decoded, framed, i32, message
from tests.rpc.test_abuse import BAD, COUNT, SECRET, VALID, Thrower

_METHODS = sorted(idl.Foqs.thrift_services)
_SLOWEST_S = 30.0


class Target:
    """What the thrower asks for connections."""

    def __init__(self, host: HostProcess) -> None:
        self._address = host.address

    def peer(self) -> Wire:
        return Wire(self._address)


class Neighbour:
    """Goes through the life of items full of SECRET; every answer must be right and fast."""

    def __init__(self, host: HostProcess) -> None:
        self.calls = 0
        self.slowest_s = 0.0
        self._address = host.address
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Wire(self._address, ns="neighbour") as wire:
                while not self._stop.wait(0.02):
                    began = time.monotonic()
                    ids = wire.put("secret", *(SECRET * n for n in range(1, 6)))
                    items = wire.dequeue("secret", 10, wait_ms=20_000)
                    while len(items) < 5:
                        items += wire.dequeue("secret", 10, wait_ms=20_000)
                    assert sorted(item.id for item in items) == sorted(ids)
                    assert sorted(len(item.payload) // len(SECRET) for item in items) == [1, 2, 3, 4, 5]
                    assert wire.ack(*items) == [0] * 5
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                    self.calls += 1
        except BaseException as failure:  # noqa: BLE001 - stop() raises it
            self._failure = failure

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert self._failure is None
        assert self.calls > 0
        assert self.slowest_s < _SLOWEST_S


@pytest.fixture
def thrower(host: HostProcess) -> Iterator[Thrower]:
    neighbour, thrower = Neighbour(host), Thrower(Target(host))  # type: ignore[arg-type]
    yield thrower
    thrower.stop()
    neighbour.stop()


def requests() -> list[bytes]:
    """A valid message of every method, with every field that may be given."""
    context = idl.RequestContext("token", "request", "trace", 1000, 0)
    wants = [idl.TopicCount("t", 1, 1, 1, 1)] * 2
    made = {
        "Dequeue": idl.DequeueRequest("ns", wants, 1000, 1, 1000, "w", True, 1, 2, context),
        "Ack": idl.AckRequest([idl.AckItem(1, 2)] * 3, "ns", context),
        "Nack": idl.NackRequest([idl.NackItem(1, 2, 3, b"meta", False, "why")] * 2, "ns", context),
        "ExtendLease": idl.ExtendLeaseRequest(
            [idl.ExtendItem(1, 2, 3000, True, b"state", idl.Progress(1, 2, "text"), ["line"], True)] * 3, "ns", context
        ),
        "GetActiveTopics": idl.GetActiveTopicsRequest("ns", 10, "cursor", True, True, True, context),
        "GetItem": idl.GetItemRequest(5, "ns", "key", context),
        "GetResult": idl.GetResultRequest(5, 0, context),
        "CreateBatch": idl.CreateBatchRequest(
            "ns", idl.ItemSpec("t", b"x"), idl.ItemSpec("t", b"x", b"m", {"a": "b"}), 60_000, 1 << 60, context
        ),
        "CloseBatch": idl.CloseBatchRequest("ns", 5, context),
        "CancelBatch": idl.CancelBatchRequest("ns", 5, context),
        "GetBatch": idl.GetBatchRequest("ns", 5, context),
        "ReportMembers": idl.ReportMembersRequest(
            1, [idl.MemberReport(5, 2, 1, 1, idl.BatchCounts(1, 0, 0, 0, 0, 0, 0, 0), [5], "ns")] * 2, context
        ),
        "AskMembers": idl.AskMembersRequest(1, [idl.MemberQuestion(5, True, True)] * 2, context),
        "ListItems": idl.ListItemsRequest(
            "ns", "topic", 1, 10, "cursor", 1, "acme", idl.ItemFilter(1, 2, 3, 4, {"a": "b"}, "c", "k", 5), 5, context
        ),
        "DeleteItems": idl.DeleteItemsRequest([1, 2, 3], context),
        "ChangeItems": idl.ChangeItemsRequest([1, 2, 3], 1, 5, context=context),
        "GetServerInfo": idl.GetServerInfoRequest(True, context),
        "GetRouting": idl.GetRoutingRequest(7, 0, context),
        "WatchTopics": idl.WatchTopicsRequest(7, 0, context),
        "GiveSlot": idl.GiveSlotRequest(1, 5, 7, bytes(16), 10, context),
        "ListSchedules": idl.ListSchedulesRequest("ns", "prefix", 10, "cursor", context),
        "RunSchedule": idl.RunScheduleRequest("ns", "name", "key", context),
        "CancelItem": idl.CancelItemRequest("ns", "key", True, 5, context),
        "ReplaceItems": idl.ReplaceItemsRequest([idl.ReplaceItem(5, idl.ItemSpec("t", b"x"))], "ns", context),
        "ChangeKeys": idl.ChangeKeysRequest(1, [idl.RememberedKey(bytes(16), None, 5, 1 << 60)], context),
        "TakeTokens": idl.TakeTokensRequest("ns", "holder", 1, 5, 0, 0, "topic", context),
        "Lend": idl.LendRequest(
            "holder",
            [idl.TokenAsk("ns", "key", 1, 5, 0, 0)] * 2,
            [idl.SlotAsk("ns", "key", 1, 1, 1, 2, 1, 3, 0, 5)],
            context,
        ),
        "CountSlots": idl.CountSlotsRequest([idl.SlotKey("ns", "key")] * 2, [1, 2], context),
        "TellSlots": idl.TellSlotsRequest([idl.SlotNews("ns", "key", 1)] * 2, context),
        "CountItems": idl.CountItemsRequest("ns", "topic", context),
        "TellShares": idl.TellSharesRequest(
            "a",
            [idl.TopicShare("ns", "topic", [idl.TenantShare("f", 5)] * 2)] * 2,
            [idl.TopicUrgency("ns", "topic")] * 2,
            context,
        ),
        "GetSettings": idl.GetSettingsRequest("ns", "topic.", context),
        "GetSettingsLog": idl.GetSettingsLogRequest("ns", "topic.", 10, context),
        "PutSettings": idl.PutSettingsRequest("ns", {"a": "b", "c": "d"}, ["e", "f"], 3, context),
        "AwaitSettings": idl.AwaitSettingsRequest("ns", 7, 0, context),
        "ListFailures": idl.ListFailuresRequest("ns", "t.dlq", 1, 10, "cursor", "f", context),
        "RedriveItems": idl.RedriveItemsRequest(
            "ns",
            "t.dlq",
            5,
            idl.FailureFilter(7, 1, "why", 2, 1, "f", {"a": "b"}, 1, 9, "t", 5),
            1,
            "t",
            100,
            True,
            1,
            "cursor",
            [idl.FailureGroup(1, 7, 2)] * 2,
            context,
        ),
        "ListFailing": idl.ListFailingRequest("ns", "topic", 5, context),
        "TryHook": idl.TryHookRequest("ns", "on_failure", None, "source", idl.ItemSpec("t", b""), 1, 1, "why", context),
        "ReleaseLeases": idl.ReleaseLeasesRequest("ns", "t", "worker", 5, "reason", context),
        "ExplainItem": idl.ExplainItemRequest(None, "ns", "t", context),
        "AckAndDequeue": idl.AckAndDequeueRequest(
            "ns", [idl.AckItem(1, 2)] * 2, wants, 1000, 1, 1000, "w", 1, True, 2, context
        ),
        "GetThrottles": idl.GetThrottlesRequest("ns", "prefix", 10, "cursor", context),
        "GetTopicStats": idl.GetTopicStatsRequest("ns", "topic", 5, context),
        "GetStatus": idl.GetStatusRequest(context),
        "ListConsumers": idl.ListConsumersRequest("ns", "topic", 5, context),
        "GetRates": idl.GetRatesRequest("ns", 5, 5, True, context),
    }
    assert sorted([*made, "Enqueue"]) == _METHODS
    return [VALID, *(message(method, request) for method, request in made.items())]


def truncations() -> Iterator[bytes]:
    """Every one of a message of every method: a whole frame with a part of the message, and the beginning of a frame
    with the end of the connection."""
    for content in requests():
        for size in range(1, len(content)):
            yield framed(content[:size])
            yield framed(content)[: size + 3]


def a_value(ttype: int, dice: random.Random, depth: int) -> bytes:
    """Any value of that type."""
    if ttype in (2, 3):
        return dice.randbytes(1)
    if ttype == 6:
        return dice.randbytes(2)
    if ttype == 8:
        return struct.pack(">i", dice.choice((0, 1, -1, 7, 2**31 - 1, -(2**31))))
    if ttype in (4, 10):
        return struct.pack(">q", dice.choice((0, 1, -1, 5 << 48, 2**63 - 1, -(2**63))))
    if ttype == 11:
        text = dice.choice((b"", b"a", b"\xff\xfe", b"a\0b", b"t" * 300, "ü".encode()))
        return i32(len(text)) + text
    if ttype == 12:
        return b"".join(a_field(dice, depth - 1) for _ in range(dice.randint(0, 3))) + b"\0"
    count = dice.randint(0, 3)
    if ttype == 13:
        key, value = a_type(dice, depth - 1), a_type(dice, depth - 1)
        pairs = b"".join(a_value(key, dice, depth - 1) + a_value(value, dice, depth - 1) for _ in range(count))
        return bytes((key, value)) + i32(count) + pairs
    element = a_type(dice, depth - 1)
    return bytes((element,)) + i32(count) + b"".join(a_value(element, dice, depth - 1) for _ in range(count))


def a_type(dice: random.Random, depth: int) -> int:
    return dice.choice((2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15) if depth > 0 else (2, 3, 4, 6, 8, 10, 11))


def a_field(dice: random.Random, depth: int) -> bytes:
    ttype = a_type(dice, depth)
    return bytes((ttype, 0, dice.choice((1, 2, 3, 4, 5, 6, 10, 15, 16, 99)))) + a_value(ttype, dice, depth)


def wrong_types(dice: random.Random) -> bytes:
    """A well formed call of any method whose fields are of any type."""
    method = dice.choice(_METHODS).encode()
    fields = b"".join(a_field(dice, 3) for _ in range(dice.randint(0, 5)))
    request = dice.choice((b"\x0c\0\1" + fields + b"\0", a_field(dice, 3)))
    return framed(b"\x80\x01\0\1" + i32(len(method)) + method + i32(1) + request + b"\0")


def absurd_lists(dice: random.Random) -> bytes:
    """A call of any method that declares more than it holds, or than anybody could want."""
    method = dice.choice(_METHODS).encode()
    count = i32(dice.choice((10_001, 10_000_000, 2**31 - 1, -1, -(2**31))))
    field = dice.choice((b"\x0f", b"\x0e")) + bytes((0, dice.randint(1, 4), dice.randint(0, 16))) + count
    head = b"\x80\x01\0\1" + i32(len(method)) + method + i32(1) + b"\x0c\0\1"
    return framed(head + field + b"\0" * dice.choice((0, 2, 50, 20_000)))


def check(answer: bytes) -> None:
    """A typed error or a good answer, and nothing in it of how the host is made."""
    for method in _METHODS:
        if answer[8 : 8 + len(method) + 4].startswith(method.encode()):
            _, result = decoded(answer, method)
            text = repr(result)
            break
    else:
        _, refused = decoded(answer, "Enqueue")
        assert isinstance(refused, TApplicationException)
        text = str(refused)
    for inside in ("Traceback", ".py", "SELECT", "UPDATE", "sqlite", "internal error", "object at 0x"):
        assert inside not in text, text


KINDS: list[Callable[[random.Random], bytes]] = [*BAD, wrong_types, absurd_lists]


@pytest.mark.slow
@pytest.mark.parametrize("bad", KINDS, ids=lambda bad: str(bad.__name__))
def test_ten_thousand_bad_inputs(thrower: Thrower, bad: Callable[[random.Random], bytes]) -> None:
    """Each is answered with something typed or costs its one connection."""
    dice = random.Random(23)
    for _ in range(COUNT):
        answer = thrower.throw(bad(dice))
        if answer is not None:
            check(answer)
    assert thrower.closed + thrower.answered == COUNT


@pytest.mark.slow
def test_every_truncation_of_valid_frames(thrower: Thrower) -> None:
    """None of them is answered; each costs its one connection."""
    for bad in truncations():
        assert thrower.throw(bad) is None
    assert thrower.closed > COUNT // 2, "there are thousands"


@pytest.mark.slow
def test_resident_memory_is_stable(host: HostProcess, thrower: Thrower) -> None:
    """Between the second and the third ten thousand the host grows by less than 8 MiB."""
    dice, cut = random.Random(29), itertools.cycle(truncations())
    kinds: list[Callable[[random.Random], bytes]] = [*KINDS, lambda _: next(cut)]
    sizes = []
    for _ in range(3):
        for number in range(COUNT):
            thrower.throw(kinds[number % len(kinds)](dice))
        sizes.append(host.rss_bytes())
    assert sizes[2] - sizes[1] < 8 << 20, sizes


def test_a_slow_frame_costs_its_connection(start_dev: Callable[..., HostProcess]) -> None:
    """A frame that stays incomplete ends its connection; an idle connection stays open."""
    host = start_dev(FOQS_SERVER__FRAME_READ_MS="500")
    with Wire(host.address) as quiet, Wire(host.address) as slow:
        slow.send(framed(VALID)[:20])
        assert slow.is_closed()
        assert quiet.ask("GetServerInfo").version
