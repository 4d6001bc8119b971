"""The Python client of foqs.

`Client` makes single calls, `Producer` gathers enqueues into batches, `Worker` runs a handler for every item.

>>> from foqs.client import Client
>>> with Client("127.0.0.1:7707", "shop") as client:            # doctest: +SKIP
...     client.enqueue("mail", b"hello")
"""

from foqs.client.caller import request_id
from foqs.client.client import Client
from foqs.client.connection import ClientClosed, Tls
from foqs.client.consumer_calls import Taken
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
    Lease,
    Leased,
    Ledger,
    Nack,
    Progress,
)
from foqs.client.job import AckPolicy, Job, Retry
from foqs.client.operator_types import (
    ExplainReason,
    Explanation,
    FailureFilter,
    FailureGroup,
    Failures,
    Reason,
    Redriven,
    RefusedTopic,
    Released,
    Result,
    Schedule,
    Schedules,
    ServerInfo,
    Settings,
    SettingsChange,
    Throttles,
    Tried,
)
from foqs.client.producer import Producer, UnreadFailures
from foqs.client.rules import ItemRules, RetryKind, RetryRule
from foqs.client.timing import Backoff
from foqs.client.work import WorkerHung
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
from foqs.figures import ActiveTopic, HookStats, TenantStats, ThrottleStats, TopicStats, WorkerStats
from foqs.ids import OnDuplicate
from foqs.rows import FailureCause
from foqs.second_answer import Duplicate, Replaced

__all__ = [
    "Ack",
    "AckPolicy",
    "ActiveTopic",
    "Backoff",
    "Client",
    "ClientClosed",
    "Code",
    "Conflict",
    "DedupUntil",
    "Delivery",
    "Duplicate",
    "ExplainReason",
    "Explanation",
    "Extension",
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
    "ItemRules",
    "ItemSpec",
    "ItemState",
    "Items",
    "Job",
    "Lease",
    "Leased",
    "Ledger",
    "Nack",
    "NotFound",
    "OnDuplicate",
    "OutcomeUnknown",
    "Overloaded",
    "Producer",
    "Progress",
    "Reason",
    "Redriven",
    "RefusedTopic",
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
