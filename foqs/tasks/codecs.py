"""How the arguments and results of tasks are written as bytes: as JSON or msgpack, or by a codec of the user."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Literal, NamedTuple

from foqs.client import Invalid, Item
from foqs.client.guard import kind_of
from foqs.client.handlers import WrongArgument
from foqs.extras import missing

CONTENT_TYPE = "content-type"
"""The header of an item that names the codec of its payload."""
OWN = "application/vnd.foqs."
_OF_RESULT = b"\xc1"
"""Begins a result that is no JSON: neither UTF-8 nor msgpack has this byte first."""
_CONTENT_TYPE = re.compile(r"[!-~][ -~]{0,254}")
_TO_ADD = {
    "application/msgpack": "MsgpackCodec()",
    f"{OWN}encrypted.": "EncryptedCodec(keys)",
    f"{OWN}offloaded.": "OffloadCodec(url)",
}
"""The codec of a content type that begins so."""


class Context(NamedTuple):
    """Whose value a codec writes or reads; it is the same for both.

    namespace  of the App
    part       "arguments" or "result"
    task       the name of the task; None for a result, as `app.handle(id)` does not know it
    item_id    of a result; None for arguments, which are written before their item has an id
    """

    namespace: str
    part: Literal["arguments", "result"]
    task: str | None = None
    item_id: int | None = None


class Codec(ABC):
    """Writes the arguments and results of tasks as bytes, and reads them: see `App(codec=...)`. Subclass it for your
    own format.

    content_type  of the bytes that it writes: 1 to 255 characters of ASCII. Items have it as a header
    blocks        True if its methods wait, as for a network: workers and coroutines call them in threads then

    A value has the types of JSON: dict with text keys, list, str, int, float, bool and None. Threads call the methods
    at the same time.
    """

    content_type: str
    blocks: bool = False

    @abstractmethod
    def encode(self, value: Any, context: Context) -> bytes:
        """Return the value as bytes. Raise TypeError or ValueError for a value that the format does not have. Any other
        exception is that of the enqueue, which stores nothing then, or of the run."""

    @abstractmethod
    def decode(self, body: bytes, context: Context) -> Any:
        """Return the value of bytes, which anyone may have written. Raise ValueError if `encode` does not write such
        bytes; the text of a WrongArgument is shown to operators. Any other exception fails the attempt."""


class JsonCodec(Codec):
    """JSON in UTF-8, which every App reads, and writes by default."""

    content_type = "application/json"

    def encode(self, value: Any, context: Context) -> bytes:
        return _dumps(value).encode()

    def decode(self, body: bytes, context: Context) -> Any:
        try:
            return _loads(body.decode())
        except ValueError:
            return json.loads(body)  # which reads other encodings as well, and takes twice the time


_loads = json.JSONDecoder().decode
_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
JSON = JsonCodec()


class MsgpackCodec(Codec):
    """msgpack, whose bodies are smaller than JSON. Whole numbers have at most 64 bits. Needs the extra `codecs`."""

    content_type = "application/msgpack"

    def __init__(self) -> None:
        with needed("msgpack", self):
            import msgpack
        self._msgpack = msgpack

    def encode(self, value: Any, context: Context) -> bytes:
        try:
            return self._msgpack.packb(value)  # type: ignore[no-any-return]
        except OverflowError as error:
            raise ValueError(str(error)) from None

    def decode(self, body: bytes, context: Context) -> Any:
        return self._msgpack.unpackb(body, strict_map_key=False)


class Codecs:
    """The codecs of an App. `writes` encodes, and each one decodes bodies of its content type. `blocks` is True if one
    of them blocks. `of_arguments(task)` and `of_result(item_id)` make contexts."""

    def __init__(self, namespace: str, given: Codec | Sequence[Codec] | None) -> None:
        self._namespace = namespace
        self.of_arguments: Callable[[str], Context] = cache(partial(Context, namespace, "arguments"))
        codecs: Any = JSON if given is None else given
        if not isinstance(codecs, Sequence):
            codecs = (codecs,)
        if not codecs:
            raise Invalid("codec is empty: give a Codec, or several of which the first one writes")
        self._reads: dict[str, Codec] = {}
        for codec in codecs:
            if not isinstance(codec, Codec):
                raise Invalid(f"codec has {kind_of(codec)}: give objects of Codec, such as MsgpackCodec()")
            kind = getattr(codec, "content_type", None)
            if not isinstance(kind, str) or not _CONTENT_TYPE.fullmatch(kind):
                raise Invalid(f"the content_type of {kind_of(codec)} is {kind!r}: give 1 to 255 characters of ASCII")
            if self._reads.setdefault(kind, codec) is not codec:
                raise Invalid(f"two codecs have the content type {kind}: give one, with all keys")
        self.writes: Codec = codecs[0]
        self._reads.setdefault(JSON.content_type, JSON)
        self.blocks = any(codec.blocks for codec in self._reads.values())

    def of_result(self, item_id: int) -> Context:
        return Context(self._namespace, "result", None, item_id)

    def reader_of(self, item: Item, task: str) -> Codec:
        """Return the codec of an item's payload: JSON without the header, and for an empty payload, which is a call
        without arguments. Raises WrongArgument if no codec reads it."""
        if not item.payload:
            return JSON
        return self._reader((item.headers or {}).get(CONTENT_TYPE, JSON.content_type), task)

    def sealed(self, body: bytes) -> bytes:
        """Return what `writes` has encoded as a result: with its content type, unless that is JSON."""
        kind = self.writes.content_type
        return body if kind == JSON.content_type else b"%b%c%b%b" % (_OF_RESULT, len(kind), kind.encode(), body)

    def opened(self, result: bytes) -> tuple[Codec, bytes]:
        """Return the codec and the body of what `sealed` has returned. Raises WrongArgument if no codec reads it."""
        if result[:1] != _OF_RESULT:
            return self._reads[JSON.content_type], result
        size = 2 + (result[1] if len(result) > 1 else 0)
        return self._reader(result[2:size].decode("latin-1")), result[size:]

    def _reader(self, kind: str, task: str | None = None) -> Codec:
        codec = self._reads.get(kind)
        if codec is None:
            known = next((codec for start, codec in _TO_ADD.items() if kind.startswith(start)), None)
            add = "a Codec of it" if known is None else f"{known}, for which the extra foqs[codecs] has the packages,"
            of = "" if task is None else f"task {task}: "
            raise WrongArgument(f"{of}no codec of the App reads the content type {kind}: add {add} to App(codec=[...])")
        return codec


@contextmanager
def needed(package: str, codec: Codec) -> Iterator[None]:
    """Name the extra if the import of the package fails."""
    try:
        yield
    except ImportError as error:
        raise ImportError(missing(f"{package}, which {kind_of(codec)} needs,", "codecs")) from error
