"""Arguments of tasks: checked at the caller and at the worker, with pydantic and without it."""

import datetime
import enum
import json
import sys
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, computed_field

from foqs import App, Depends, Job
from foqs.client import Invalid
from foqs.tasks import arguments
from foqs.tasks.arguments import Signature

pytestmark = pytest.mark.memory


class Colour(enum.Enum):
    RED = "red"


class Order(BaseModel):
    id: UUID
    lines: list[int]


@dataclass
class Point:
    x: int
    y: int = 0


@pytest.fixture(params=[True, False], ids=["pydantic", "plain"])
def pydantic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr("foqs.tasks.arguments._pydantic", lambda: None)
    return bool(request.param)


def call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what the function returns, called with what a worker decodes."""
    signature = Signature(function, "f")
    positional, named = signature.split(signature.decode(signature.encode(args, kwargs)))
    return function(*positional, **named)


def test_arguments_arrive_as_they_were_given(pydantic):
    def plain(a: int, b: str = "b", *, c: float | None = None) -> tuple[Any, ...]:
        return a, b, c

    assert call(plain, 1) == (1, "b", None)
    assert call(plain, 1, "x", c=1.5) == (1, "x", 1.5)
    assert call(plain, b="y", a=2) == (2, "y", None)

    def many(first: int, second: int = 2, *rest: int, key: int = 0, **more: int) -> tuple[Any, ...]:
        return first, second, rest, key, more

    assert call(many, 1) == (1, 2, (), 0, {})
    assert call(many, 1, 3, 4, 5, key=6, other=7) == (1, 3, (4, 5), 6, {"other": 7})
    assert call(lambda: "nothing") == "nothing"
    assert call(lambda untyped: untyped, {"a": [1, None, "x"]}) == {"a": [1, None, "x"]}


@pytest.mark.parametrize("name", ["json", "copy", "schema", "model_config", "_private", "class_", "dict", "name"])
def test_a_parameter_may_have_any_name(pydantic, name):
    found: dict[str, Any] = {}
    exec(f"def task({name}: int, other: str = '') -> None: ...", found)
    signature = Signature(found["task"], "t")
    assert signature.decode(signature.encode((), {name: 1})) == {name: 1}


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_that_json_lacks_is_refused(pydantic, value):
    def task(a: float) -> None: ...

    with pytest.raises(Invalid, match=r"task t: .* JSON"):
        Signature(task, "t").encode((value,), {})


class Aliased(BaseModel):
    x: int = Field(alias="X")


class Secret(BaseModel):
    password: SecretStr


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def y(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (SecretStr, SecretStr("hidden")),
        (Secret, Secret(password=SecretStr("hidden"))),
        (Computed, Computed()),
        (Iterator[int], iter([1])),
        (bytes, b"\xff"),
        (list[float], [float("nan")]),
    ],
    ids=["secret", "model", "computed", "iterator", "bytes", "nan"],
)
def test_a_value_that_json_does_not_keep_is_refused(hint, value):
    """At the caller, as an argument, and at the worker, as a result."""

    def task(value): ...

    task.__annotations__ = {"value": hint, "return": hint}
    signature = Signature(task, "t")
    with pytest.raises(Invalid, match="task t") as raised:
        signature.encode((value,), {})
    assert "hidden" not in raised.value.message
    with pytest.raises(Invalid, match="task t"):
        signature.encode_result(value)


def test_an_alias_is_kept():
    def task(value: Aliased) -> Aliased: ...

    signature = Signature(task, "t")
    assert signature.decode(signature.encode((Aliased(X=1),), {})) == {"value": Aliased(X=1)}


def test_a_default_that_was_not_given_is_not_sent(pydantic):
    """A deployment that changes it changes tasks that wait, too."""

    def task(a: int, b: int = 5) -> None: ...

    assert json.loads(Signature(task, "t").encode((1,), {})) == {"args": [], "kwargs": {"a": 1}}


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (datetime.datetime, datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)),
        (datetime.timedelta, datetime.timedelta(seconds=1.5)),
        (UUID, UUID(int=5)),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (Order, Order(id=UUID(int=1), lines=[1, 2])),
        (Point, Point(1, 2)),
        (list[Point], [Point(1)]),
        (set[int], {1, 2}),
        (bytes, b"text"),
        (Literal["a", "b"], "a"),
        (int | None, None),
    ],
)
def test_annotated_types_travel(hint, value):
    def task(value): ...

    task.__annotations__ = {"value": hint, "return": hint}
    signature = Signature(task, "t")
    assert signature.decode(signature.encode((value,), {})) == {"value": value}
    assert signature.decode_result(signature.encode_result(value)) == value


def test_wrong_arguments_are_an_error_at_the_caller(pydantic):
    def task(a: int, b: int = 5) -> None: ...

    signature = Signature(task, "t")
    for args, kwargs, why in [
        ((), {}, "missing a required argument: 'a'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"c": 3}, "unexpected keyword argument 'c'"),
        ((1,), {"b": object()}, "b: Input should be a valid integer" if pydantic else "its arguments are no JSON"),
    ]:
        with pytest.raises(Invalid, match=f"task t.*{why}"):
            signature.encode(args, kwargs)


def test_an_error_names_each_field_and_no_value():
    def task(a: int, order: Order) -> None: ...

    with pytest.raises(Invalid) as raised:
        Signature(task, "t").encode(("secret", {"id": "secret", "lines": ["x"]}), {})
    for field in ("a:", "order.id:", "order.lines.0:"):
        assert field in raised.value.message
    assert "secret" not in raised.value.message


@pytest.mark.parametrize(
    "body", [b" ", b"[]", b"{}", b'{"args": 1, "kwargs": {}}', b"\xff", b'{"args": [], "kwargs": []}']
)
def test_a_body_of_something_else_is_refused(pydantic, body):
    with pytest.raises(Invalid, match="task t: the payload is not the JSON"):
        Signature(lambda: None, "t").decode(body)


@pytest.mark.parametrize(
    "function",
    [lambda: None, lambda a: None, lambda a, b=1: None, lambda a, *, b=1: None, lambda a, *rest: None,
     lambda a, **more: None, lambda a, job: None],
)  # fmt: skip
@pytest.mark.parametrize("kwargs", [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}, {"a": 1, "rest": 2}, {"a": 1, "more": 2}])
def test_arguments_are_not_bound_only_where_that_changes_nothing(function, kwargs):
    signature = Signature(function, "t")
    if signature._fits(kwargs):
        assert signature.bind((), kwargs) == kwargs


def test_arguments_by_name_are_not_bound(pydantic, monkeypatch):
    def task(a: int, b: int = 2) -> None: ...

    signature = Signature(task, "t")
    body = signature.encode((1,), {})
    monkeypatch.setattr(signature, "bind", None)
    assert signature.decode(body) == {"a": 1}


def test_a_changed_signature_is_refused_by_name(pydantic):
    def before(a: int, gone: int) -> None: ...
    def after(a: int, new: int) -> None: ...

    body = Signature(before, "t").encode((1, 2), {})
    with pytest.raises(Invalid, match=r"task t.*(gone|new)"):
        Signature(after, "t").decode(body)


def test_the_job_and_dependencies_are_no_arguments():
    def task(job: Job, a: int, b: str = Depends(lambda: "b")) -> None: ...

    signature = Signature(task, "t")
    assert (signature.job, signature.job_first, signature.dependencies) == ("job", True, ["b"])
    assert signature.decode(signature.encode((1,), {})) == {"a": 1}
    with pytest.raises(Invalid):
        signature.encode((1, "b"), {})


def test_what_cannot_be_a_task_says_why():
    def positional(a: int, /) -> None: ...
    def unknown(a: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def perhaps(job: Job | None = None) -> None: ...
    def twice(job: Job, other: Job) -> None: ...
    def field(a: list[int] = Field(default_factory=list)) -> None: ...  # noqa: B008

    for function, why in ((perhaps, "annotate job with Job alone"), (twice, "keep one"), (field, "is a Field")):
        with pytest.raises(Invalid, match=f"task t: .*{why}"):
            Signature(function, "t")
    with pytest.raises(Invalid, match="the parameter a is positional only"):
        Signature(positional, "t")
    with pytest.raises(Invalid, match="task t: its annotations cannot be read: name 'Missing' is not defined"):
        Signature(unknown, "t")


def test_a_result_that_is_not_as_annotated_is_an_error(pydantic):
    def task() -> int: ...

    with pytest.raises(
        Invalid, match="task t: " + ("result: Input should be" if pydantic else "its result is no JSON")
    ):
        Signature(task, "t").encode_result(object())


class Sent(typing.TypedDict):  # pydantic needs that of typing_extensions before Python 3.12
    id: str


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic checks each TypedDict there")
def test_a_worker_refuses_an_annotation_without_a_check():
    app = App("127.0.0.1:1")

    @app.task
    def send(to: str) -> Sent:
        return {"id": to}

    with pytest.raises(Invalid, match=r"task .*send: its result cannot be checked: .*typing_extensions"):
        app.worker()


def test_a_worker_imports_pydantic_before_its_first_task(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App()

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    app.worker()
    monkeypatch.setattr(arguments, "_pydantic", lambda: pytest.fail("a task waits for the imports in its time limit"))
    assert double.signature.decode(b'{"args":[],"kwargs":{"n":"2"}}') == {"n": 2}
    assert double.signature.encode_result(4) == b"4"
