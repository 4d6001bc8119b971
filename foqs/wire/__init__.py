"""The Thrift codec of both sides: messages as bytes, requests and replies as structs, error codes as exceptions.

Hosts (`foqs.rpc`) and the client library (`foqs.client`) bring their own transports. Nothing here opens a socket.
"""
