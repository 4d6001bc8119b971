"""Requests to frames and frames to responses, with thriftpy2's Cython codec."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TDecodeException, TMessageType, TType
from thriftpy2.transport import TCyBufferedTransport, TCyMemoryBuffer, TMemoryBuffer

from foqs.client.items import Item
from foqs.errors import FoqsError, Invalid, OutcomeUnknown, Unavailable, from_code
from foqs.idl import GOODBYE, idl

# thriftpy2's annotations are partial.
_Protocol: Any = TCyBinaryProtocol
_Input: Any = TMemoryBuffer

pack_length: Final = Struct(">I").pack

_REFUSED = {
    TApplicationException.UNKNOWN_METHOD,
    TApplicationException.INVALID_MESSAGE_TYPE,
    TApplicationException.WRONG_METHOD_NAME,
    TApplicationException.PROTOCOL_ERROR,
}
"""Answers of a server that did not get as far as doing anything."""


_BITS = {"BYTE": 8, "I08": 8, "I16": 16, "I32": 32, "I64": 64}
_SHOWN_BITS = 256
_WANTED = {
    "STRING": "it has to be text (valid Unicode), or bytes where it is binary",
    "MAP<STRING, STRING>": "it has to be a mapping of texts to texts",
}


class Malformed(Exception):
    """The reply is not one of the protocol."""


class Goodbye(Unavailable):
    """The host began nothing of the request, and begins nothing more on that connection."""


class Unencodable(Invalid):
    """A value of the wrong type or size; found before anything was sent."""


def _reply_class(name: str, spec: Mapping[int, tuple[Any, ...]]) -> Any:
    """A class the codec fills; what the frame does not hold reads as None. Costs less than thriftpy2's own,
    which assign every field first.
    """
    fields: dict[str, Any] = {field[1]: None for field in spec.values()}
    return type(name, (), {"thrift_spec": dict(spec), **fields})


def _list_of(name: str, field: str, struct: Any) -> Any:
    return _reply_class(name, {1: (TType.LIST, field, (TType.STRUCT, struct), False)})


_outcome = _reply_class("ItemOutcome", idl.ItemOutcome.thrift_spec)
_enqueue_outcome = _reply_class("EnqueueOutcome", idl.EnqueueOutcome.thrift_spec)
_items_and_cursor = _reply_class(
    "ListItemsResponse",
    {
        1: (TType.LIST, "items", (TType.STRUCT, Item), False),
        2: idl.ListItemsResponse.thrift_spec[2],
    },
)
_items_and_doubtful = _reply_class(
    "DequeueResponse",
    {1: (TType.LIST, "items", (TType.STRUCT, Item), False), 2: idl.DequeueResponse.thrift_spec[2]},
)
_item_and_state = _reply_class(
    "GetItemResponse",
    {1: (TType.STRUCT, "item", Item, False), 2: idl.GetItemResponse.thrift_spec[2]},
)


class Method:
    """One method of the service: how its request is written and its reply read."""

    def __init__(self, name: str, response: Any, *, gives_ids: bool = False) -> None:
        self.name = name
        self.gives_ids = gives_ids
        self.request = getattr(idl, f"{name}Request")
        self._args = getattr(idl.Foqs, f"{name}_args")
        self._result = _reply_class(
            f"{name}_result",
            {
                0: (TType.STRUCT, "success", response, False),
                1: (TType.STRUCT, "error", idl.RequestError, False),
            },
        )

    def encode(self, request: Any, sequence: int) -> bytes:
        """The message, without the frame's length. Raises Unencodable."""
        buffer = TCyMemoryBuffer()
        protocol = _Protocol(buffer)
        protocol.write_message_begin(self.name, TMessageType.CALL, sequence)
        args = self._args()
        args.request = request
        _write(protocol, args)
        return bytes(buffer.getvalue())

    def decode(self, frame: bytes, sequence: int) -> Any:
        """The response. Raises Malformed, or the typed error of what the server answered."""
        # Not over TCyMemoryBuffer: thriftpy2 0.7.1 reads past the end of its data.
        protocol = _Protocol(TCyBufferedTransport(_Input(frame)))
        try:
            name, kind, answered = protocol.read_message_begin()
            reply: Any = TApplicationException() if kind == TMessageType.EXCEPTION else self._result()
            protocol.read_struct(reply)
        except Exception as error:
            raise Malformed(f"the reply to {self.name} cannot be read") from error
        if kind == TMessageType.EXCEPTION and name == GOODBYE:
            raise Goodbye(str(reply))
        if answered != sequence or name != self.name:
            raise Malformed(f"a reply to {name} number {answered} instead of {self.name} number {sequence}")
        if kind == TMessageType.EXCEPTION:
            raise application_error(reply.type, str(reply))
        if reply.error is not None:
            raise typed(reply.error)
        if reply.success is None:
            raise Malformed(f"the reply to {self.name} holds nothing")
        return reply.success


def check_encodable(struct: Any) -> None:
    """Raises Unencodable when this one item would spoil its request."""
    _write(_Protocol(TCyMemoryBuffer()), struct)


def _write(protocol: Any, struct: Any) -> None:
    try:
        protocol.write_struct(struct)
    except TDecodeException as error:
        raise Unencodable(_misfit(error.field, error.type_repr or "", error.value)) from None
    except Exception as error:
        raise Unencodable(f"cannot be encoded: {type(error).__name__}") from error


def _misfit(field: str, kind: str, value: object) -> str:
    """Why `value` cannot be the field. Shows a number that is out of range, but no text: payloads stay out of logs.

    >>> _misfit("priority", "I32", 1 << 40)
    'priority is 1099511627776: it has to be an integer from -2147483648 to 2147483647'
    """
    bits = _BITS.get(kind)
    if bits is None:
        return f"{field} is of type {type(value).__name__} or holds what cannot be encoded: {_WANTED.get(kind, kind)}"
    if isinstance(value, int):
        given = f"is {value}" if value.bit_length() <= _SHOWN_BITS else f"has {value.bit_length()} bits"
    else:
        given = f"is of type {type(value).__name__}"
    return f"{field} {given}: it has to be an integer from {-(1 << bits - 1)} to {(1 << bits - 1) - 1}"


def typed(error: Any) -> FoqsError:
    """The exception of an `ItemError` or `RequestError`."""
    return from_code(error.code, error.message or "", error.retry_after_ms)


def application_error(kind: int, message: str) -> FoqsError:
    """The exception of Thrift's own error reply."""
    if kind in _REFUSED:
        return Invalid(f"the server refused the call: {message}")
    return OutcomeUnknown(f"the server failed: {message}")


ENQUEUE = Method("Enqueue", _list_of("EnqueueResponse", "outcomes", _enqueue_outcome), gives_ids=True)
DEQUEUE = Method("Dequeue", _items_and_doubtful)
ACK = Method("Ack", _list_of("AckResponse", "outcomes", _outcome))
NACK = Method("Nack", _list_of("NackResponse", "outcomes", _outcome))
EXTEND = Method("ExtendLease", _list_of("ExtendLeaseResponse", "outcomes", _outcome))
DELETE = Method("DeleteItems", _list_of("DeleteItemsResponse", "outcomes", _outcome))
TOPICS = Method("GetActiveTopics", idl.GetActiveTopicsResponse)
GET_ITEM = Method("GetItem", _item_and_state)
LIST_ITEMS = Method("ListItems", _items_and_cursor)
SERVER_INFO = Method("GetServerInfo", idl.GetServerInfoResponse)
ROUTING = Method("GetRouting", idl.GetRoutingResponse)
