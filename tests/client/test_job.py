"""Which handlers a Worker accepts, and the outcome of work that a handler only returns."""

import asyncio
import functools
import logging
import re
import threading
import warnings
from math import inf

import pytest

import foqs.client._async.job
import foqs.client._sync.job
from foqs.client import Backoff, Delivery, Invalid, Item, ItemSpec, Retry, Worker
from foqs.client._sync.job import handler_call
from foqs.client.guard import NotRun
from tests.client.peer import eventually

ITEM, JOB = object(), object()


async def work(item):
    pass


async def work_with_job(item, job):
    pass


def generate(item):
    yield item


async def generate_async(item):
    yield item


class AsyncCall:
    async def __call__(self, item):
        pass


class AsyncHandle:
    async def handle(self, item, job):
        pass

    async def method(self, item):
        pass

    @staticmethod
    async def static(item):
        pass


class GeneratingHandle:
    def handle(self, item, job):
        yield item


COROUTINES = [
    work, work_with_job, AsyncCall, AsyncCall(), AsyncHandle, AsyncHandle(), AsyncHandle().method, AsyncHandle.static,
    functools.partial(work_with_job, job=None), functools.partial(functools.partial(work)),
    functools.partial(AsyncCall()), functools.partial(AsyncHandle().method),
]  # fmt: skip
GENERATORS = [generate, generate_async, GeneratingHandle, GeneratingHandle(), functools.partial(generate)]


@pytest.mark.parametrize("handler", COROUTINES)
def test_coroutine_functions_are_refused_at_construction(peer, client_of, handler):
    with pytest.raises(Invalid, match=r"coroutine function.*asyncio\.run\(work\(item\)\)"):
        Worker(client_of(peer), "t", handler)


@pytest.mark.parametrize("handler", GENERATORS)
def test_generator_functions_are_refused(peer, client_of, handler):
    with pytest.raises(Invalid, match="generator function"):
        Worker(client_of(peer), "t", handler)


def test_async_handle_set_by_the_constructor_is_refused_at_start(peer, client_of):
    class Late:
        def __init__(self):
            self.handle = work

    worker = Worker(client_of(peer), "t", Late)
    with pytest.raises(Invalid, match="coroutine function"):
        worker.start()


def plain(item):
    return (item,)


def with_job(item, job):
    return (item, job)


def other_second(item, retries=3):
    assert retries == 3
    return (item,)


def optional_job(item, job=None):
    return (item, job)


def anything(*args):
    return args


def of_three(config, item, job):
    return (item, job)


def keyword_config(item, config):
    return (item,)


@functools.wraps(of_three)
def injected(*args):
    return of_three("config", *args)


@functools.wraps(with_job)
def decorated(*args):
    return with_job(*args)


def adds_config(handler):
    @functools.wraps(handler)
    def wrapper(item):
        return handler("config", item)

    return wrapper


@adds_config
def needs_config(config, item):
    return (item,)


class Callable:
    def __call__(self, item, job):
        return (item, job)


class Object:
    def handle(self, item, job):
        return (item, job)


class ItemOnly:
    def handle(self, item):
        return (item,)


class AnyOther:
    def handle(self, item, other=None):
        return (item, other)


@pytest.mark.parametrize(
    ("handler", "arguments"),
    [
        (functools.lru_cache(plain), 1),
        (plain, 1), (other_second, 1), (anything, 1), (lambda *args: args, 1), (needs_config, 1), (ItemOnly, 1),
        (ItemOnly(), 1), (ItemOnly().handle, 1), (functools.partial(keyword_config, config=1), 1),
        (with_job, 2), (optional_job, 2), (decorated, 2), (Callable(), 2), (Callable, 2), (Object, 2), (Object(), 2),
        (Object().handle, 2), (AnyOther(), 2), (functools.partial(of_three, "config"), 2),
    ],
)  # fmt: skip
def test_a_handler_gets_the_item_and_the_job_if_it_takes_it(peer, client_of, handler, arguments):
    Worker(client_of(peer), "t", handler)
    assert handler_call(handler)(ITEM, JOB) == (ITEM, JOB)[:arguments]


class NeedsArguments:
    def __init__(self, database):
        pass

    def handle(self, item, job):
        pass


class TakesThree:
    def handle(self, item, job, more):
        pass


