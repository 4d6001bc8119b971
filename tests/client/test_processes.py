"""What passes between processes: errors and values as they are, and nothing that belongs to one process."""

from __future__ import annotations

import concurrent.futures
import copy
import importlib
import multiprocessing
import pickle
import pkgutil
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

import pytest

import foqs
import foqs.client
import foqs.errors
from foqs.client import (
    AsyncClient,
    AsyncJob,
    AsyncProducer,
    AsyncWorker,
    Client,
    FoqsError,
    Invalid,
    Item,
    ItemPage,
    Items,
    Job,
    NotFound,
    Producer,
    Retry,
    UnreadFailures,
    Worker,
)
from foqs.client._async.job import Held as AsyncHeld
from foqs.client._sync.futures import ItemFuture
from foqs.client._sync.job import Held
from foqs.client.ending import Counts
from foqs.errors import caused, named
from foqs.travel import Local
from tests.client import elsewhere
from tests.client._async.helpers import nothing
from tests.client.real_server import Server
from tests.support.travel import content, made, sample, ways

LATER_S = 60.0


def modules() -> Iterator[types.ModuleType]:
    """Import all modules of the client library and of the values below it."""
    for found in pkgutil.walk_packages(foqs.__path__, "foqs."):
        top = found.name.split(".")[1]
        if top not in {"__main__", "lab", "cli", "spark", "doctor", "server", "admin", "contrib"}:
            yield importlib.import_module(found.name)


def below(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from below(each)


def public() -> dict[str, Any]:
    names = [(foqs.client, name) for name in foqs.client.__all__]
    own = vars(foqs.errors).items()
    names += [(foqs.errors, name) for name, one in own if getattr(one, "__module__", "") == "foqs.errors"]
    return {name: getattr(module, name) for module, name in names}


def is_value(kind: object) -> bool:
    return isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, tuple | int | list | Enum))


list(modules())
ERRORS = sorted(
    {FoqsError, Retry, *below(FoqsError)} | {one for one in public().values() if elsewhere.is_error(one)},
    key=lambda kind: f"{kind.__module__}.{kind.__name__}",
)
ERRORS = [kind for kind in ERRORS if kind.__module__.startswith("foqs.")]
VALUES = {name: kind for name, kind in public().items() if is_value(kind) and not issubclass(kind, BaseException)}
VALUES["Counts"] = Counts
STAYING = {name: kind for name, kind in public().items() if isinstance(kind, type) and issubclass(kind, Local)}
TYPES = {"ItemOptions", "Leased", "PolicyFields", "ThrottleFields"}
"""They describe values for type checkers, and have no instances."""


def test_each_public_name_is_covered() -> None:
    for name, found in public().items():
        kinds = (elsewhere.is_error(found), name in VALUES, name in STAYING, name in TYPES, not isinstance(found, type))
        assert any(kinds), f"{name}: a value (a dataclass or a NamedTuple), an error, or a Local that stays"
    kinds = {"Client", "Producer", "Worker", "Job"}
    assert set(STAYING) == kinds | {f"Async{kind}" for kind in kinds}


# ------------------------------------------------------------------------------------------- samples


def error_of(kind: type[BaseException]) -> BaseException:
    """Return an error with everything that the client library sets."""
    hints = typing.get_type_hints(kind.__init__)
    hints.pop("return", None)
    if kind is UnreadFailures:
        error: BaseException = UnreadFailures({"OUTCOME_UNKNOWN": 2, "INVALID": 1}, {
            "OUTCOME_UNKNOWN": FoqsError("lost"), "INVALID": Invalid("no"),
        })  # fmt: skip
    elif kind is Retry:
        error = Retry(7, b"state", counts=False)
    else:
        error = kind(**{name: sample(hint) for name, hint in hints.items()})
    if isinstance(error, FoqsError):
        named(caused(error, NotFound("no such item")), "r1")
        error.found = ["anything"]  # type: ignore[attr-defined]
    return error


