"""The Thrift server: frames, the codec, connections. Knows the IDL, and nothing of queues."""

from foqs.rpc.call import Call
from foqs.rpc.counters import RpcCounters
from foqs.rpc.server import Handler, ThriftServer
from foqs.rpc.structs import lean
from foqs.rpc.validate import optional_text, text, text_map

__all__ = ["Call", "Handler", "RpcCounters", "ThriftServer", "lean", "optional_text", "text", "text_map"]
