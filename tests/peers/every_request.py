"""A request of each method, with no more than its checks ask for."""

from __future__ import annotations

from typing import Any

from foqs.idl import idl
from tests.api.wire import spec

REQUESTS: dict[str, dict[str, Any]] = {
    "Enqueue": {"ns": "shop", "items": [spec("t")]},
    "Dequeue": {"ns": "shop", "wants": [idl.TopicCount("t", 1)]},
    "Ack": {"items": [idl.AckItem(1, 1)]},
    "Nack": {"items": [idl.NackItem(1, 1)]},
    "ExtendLease": {"items": [idl.ExtendItem(1, 1)]},
    "AckAndDequeue": {"ns": "shop", "acks": [idl.AckItem(1, 1)], "wants": [idl.TopicCount("t", 1)]},
    "GetItem": {"id": 1},
    "GetResult": {"id": 1},
    "CancelItem": {"ns": "shop", "dedup_key": "k"},
    "CreateBatch": {"ns": "shop"},
    "CloseBatch": {"ns": "shop", "id": 1},
    "CancelBatch": {"ns": "shop", "id": 1},
    "GetBatch": {"ns": "shop", "id": 1},
    "ListItems": {"ns": "shop", "topic": "t"},
    "DeleteItems": {"ids": [1]},
    "ChangeItems": {"ids": [1], "priority": 1},
    "ReleaseLeases": {"ns": "shop", "topic": "t"},
    "ExplainItem": {"id": 1},
    "GetActiveTopics": {},
    "GetTopicStats": {"ns": "shop", "topic": "t"},
    "GetThrottles": {"ns": "shop"},
    "ListSchedules": {"ns": "shop"},
    "RunSchedule": {"ns": "shop", "name": "nightly"},
    "ListFailures": {"ns": "shop", "topic": "t.dlq"},
    "ListFailing": {"ns": "shop"},
    "RedriveItems": {"ns": "shop", "topic": "t.dlq"},
    "GetSettings": {"ns": "shop"},
    "GetSettingsLog": {"ns": "shop"},
    "PutSettings": {"ns": "shop", "entries": {"a": "b"}},
    "TryHook": {"ns": "shop", "hook": "on_enqueue", "source": "function on_enqueue() end", "sample": spec("t")},
    "GetStatus": {},
    "ListConsumers": {"ns": "shop"},
    "GetRates": {"ns": "shop"},
    "GetServerInfo": {},
    "GetRouting": {},
}
"""Of clients."""
BETWEEN_HOSTS: dict[str, dict[str, Any]] = {
    "WatchTopics": {},
    "GiveSlot": {"shard": 1, "slot": 1, "stamp": 1},
    "ChangeKeys": {"shard": 1, "keys": []},
    "ReplaceItems": {"ns": "shop", "items": [idl.ReplaceItem(1, idl.ItemSpec("t", b"", dedup_key="k"))]},
    "ReportMembers": {"shard": 1, "reports": [idl.MemberReport(1, 1, 1, 1, idl.BatchCounts(), [])]},
    "AskMembers": {"shard": 1, "questions": [idl.MemberQuestion(1)]},
    "TakeTokens": {"ns": "shop"},
    "Lend": {"holder": "h", "tokens": []},
    "CountSlots": {"keys": []},
    "TellSlots": {"news": []},
    "CountItems": {"ns": "shop"},
    "TellShares": {"host": "a", "topics": []},
    "AwaitSettings": {"ns": "shop", "version": 1},
}
"""Of hosts alone."""
