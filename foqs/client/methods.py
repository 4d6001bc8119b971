"""The methods of the service that clients call; items in responses are `foqs.client.items.Item`."""

from __future__ import annotations

from foqs.client.items import Item
from foqs.client.reply_bytes import dequeue_response, enqueue_response, items_response
from foqs.wire.client_codec import RemoteMethod

ENQUEUE = RemoteMethod("Enqueue", usual=enqueue_response)
DEQUEUE = RemoteMethod("Dequeue", Item, usual=dequeue_response)
ACK = RemoteMethod("Ack", usual=items_response)
NACK = RemoteMethod("Nack", usual=items_response)
EXTEND = RemoteMethod("ExtendLease", usual=items_response)
ACK_AND_DEQUEUE = RemoteMethod("AckAndDequeue", Item)
DELETE = RemoteMethod("DeleteItems")
RELEASE_LEASES = RemoteMethod("ReleaseLeases")
TOPICS = RemoteMethod("GetActiveTopics")
TOPIC_STATS = RemoteMethod("GetTopicStats")
THROTTLES = RemoteMethod("GetThrottles")
GET_ITEM = RemoteMethod("GetItem", Item)
EXPLAIN = RemoteMethod("ExplainItem")
LIST_ITEMS = RemoteMethod("ListItems", Item)
LIST_FAILURES = RemoteMethod("ListFailures")
REDRIVE = RemoteMethod("RedriveItems")
SERVER_INFO = RemoteMethod("GetServerInfo")
ROUTING = RemoteMethod("GetRouting")
GET_SETTINGS = RemoteMethod("GetSettings")
TRY_HOOK = RemoteMethod("TryHook")
PUT_SETTINGS = RemoteMethod("PutSettings")
