"""Objects of a handler that raise when they are read: the item fails with a reason, and every thread works on."""

import datetime
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from foqs.bounds import REASON_BYTES
from foqs.client import AckPolicy, Backoff, Client, Invalid, Item, ItemSpec, Job, Retry, Worker
from foqs.client.handlers import reason_of
from tests.client.peer import LATER, eventually

Handle = Callable[[Item, Job], object]


@pytest.fixture
def work(start_worker: Any) -> Any:
    """`work(client, act, ...)` is a worker whose handler calls `act(item, job)` in the first attempt of an item."""

    def start(client: Any, act: Handle, **options: Any) -> Worker:
        def handle(item: Item, job: Job) -> object:
            return act(item, job) if item.attempt == 1 else None

        return start_worker(client, handle, **{"concurrency": 1, **options})

    return start


class Loud(type):
    """A metaclass whose classes have no readable name."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise OSError("no name")


def raising(what: type[BaseException] = OSError) -> Any:
    def fail(*_: object) -> Any:
        raise what("broken")

    return fail


class NoText(Exception):
    __str__ = __repr__ = __format__ = raising()


class ExitingText(Exception):
    __str__ = raising(SystemExit)


class TextOfNoText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307


class OddText(Exception):
    def __str__(self) -> str:
        class Odd(str):
            encode = __len__ = __bool__ = __format__ = __getitem__ = raising()

        return Odd("odd")


class NoName(Exception, metaclass=Loud):
    pass


class NoClass(Exception):
    __class__ = property(raising())  # type: ignore[assignment]


class NoCause(Exception):
    __cause__ = __context__ = __traceback__ = property(raising())  # type: ignore[assignment]


class NoAttributes(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise OSError(name)


class NoTruth(Exception):
    __bool__ = __eq__ = __hash__ = raising()  # type: ignore[assignment]


class LateRetry(Retry):
    delay_ms = property(raising(KeyError), lambda *_: None)  # type: ignore[assignment]


class EmptyRetry(Retry):
    def __init__(self) -> None:
        """Leave out what the base class sets."""


def changed_retry() -> Retry:
    retry = Retry()
    retry.delay_ms = datetime.timedelta(seconds=5)  # type: ignore[assignment]
    return retry


ERRORS: list[tuple[str, Callable[[], BaseException], str]] = [
    ("no text", NoText, "NoText: its text cannot be built: OSError"),
    ("exiting text", ExitingText, "ExitingText: its text cannot be built: SystemExit"),
    ("no str", TextOfNoText, "TextOfNoText: its text cannot be built: TypeError"),
    ("odd str", OddText, "OddText: odd"),
    ("no name", lambda: NoName("x"), "NoName: x"),
    ("no class", lambda: NoClass("x"), "NoClass: x"),
    ("no cause", lambda: NoCause("x"), "NoCause: x"),
    ("no attributes", lambda: NoAttributes("x"), "NoAttributes: x"),
    ("no truth", lambda: NoTruth("x"), "NoTruth: x"),
    ("SystemExit", lambda: SystemExit(0), "SystemExit: 0"),
    ("KeyboardInterrupt", KeyboardInterrupt, "KeyboardInterrupt"),
    ("GeneratorExit", GeneratorExit, "GeneratorExit"),
    ("late Retry", LateRetry, "Retry: KeyError: 'broken'"),
    ("changed Retry", changed_retry, "Retry: WrongArgument: delay_ms is of type timedelta"),
    ("empty Retry", EmptyRetry, "Retry: AttributeError: 'EmptyRetry' object has no attribute 'delay_ms'"),
]


@pytest.mark.parametrize(("make", "reason"), [one[1:] for one in ERRORS], ids=[one[0] for one in ERRORS])
def test_an_exception_that_cannot_be_read(
    peer: Any, client_of: Any, work: Any, make: Callable[[], BaseException], reason: str
) -> None:
    client = client_of(peer)
    client.enqueue("t", b"x")

    def act(item: Item, job: Job) -> None:
        raise make()

    worker = work(client, act, report_errors=True)
    eventually(lambda: worker.counts.done == 1)
    (nack,) = peer.nacked
    assert nack.reason.startswith(reason)
    assert nack.failed and nack.delay_ms == 7
    assert worker.counts.failed == 1


@pytest.mark.parametrize("policy", list(AckPolicy))
@pytest.mark.parametrize("make", [one[1] for one in ERRORS], ids=[one[0] for one in ERRORS])
def test_no_policy_loses_its_thread(
    peer: Any, client_of: Any, work: Any, policy: AckPolicy, make: Callable[[], BaseException]
) -> None:
    """The one handler takes the next item."""
    client = client_of(peer)
    client.enqueue_many([ItemSpec("t", b"a"), ItemSpec("t", b"b")])
    seen: list[bytes] = []

    def act(item: Item, job: Job) -> None:
        seen.append(item.payload)
        if item.payload == b"a":
            raise make()

    work(client, act, ack_policy=policy)
    eventually(lambda: seen[:2] == [b"a", b"b"])


class OddBytes(bytes):
    __len__ = __bool__ = __eq__ = __hash__ = __getitem__ = __iter__ = raising()  # type: ignore[assignment]


class OddInt(int):
    __int__ = __index__ = __eq__ = __lt__ = __bool__ = __hash__ = __str__ = raising()  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [bytes, OddBytes, bytearray, memoryview, lambda text: memoryview(b"s.e.e.n.")[::2]])
def test_any_bytes_are_metadata(peer: Any, client_of: Any, work: Any, kind: Any) -> None:
    client, given = client_of(peer), kind(b"seen")
    client.enqueue("t", b"x")

    def act(item: Item, job: Job) -> None:
        job.metadata = given
        if type(given) is bytearray:
            given.clear()  # the job has a copy
        raise Retry(delay_ms=OddInt(3))

    worker = work(client, act)
    eventually(lambda: worker.counts.done == 1)
    (nack,) = peer.nacked
    assert (nack.metadata, nack.delay_ms, nack.reason) == (b"seen", 3, "Retry")


WRONG: list[tuple[str, Handle, str]] = [
    ("metadata", lambda item, job: setattr(job, "metadata", 3), "metadata is of type int"),
    ("text", lambda item, job: setattr(job, "metadata", "text"), "metadata is of type str"),
    ("timedelta", lambda item, job: Retry(datetime.timedelta(seconds=5)), "delay_ms is of type timedelta"),  # type: ignore[arg-type]
    ("float", lambda item, job: Retry(1.5), "delay_ms is of type float: give whole milliseconds"),  # type: ignore[arg-type]
    ("bool", lambda item, job: Retry(True), "delay_ms is of type bool"),
    ("negative", lambda item, job: Retry(-1), "delay_ms is -1: give 0 or more milliseconds"),
    ("long", lambda item, job: Retry(-(10**999)), "delay_ms is a number of 3319 bits"),
    ("far", lambda item, job: Retry(10**30), f"delay_ms is {10**30}: give at most 9223372036854775807 milliseconds"),
    ("far nack", lambda item, job: job.nack(1 << 63), "delay_ms is 9223372036854775808: give at most"),
    ("retry metadata", lambda item, job: Retry(metadata=[1]), "metadata is of type list"),  # type: ignore[arg-type]
    ("nack", lambda item, job: job.nack("5"), "delay_ms is of type str"),  # type: ignore[arg-type]
    ("reason", lambda item, job: job.nack(5, reason=b"secret"), "reason is of type bytes"),  # type: ignore[arg-type]
    ("reject", lambda item, job: job.reject(None), "reason is of type NoneType"),  # type: ignore[arg-type]
    ("extend", lambda item, job: job.extend(datetime.timedelta(1)), "lease_ms is of type timedelta"),  # type: ignore[arg-type]
    ("extend by 0", lambda item, job: job.extend(0), "lease_ms is 0: give 1 or more milliseconds"),
]


@pytest.mark.parametrize(("act", "text"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG])
def test_an_argument_is_checked_where_it_is_given(peer: Any, client_of: Any, work: Any, act: Handle, text: str) -> None:
    """The handler gets Invalid. The reason says why without `report_errors`: it shows no text of a payload."""
    client = client_of(peer)
    client.enqueue("t", b"x")
    caught: list[Invalid] = []

    def check(item: Item, job: Job) -> None:
        try:
            act(item, job)
        except Invalid as error:
            caught.append(error)
            raise

    worker = work(client, check)
    eventually(lambda: worker.counts.done == 1)
    assert text in str(caught[0])
    (nack,) = peer.nacked
    assert nack.reason == f"WrongArgument: {caught[0]}"
    assert "secret" not in nack.reason


def test_a_reason_is_text_that_can_be_sent() -> None:
    assert reason_of(ValueError("\ud800" * 3_000), text=True) == "ValueError: " + "?" * (REASON_BYTES - 12)


def test_a_refused_argument_leaves_the_job_open(peer: Any, client_of: Any, work: Any) -> None:
    client = client_of(peer)
    ids = client.enqueue_many([ItemSpec("t", b"x")])

    def act(item: Item, job: Job) -> None:
        for wrong in (lambda: job.nack(-1), lambda: job.reject(b"no")):  # type: ignore[arg-type]
            with pytest.raises(Invalid):
                wrong()
        job.ack()

    work(client, act, ack_policy=AckPolicy.MANUAL)
    eventually(lambda: peer.acked == ids)


def test_a_handler_may_change_its_item(peer: Any, client_of: Any, work: Any) -> None:
    """The worker's own requests have the item as it came."""
    client = client_of(peer)
    ids = client.enqueue_many([ItemSpec("t", b"a"), ItemSpec("t", b"b")])

    def act(item: Item, job: Job) -> None:
        item.id = item.lease = item.topic = item.payload = item.attempt = item.delivery = ["changed"]  # type: ignore[assignment]
        job.item = None  # type: ignore[assignment]
        job.open = job.held = "changed"  # type: ignore[assignment]
        raise ValueError

    worker = work(client, act, lease_ms=300)
    eventually(lambda: worker.counts.done == 2)
    assert [nack.id for nack in peer.nacked] == ids
    assert not len(worker._leases)


