"""Thrift over asyncio: the server, and calls from host to host. Knows the IDL, and nothing of queues."""
