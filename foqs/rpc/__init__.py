"""Thrift over asyncio: the server, and calls from host to host. Knows the IDL, and nothing of queues."""

from foqs.rpc.call import Call, RpcCounters
from foqs.rpc.hub import Handler
from foqs.rpc.server import ThriftServer

__all__ = ["Call", "Handler", "RpcCounters", "ThriftServer"]
