"""The Python client of foqs.

`Client` makes single calls, `Producer` gathers enqueues into batches, and `Worker` runs a handler for every item.
`AsyncClient`, `AsyncProducer` and `AsyncWorker` do the same on an event loop.

>>> from foqs.client import Client
>>> with Client("127.0.0.1:7707", "shop") as client:            # doctest: +SKIP
...     client.enqueue("mail", b"hello")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from foqs.client._sync.client import Client
from foqs.client._sync.job import Job
from foqs.client._sync.producer import Producer
from foqs.client._sync.worker import Worker
from foqs.client.batches import Batch, BatchCounts
from foqs.client.call import ClientClosed, Taken
from foqs.client.ending import WorkerHung
from foqs.client.handlers import AckPolicy, Reject, Retry
from foqs.client.items import (
    Ack,
    DedupUntil,
    Delivery,
    Extension,
    Failure,
    Item,
    ItemOptions,
    Items,
    ItemSpec,
    ItemState,
    LastFailure,
    Lease,
    Leased,
    Ledger,
    Nack,
    Progress,
)
from foqs.client.methods import request_id
from foqs.client.operator_types import (
    ChangedItems,
    Consumers,
    ExplainLimit,
    ExplainReason,
    ExplainTenants,
    Explanation,
    Failing,
    FailureFilter,
    FailureGroup,
    Failures,
    ItemFilter,
    ItemPage,
    LimitKind,
    Rates,
    Reason,
    Redriven,
    RefusedTopic,
    Released,
    Result,
    Schedule,
    Schedules,
    ServerInfo,
    Status,
    Throttles,
    TopicsPage,
    Tried,
)
from foqs.client.rules import ItemRules, RetryKind, RetryRule
from foqs.client.settings_types import PolicyFields, Settings, SettingsChange, SettingsLog, ThrottleFields
from foqs.client.timing import Backoff
from foqs.client.tls import Tls
from foqs.client.unread import UnreadFailures
from foqs.errors import (
    Code,
    Conflict,
    FoqsError,
    Forbidden,
    Invalid,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    StaleLease,
    Unauthenticated,
    Unavailable,
)
from foqs.figures import (
    ActiveTopic,
    ConsumerStats,
    FailingGroup,
    FailingTopic,
    HookStats,
    HostStatus,
    NamespaceRates,
    OldestTopic,
    QuotaStatus,
    RateStatus,
    ShadowHour,
    ShardStatus,
    TenantStats,
    ThrottleStats,
    TopicStats,
    TopicStatus,
    WorkerStats,
)
from foqs.ids import OnDuplicate
from foqs.item_batch import BatchState
from foqs.rows import FailureCause
from foqs.second_answer import Duplicate, Replaced
from foqs.settings_log import SettingsStamp, SettingsVersion, ValueDigest

if TYPE_CHECKING:
    from foqs.client._async.client import AsyncClient
    from foqs.client._async.job import AsyncJob
    from foqs.client._async.producer import AsyncProducer
    from foqs.client._async.waits import WrongLoop
    from foqs.client._async.worker import AsyncWorker

__all__ = [
    "Ack",
    "AckPolicy",
    "ActiveTopic",
    "AsyncClient",
    "AsyncJob",
    "AsyncProducer",
    "AsyncWorker",
    "Backoff",
    "Batch",
    "BatchCounts",
    "BatchState",
    "ChangedItems",
    "Client",
    "ClientClosed",
    "Code",
    "Conflict",
    "ConsumerStats",
    "Consumers",
    "DedupUntil",
    "Delivery",
    "Duplicate",
    "ExplainLimit",
    "ExplainReason",
    "ExplainTenants",
    "Explanation",
    "Extension",
    "Failing",
    "FailingGroup",
    "FailingTopic",
    "Failure",
    "FailureCause",
    "FailureFilter",
    "FailureGroup",
    "Failures",
    "FoqsError",
    "Forbidden",
    "HookStats",
    "HostStatus",
    "Invalid",
    "Item",
    "ItemFilter",
    "ItemOptions",
    "ItemPage",
    "ItemRules",
    "ItemSpec",
    "ItemState",
    "Items",
    "Job",
    "LastFailure",
    "Lease",
    "Leased",
    "Ledger",
    "LimitKind",
    "Nack",
    "NamespaceRates",
    "NotFound",
    "OldestTopic",
    "OnDuplicate",
    "OutcomeUnknown",
    "Overloaded",
    "PolicyFields",
    "Producer",
    "Progress",
    "QuotaStatus",
    "RateStatus",
    "Rates",
    "Reason",
    "Redriven",
    "RefusedTopic",
    "Reject",
    "Released",
    "Replaced",
    "Result",
    "Retry",
    "RetryKind",
    "RetryRule",
    "Schedule",
    "Schedules",
    "ServerInfo",
    "Settings",
    "SettingsChange",
    "SettingsLog",
    "SettingsStamp",
    "SettingsVersion",
    "ShadowHour",
    "ShardStatus",
    "StaleLease",
    "Status",
    "Taken",
    "TenantStats",
    "ThrottleFields",
    "ThrottleStats",
    "Throttles",
    "Tls",
    "TopicStats",
    "TopicStatus",
    "TopicsPage",
    "Tried",
    "Unauthenticated",
    "Unavailable",
    "UnreadFailures",
    "ValueDigest",
    "Worker",
    "WorkerHung",
    "WorkerStats",
    "WrongLoop",
    "request_id",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_ASYNC = {
    "AsyncClient": "client",
    "AsyncJob": "job",
    "AsyncProducer": "producer",
    "AsyncWorker": "worker",
    "WrongLoop": "waits",
}


def __getattr__(name: str) -> Any:
    """Import asyncio with the first asynchronous name: blocking programs start without it."""
    if name not in _ASYNC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"foqs.client._async.{_ASYNC[name]}"), name)
