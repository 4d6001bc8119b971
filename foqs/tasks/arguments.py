"""The arguments of a task: checked where it is enqueued and before it is called, and carried by a codec between.

With pydantic (the extra `tasks`), values are checked and converted by the annotations. Without it, only their names and
number are checked, and they must be values of JSON.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from foqs.client import AsyncJob
from foqs.client import Job as BlockingJob
from foqs.client.guard import kind_of
from foqs.client.handlers import WrongArgument
from foqs.tasks.codecs import JSON, Codec, Context, JsonCodec

_NONE = b'{"args":[],"kwargs":{}}'
_OWN = object()
_NOWHERE = Context("", "arguments")
"""For a check, of which nothing is stored."""
_SHOWN = 5
"""Errors of one call that are named."""


class Filled:
    """The base of `Job`: the worker fills a parameter that is annotated with it."""


def _is_job(hint: Any) -> bool:
    return isinstance(hint, type) and Filled in hint.__bases__


class Signature:
    """What a function takes and returns, as a task. `dependencies` has the names of parameters that `Depends` fills;
    `job` is the name of the parameter that gets the job, None without one; `job_first`: no other precedes it. `returns`
    is in place of the function's own annotation.

    Raises WrongArgument for a parameter without a name, and for annotations that cannot be read."""

    def __init__(self, function: Callable[..., Any], name: str, *, returns: Any = _OWN) -> None:
        self.name = name
        given = inspect.signature(function)
        hints = _hints(function, name)
        kept: list[inspect.Parameter] = []
        self.dependencies: list[str] = []
        self.job: str | None = None
        self.job_first = False
        for at, parameter in enumerate(given.parameters.values()):
            hint = hints.get(parameter.name, parameter.annotation)
            if _is_job(hint):
                if self.job is not None:
                    raise WrongArgument(f"task {name}: {self.job} and {parameter.name} are both the job: keep one")
                self.job, self.job_first = parameter.name, at == 0
            elif hint in (AsyncJob, BlockingJob):
                raise WrongArgument(f"task {name}: annotate {parameter.name} with foqs.Job, not with that of a Worker")
            elif any(map(_is_job, typing.get_args(hint))):
                raise WrongArgument(f"task {name}: annotate {parameter.name} with Job alone: there always is a job")
            elif type(parameter.default).__name__ == "FieldInfo":
                raise WrongArgument(
                    f"task {name}: the default of {parameter.name} is a Field: use Annotated[..., Field()]"
                )
            elif _depends(parameter.default, hint):
                self.dependencies.append(parameter.name)
            elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise WrongArgument(f"task {name}: the parameter {parameter.name} is positional only: give it a name")
            else:
                kept.append(parameter.replace(annotation=hint))
        self.parameters = given.replace(parameters=kept)
        plain = [one for one in kept if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        self._names = {one.name for one in plain}
        self._required = {one.name for one in plain if one.default is one.empty}
        self._rest = next((one.name for one in kept if one.kind is one.VAR_POSITIONAL), None)
        self.returns = hints.get("return", given.return_annotation) if returns is _OWN else returns

    @property
    def returns_nothing(self) -> bool:
        return self.returns in (None, type(None), inspect.Signature.empty)

    @property
    def passes_nothing(self) -> bool:
        """Return True if what follows the task gets no argument: its result is annotated with None."""
        return self.returns in (None, type(None))

    # ------------------------------------------------------------------------------------- arguments

    def encode(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], codec: Codec = JSON, context: Context = _NOWHERE
    ) -> bytes:
        """Return the body of an item. Raises WrongArgument, which names the task and the parameter, and other errors
        of the codec."""
        bound = self.bind(args, kwargs)
        if self._arguments is not None:
            bound = self._checked(_dumped, self._arguments, bound)
        rest, named = self.split(bound)
        try:
            return codec.encode({"args": rest, "kwargs": named}, context)
        except (TypeError, ValueError) as error:
            raise WrongArgument(f"task {self.name}: its arguments are no JSON: {error}") from None

    def decode(self, body: bytes, codec: Codec = JSON, context: Context = _NOWHERE) -> dict[str, Any]:
        """Return the arguments by name: none for an empty body, such as that of a schedule's item. Raises WrongArgument
        if they do not fit the task."""
        try:
            found = codec.decode(body or _NONE, context)
            args, kwargs = found["args"], found["kwargs"]
            if not isinstance(args, list) or not isinstance(kwargs, dict):
                raise TypeError("args is no list, or kwargs no object")
        except WrongArgument as error:
            raise WrongArgument(f"task {self.name}: the payload cannot be read: {error.message}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise WrongArgument(
                f'task {self.name}: the payload is not the JSON {{"args": [], "kwargs": {{}}}} '
                f"as {codec.content_type}: {kind_of(error)}"
            ) from None
        bound = kwargs if not args and self._fits(kwargs) else self.bind(tuple(args), kwargs)
        if self._arguments is not None:
            bound = self._checked(self._arguments.validate_python, bound)
        return bound

    def _fits(self, kwargs: Mapping[str, Any]) -> bool:
        """Return True if `bind` would return these arguments as they are; False does not say that it would not."""
        return self._rest is None and self._required <= kwargs.keys() <= self._names

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given arguments by name, as they are. Raises WrongArgument if they do not fit."""
        try:
            found = self.parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise WrongArgument(f"task {self.name}{self.parameters}: {error}") from None
        if self._rest is not None:
            found.apply_defaults()
        flat: dict[str, Any] = {}
        for name, value in found.arguments.items():
            kind = self.parameters.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                flat.update(value)
            else:
                flat[name] = list(value) if kind is inspect.Parameter.VAR_POSITIONAL else value
        return flat

    def split(self, bound: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments by name as a call takes them: by name, but for a function with `*args`."""
        if self._rest is None:
            return [], bound
        named = dict(bound)
        positional: list[Any] = []
        for name in self.parameters.parameters:
            if name == self._rest:
                return [*positional, *named.pop(name, ())], named
            positional.append(named.pop(name))
        raise AssertionError("the function has *args")

    # ------------------------------------------------------------------------------------- the result

    def encode_result(self, value: Any, codec: Codec = JSON, context: Context = _NOWHERE) -> bytes:
        """Raises WrongArgument if the value is not as the task is annotated, or no JSON, and other errors of the
        codec."""
        if self._result is not None:
            value = self._checked(_dumped, self._result, value)
        try:
            return codec.encode(value, context)
        except (TypeError, ValueError) as error:
            raise WrongArgument(f"task {self.name}: its result is no JSON: {error}") from None

    def passed_on(self, value: Any) -> list[Any]:
        """Return the arguments of what follows the task, for its result: as JSON has it. Raises WrongArgument as
        `encode_result`."""
        if self.passes_nothing:
            return []
        return [value if self._result is None else self._checked(_dumped, self._result, value)]

    def decode_result(self, body: bytes, codec: Codec = JSON, context: Context = _NOWHERE) -> Any:
        """Raises WrongArgument if the result is not as the task is annotated, and the errors of the codec."""
        if self._result is None:
            return codec.decode(body, context)
        if type(codec) is JsonCodec:  # pydantic reads JSON itself, sooner
            return self._checked(self._result.validate_json, body)
        return self._checked(self._result.validate_python, codec.decode(body, context))

    # ------------------------------------------------------------------------------------- inside

    def prepare(self) -> None:
        """Make what checks the arguments and the result. Raises WrongArgument if an annotation cannot be checked.

        At the first call, the imports of pydantic would be a part of the call's time limit, and stop the event loop
        for 0.1 s or more. An annotation of the result would fail after the work.
        """
        for name in ("_arguments", "_result"):
            getattr(self, name)

    @cached_property
    def _arguments(self) -> Any:
        """What checks and converts the arguments by name; None without pydantic."""
        pydantic = _pydantic()
        if pydantic is None:
            return None
        from typing_extensions import TypedDict

        fields: dict[str, Any] = {}
        extra = "forbid"
        for parameter in self.parameters.parameters.values():
            hint = Any if parameter.annotation is parameter.empty else parameter.annotation
            if parameter.kind is parameter.VAR_KEYWORD:
                extra = "allow"
            else:
                fields[parameter.name] = typing.NotRequired[
                    list.__class_getitem__(hint) if parameter.kind is parameter.VAR_POSITIONAL else hint
                ]
        make: Any = TypedDict  # not a class: a parameter of any name may be a key
        named = make(self.name, fields)
        named.__pydantic_config__ = pydantic.ConfigDict(extra=extra, arbitrary_types_allowed=True)
        return self._check_of(named, "arguments")

    @cached_property
    def _result(self) -> Any:
        """What checks the result; None without pydantic or an annotation."""
        if _pydantic() is None or self.returns is inspect.Signature.empty:
            return None
        return self._check_of(self.returns, "result")

    def _check_of(self, kind: Any, what: str) -> Any:
        pydantic: Any = _pydantic()
        try:
            return pydantic.TypeAdapter(kind)
        except (pydantic.PydanticUserError, pydantic.PydanticUndefinedAnnotation) as error:
            raise WrongArgument(f"task {self.name}: its {what} cannot be checked: {error.message}") from None

    def _checked(self, check: Callable[..., Any], *values: Any) -> Any:
        try:
            return check(*values)
        except Exception as error:
            self._raise_wrong(error)
            raise

    def _raise_wrong(self, error: Exception) -> None:
        """Raise WrongArgument for what pydantic says of a value."""
        from pydantic import ValidationError
        from pydantic_core import PydanticSerializationError

        if isinstance(error, ValidationError):
            found = error.errors(include_input=False, include_url=False, include_context=False)
            texts = [f"{'.'.join(map(str, one['loc'])) or 'result'}: {one['msg']}" for one in found[:_SHOWN]]
            more = f"; {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            raise WrongArgument(f"task {self.name}: {'; '.join(texts)}{more}") from None
        if isinstance(error, PydanticSerializationError | UnicodeDecodeError | _Changed):
            raise WrongArgument(f"task {self.name}: a value cannot be sent as JSON: {error}") from None


class _Changed(Exception):
    """A value is not the same when it is read from JSON."""


def _dumped(adapter: Any, value: Any) -> Any:
    """Return a value as JSON holds it, which reads as the same value: a secret, or an alias, may not."""
    checked = adapter.validate_python(value)
    dumped = adapter.dump_python(checked, mode="json", by_alias=True)
    read = adapter.validate_python(dumped)
    if read != checked:
        changed = next((name for name in read if read[name] != checked.get(name)), "") if isinstance(read, dict) else ""
        raise _Changed(f"{changed or kind_of(checked)} reads as another value")
    return dumped


def _hints(function: Any, task: str) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    try:
        if inspect.isclass(function):
            made = typing.get_type_hints(function.__init__, include_extras=True)
            return {**typing.get_type_hints(function, include_extras=True), **made}
        if not inspect.isroutine(function):
            function = type(function).__call__
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise WrongArgument(f"task {task}: its annotations cannot be read: {error}") from None


def _depends(default: Any, hint: Any) -> bool:
    """Return True for a parameter with `Depends`, as its default or in its `Annotated` type."""
    marks = (default, *typing.get_args(hint)) if typing.get_origin(hint) is typing.Annotated else (default,)
    return any(type(mark).__module__.partition(".")[0] == "fast_depends" for mark in marks)


def _pydantic() -> Any:
    try:
        import pydantic
    except ImportError:
        return None
    return pydantic