class OddResult:
    __class__ = property(raising())  # type: ignore[assignment]
    __bool__ = __eq__ = __getattr__ = raising()  # type: ignore[assignment]


def test_a_result_that_cannot_be_read_is_a_failure(peer: Any, client_of: Any, work: Any) -> None:
    client = client_of(peer)
    client.enqueue("t", b"x")
    worker = work(client, lambda item, job: OddResult())
    eventually(lambda: worker.counts.done == 1)
    assert [nack.reason for nack in peer.nacked] == ["OSError"]


class OddBackoff(Backoff):
    def delay_ms(self, attempt: int, rng: Any) -> int:
        if attempt == 1:
            raise OSError
        return "soon"  # type: ignore[return-value]


def test_a_backoff_that_fails_is_replaced(peer: Any, client_of: Any, work: Any) -> None:
    client = client_of(peer)
    client.enqueue("t", b"x")

    def act(item: Item, job: Job) -> None:
        raise ValueError

    work(client, act, backoff=OddBackoff())
    eventually(lambda: len(peer.nacked) == 1)
    assert 0 < peer.nacked[0].delay_ms <= 1_000, "that of the default Backoff"


class OddLog(logging.Handler):
    """Raises what a logging of the user may raise, also where the library's own handlers would not."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error
        self.lines = 0

    def handle(self, record: logging.LogRecord) -> bool:
        self.lines += 1
        raise self.error("disk full")


@pytest.mark.parametrize("error", [OSError, SystemExit])
def test_a_log_that_fails_costs_its_line_alone(
    peer: Any, client_of: Any, work: Any, error: type[BaseException], capsys: Any
) -> None:
    client = client_of(peer)
    client.enqueue("t", b"x")
    odd = OddLog(error)
    odd.setLevel(logging.WARNING)  # the line of the worker's start is written by this thread
    logger = logging.getLogger("foqs.client")
    logger.addHandler(odd)
    try:

        def act(item: Item, job: Job) -> None:
            peer.take_over(item.id)
            assert job.lease_lost.wait(LATER)
            raise ValueError

        worker = work(client, act, lease_ms=300)
        eventually(lambda: worker.counts.lost == 1 and odd.lines)
        client.enqueue("t", b"y")
        eventually(lambda: worker.counts.failed + worker.counts.lost == 2)
    finally:
        logger.removeHandler(odd)
    assert f"logging failed: {error.__name__}" in capsys.readouterr().err


def test_on_retry_that_fails_ends_no_call(new_peer: Any, client_of: Any, work: Any, caplog: Any) -> None:
    from tests.client.peer import refused, script

    peer = new_peer(script("Nack", refused(5), refused(5)))
    client: Client = client_of(peer, on_retry=raising(SystemExit))
    client.enqueue("t", b"x")

    def act(item: Item, job: Job) -> None:
        raise ValueError

    worker = work(client, act)
    eventually(lambda: worker.counts.done == 1)
    assert "on_retry of the client failed" in caplog.text


# ------------------------------------------------------------------------------------------ threads that end


def broken(*_: object, **__: object) -> Any:
    raise MemoryError("injected")


def inject_taking(worker: Worker, patch: Any) -> None:
    patch.setattr(worker._room, "wait", broken)


def inject_winding_up(worker: Worker, patch: Any) -> None:
    patch.setattr(worker._hangs, "close", broken)
    worker.stop()


def inject_handler(worker: Worker, patch: Any) -> None:
    patch.setattr(worker._does, "run", broken)


def inject_settler(worker: Worker, patch: Any) -> None:
    patch.setattr(worker._room, "offer", broken)


def inject_outcomes(worker: Worker, patch: Any) -> None:
    patch.setattr(worker._outcomes, "settled", broken)


def inject_extender(worker: Worker, patch: Any) -> None:
    def exits() -> Any:
        raise SystemExit("injected")

    patch.setattr(worker._leases, "extend_due", exits)


INJECTED = [
    inject_taking, inject_winding_up, inject_handler, inject_settler, inject_outcomes, inject_extender,
]  # fmt: skip


@pytest.mark.parametrize("inject", INJECTED, ids=[one.__name__ for one in INJECTED])
def test_a_thread_that_ends_ends_the_worker(
    peer: Any, client_of: Any, monkeypatch: Any, gate: threading.Event, inject: Any
) -> None:
    """One handler is at work, and its lease is extended, until a thread of the worker ends."""
    client = client_of(peer)
    client.enqueue("t", b"a")
    begun = threading.Event()

    def handle(item: Item) -> None:
        begun.set()
        gate.wait(LATER)

    worker = Worker(client, "t", handle, concurrency=2, wait_ms=20, lease_ms=300, grace_ms=0)
    worker.start()
    assert begun.wait(LATER)
    eventually(lambda: peer.named("ExtendLease"))
    inject(worker, monkeypatch)
    if inject in (inject_handler, inject_settler, inject_outcomes):
        gate.set()  # the handler at work ends
        client.enqueue_many([ItemSpec("t", b"b")] * 3)
    with pytest.raises((MemoryError, RuntimeError)) as raised:
        eventually(lambda: worker.join(LATER * 1000))
    assert "injected" in str(raised.value) or "SystemExit" in str(raised.value)
    assert not len(worker._leases), "none is extended any longer"
    gate.set()


def test_a_process_without_threads_begins_no_worker(peer: Any, client_of: Any, monkeypatch: Any) -> None:
    worker = Worker(client_of(peer), "t", lambda item: None, concurrency=3, wait_ms=20)
    start, started = threading.Thread.start, []

    def few(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    with pytest.raises(RuntimeError, match="new thread"):
        worker.start()
    eventually(lambda: not any(thread.is_alive() for thread in started))