@pytest.mark.parametrize("handler", [lambda: 0, of_three, TakesThree(), functools.partial(plain, 1), lambda *, item: 0])
def test_another_signature_is_refused_with_those_accepted(peer, client_of, handler):
    with pytest.raises(Invalid, match=re.escape("takes (item) or (item, job)")):
        Worker(client_of(peer), "t", handler)


def test_a_class_that_needs_arguments_is_refused(peer, client_of):
    with pytest.raises(Invalid, match=r"NeedsArguments cannot be made without arguments.*database"):
        Worker(client_of(peer), "t", NeedsArguments)
    with pytest.raises(Invalid, match="cannot be called"):
        Worker(client_of(peer), "t", 5)
    with pytest.raises(Invalid, match=re.escape("takes (item) or (item, job)")):
        Worker(client_of(peer), "t", TakesThree).start()


def returns_a_coroutine(item):
    return work(item)


def returns_a_generator(item):
    return generate(item)


@pytest.mark.parametrize("returning", [returns_a_coroutine, returns_a_generator])
def test_returned_work_is_an_error_and_is_closed(returning):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotRun, match="the Worker did not run it"):
            handler_call(returning)(ITEM, JOB)


def test_a_returned_future_is_an_error():
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(NotRun, match="does not wait for it"):
            handler_call(lambda item: loop.create_future())(ITEM, JOB)
    finally:
        loop.close()


@pytest.fixture
def run(peer, client_of):
    """`run(handler, delivery)` works on one item until its first attempt is nacked."""

    def run_once(handler, delivery=Delivery.AT_LEAST_ONCE):
        client = client_of(peer)
        client.enqueue_many([ItemSpec("t", b"x", delivery=delivery)])
        with Worker(client, "t", handler, wait_ms=50, backoff=Backoff(first_ms=3_600_000)) as worker:
            eventually(lambda: worker.counts.failed == 1)
        assert peer.acked == []
        return worker

    return run_once


AGAIN = "again, or a dead letter, as its rules or its topic's policy say"


def test_an_item_whose_handler_returned_a_coroutine_is_nacked(run, peer, caplog):
    run(returns_a_coroutine)
    assert [entry.reason for entry in peer.nacked] == ["NotRun"]
    (line,) = [record for record in caplog.records if "returned" in record.getMessage()]
    assert "returned an awaitable (coroutine) and the Worker did not run it" in line.getMessage()
    assert line.getMessage().endswith(AGAIN)
    assert line.exc_info is None and line.levelno == logging.ERROR


def fails(item):
    raise ValueError


def asks_again(item):
    raise Retry


@pytest.mark.parametrize("handler", [fails, asks_again, returns_a_coroutine])
def test_the_log_says_that_a_failed_at_most_once_item_is_lost(run, caplog, handler):
    run(handler, Delivery.AT_MOST_ONCE)
    (line,) = [record.getMessage() for record in caplog.records if "Item(" in record.getMessage()]
    assert "it is lost, as an at-most-once item is not delivered again" in line
    assert AGAIN not in line


def test_the_log_says_that_an_at_least_once_item_comes_again(run, caplog):
    run(fails)
    (line,) = [record.getMessage() for record in caplog.records if "Item(" in record.getMessage()]
    assert line.endswith(AGAIN)


@pytest.mark.parametrize("kind", [foqs.client._async.job, foqs.client._sync.job])
def test_all_threads_of_a_handler_have_one_event(kind, monkeypatch):
    held, found = kind.Held(Item(id=1), inf, inf), []
    other = threading.Thread(target=lambda: found.append(held.event()))

    class Slow(kind.SeenEvent):
        def __init__(self):
            super().__init__()
            if other.ident is None:
                other.start()
                other.join(0.1)  # it may not get there while this one is made

    monkeypatch.setattr(kind, "SeenEvent", Slow)
    event = held.event()
    other.join()
    held.end()
    assert found == [event]
    assert event.is_set()


@pytest.mark.parametrize("kind", [foqs.client._async.job.SeenEvent, foqs.client._sync.job.SeenEvent])
def test_a_thread_that_saw_an_event_is_not_forgotten(kind, monkeypatch):
    """Another one looks at the same time, and has found it not set yet."""
    event, is_set, first = kind(), kind.__base__.is_set, [True]

    def slow(self):
        found = is_set(self)
        if self is event and first:
            first.clear()
            self.set()
            assert self.is_set()
        return found

    monkeypatch.setattr(kind.__base__, "is_set", slow)
    assert not event.is_set()
    assert event.seen
