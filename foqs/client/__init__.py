"""The Python client of foqs.

`Client` makes single calls, `Producer` gathers enqueues into batches, `Worker` runs a handler for every item.

>>> from foqs.client import Client
>>> with Client("127.0.0.1:7707", "shop") as client:            # doctest: +SKIP
...     client.enqueue("mail", b"hello")
"""

from foqs.client.ack_dequeue import Taken
from foqs.client.ack_policy import AckPolicy
from foqs.client.backoff import Backoff
from foqs.client.client import Client
from foqs.client.connection import ClientClosed
from foqs.client.dead_letters import FailureFilter, FailureGroup, Failures, Redriven, RefusedTopic
from foqs.client.explain import ExplainReason, Explanation, Reason
from foqs.client.hangs import WorkerHung
from foqs.client.hooks import Tried
from foqs.client.items import (
    ActiveTopic,
    Delivery,
    Failure,
    Item,
    ItemOptions,
    Items,
    ItemSpec,
    ItemState,
    Lease,
    Leased,
    Ledger,
    Nack,
    Released,
    ServerInfo,
)
from foqs.client.job import Job, Retry
from foqs.client.looks import HookStats, TenantStats, Throttles, ThrottleStats, TopicStats, WorkerStats
from foqs.client.outcomes import UnreadFailures
from foqs.client.producer import Producer
from foqs.client.request_ids import request_id
from foqs.client.settings import Settings, SettingsChange
from foqs.client.tls import Tls
from foqs.client.worker import Worker
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
from foqs.ids import Duplicate
from foqs.rows import FailureCause

__all__ = [
    "AckPolicy",
    "ActiveTopic",
    "Backoff",
    "Client",
    "ClientClosed",
    "Code",
    "Conflict",
    "Delivery",
    "Duplicate",
    "ExplainReason",
    "Explanation",
    "Failure",
    "FailureCause",
    "FailureFilter",
    "FailureGroup",
    "Failures",
    "FoqsError",
    "Forbidden",
    "HookStats",
    "Invalid",
    "Item",
    "ItemOptions",
    "ItemSpec",
    "ItemState",
    "Items",
    "Job",
    "Lease",
    "Leased",
    "Ledger",
    "Nack",
    "NotFound",
    "OutcomeUnknown",
    "Overloaded",
    "Producer",
    "Reason",
    "Redriven",
    "RefusedTopic",
    "Released",
    "Retry",
    "ServerInfo",
    "Settings",
    "SettingsChange",
    "StaleLease",
    "Taken",
    "TenantStats",
    "ThrottleStats",
    "Throttles",
    "Tls",
    "TopicStats",
    "Tried",
    "Unauthenticated",
    "Unavailable",
    "UnreadFailures",
    "Worker",
    "WorkerHung",
    "WorkerStats",
    "request_id",
]