@pytest.fixture(params=ways().values(), ids=ways().keys())
def way(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return request.param  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------- values and errors


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_travels(kind: type[BaseException], way: Callable[[Any], Any]) -> None:
    error = error_of(kind)
    there = way(error)
    assert there is not error
    assert content(there) == content(error)
    assert repr(there) == repr(error)
    assert content(way(there)) == content(error)
    assert vars(there) is not vars(error)


@pytest.mark.parametrize("name", VALUES)
def test_a_value_travels(name: str, way: Callable[[Any], Any]) -> None:
    value = made(VALUES[name])
    there = way(value)
    assert type(there) is type(value)
    assert content(there) == content(value)
    assert (
        there == value or isinstance(value, Item | Items | ItemPage) or any(isinstance(one, FoqsError) for one in value)
    )
    assert repr(there) == repr(value)
    assert "object at 0x" not in repr(value)


def test_a_copy_of_a_value_is_a_value_of_its_own() -> None:
    item = made(Item)
    for there in (copy.copy(item), pickle.loads(pickle.dumps(item))):
        there.id = 9
        assert item.id == 7
    assert copy.copy(item).headers is item.headers
    assert copy.deepcopy(item).headers is not item.headers


# ------------------------------------------------------------------------------------------- what stays


def staying(client: Client, producer: Producer) -> dict[str, Any]:
    future = ItemFuture()
    return {
        "AsyncClient": AsyncClient(),
        "AsyncProducer": AsyncProducer(AsyncClient()),
        "AsyncWorker": AsyncWorker(AsyncClient(), "t", nothing),
        "AsyncJob": AsyncJob(AsyncHeld(Item(id=1), 0.0, 0.0), print, print, print, None),  # type: ignore[arg-type]
        "Client": client,
        "Producer": producer,
        "Worker": Worker(client, "t", print),
        "Job": Job(Held(Item(id=1), 0.0, 0.0), print, print, print, None),  # type: ignore[arg-type]
        "ItemFuture": future,
    }


def test_what_belongs_to_a_process_says_so(peer: Any, client_of: Any, way: Callable[[Any], Any]) -> None:
    client = client_of(peer)
    with Producer(client) as producer:
        found = staying(client, producer)
        assert found.keys() >= STAYING.keys()
        for name, one in found.items():
            with pytest.raises(TypeError, match=f"^an? {name} cannot be copied, pickled or sent to another process: "):
                way(one)
        with pytest.raises(TypeError, match=r"^a Client cannot be copied, pickled or sent"):
            pickle.dumps({"enqueue": client.enqueue})


def test_a_client_of_an_application_may_pickle_by_its_own_rule(peer: Any) -> None:
    with elsewhere.Remade(peer.address) as client, pickle.loads(pickle.dumps(client)) as there:
        assert there.enqueue("t", b"x") == 1


# ------------------------------------------------------------------------------------------- pools of processes


CONTEXTS = multiprocessing.get_all_start_methods()


@pytest.mark.process
@pytest.mark.parametrize("method", CONTEXTS)
def test_errors_and_values_cross_a_pool(server: Server, method: str) -> None:
    """An error that the pool cannot read ends it, with the work of all."""
    context = multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        with pytest.raises(UnreadFailures) as failed:
            pool.apply_async(elsewhere.fail_unread, [server.address]).get(LATER_S)
        assert (failed.value.count, failed.value.kinds) == (1, {"INVALID": 1})
        with pytest.raises(TypeError, match="a Client cannot be copied, pickled or sent"):
            pool.apply_async(elsewhere.enqueue, [Client(server.address)]).get(LATER_S)
        (item,) = pool.apply_async(elsewhere.through_a_process, [server.address]).get(LATER_S)
        assert (item.payload, item.headers) == (b"x", {"a": "b"})
        with pytest.raises(Retry) as asked:
            pool.apply_async(elsewhere.ask_for_another_attempt).get(LATER_S)
        assert (asked.value.delay_ms, asked.value.metadata) == (5, b"m")


@pytest.mark.process
@pytest.mark.parametrize("method", CONTEXTS)
def test_errors_cross_an_executor(server: Server, method: str) -> None:
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        with pytest.raises(UnreadFailures, match="1 INVALID"):
            pool.submit(elsewhere.fail_unread, server.address).result(LATER_S)
        with pytest.raises(NotFound) as missing:
            pool.submit(elsewhere.look_for, server.address, 5).result(LATER_S)
        assert missing.value.request_id is not None
        assert pool.submit(elsewhere.enqueue_at, server.address).result(LATER_S) > 0
