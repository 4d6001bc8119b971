"""The methods of the service that clients call; items in responses are `foqs.client.items.Item`."""

from __future__ import annotations

from foqs.client.items import Item
from foqs.wire.remote_method import RemoteMethod

ENQUEUE = RemoteMethod("Enqueue")
DEQUEUE = RemoteMethod("Dequeue", Item)
ACK = RemoteMethod("Ack")
NACK = RemoteMethod("Nack")
EXTEND = RemoteMethod("ExtendLease")
ACK_AND_DEQUEUE = RemoteMethod("AckAndDequeue", Item)
DELETE = RemoteMethod("DeleteItems")
TOPICS = RemoteMethod("GetActiveTopics")
GET_ITEM = RemoteMethod("GetItem", Item)
LIST_ITEMS = RemoteMethod("ListItems", Item)
SERVER_INFO = RemoteMethod("GetServerInfo")
ROUTING = RemoteMethod("GetRouting")
