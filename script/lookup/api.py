"""The public names of the Python library, in groups: mkdocstrings renders each from its docstring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import foqs
import foqs.client
import foqs.testing
from foqs.errors import FoqsError

_GROUPS: Mapping[str, Mapping[str, str]] = {
    "tasks": {
        "foqs": "App Handle wait Job Retry Reject Chain ItemBatch BatchEnd Call Middleware "
        "Codec JsonCodec MsgpackCodec EncryptedCodec OffloadCodec build",
        "foqs.tasks": "Task Options CallOptions",
    },
    "clients": {"foqs.client": "Client AsyncClient Tls request_id Producer AsyncProducer Batch BatchCounts BatchState"},
    "workers": {"foqs.client": "Worker AsyncWorker Job AsyncJob AckPolicy Backoff"},
    "items": {
        "foqs.client": "ItemSpec ItemOptions ItemRules RetryRule RetryKind Delivery DedupUntil OnDuplicate Duplicate "
        "Replaced Items Item ItemState Leased Taken Lease Ack Nack Extension Progress Ledger Failure LastFailure "
        "FailureCause Result"
    },
    "operators": {
        "foqs.client": "ItemFilter ItemPage ChangedItems Released Explanation ExplainReason ExplainLimit "
        "ExplainTenants Reason LimitKind Failing FailingTopic FailingGroup Failures FailureGroup FailureFilter "
        "Redriven RefusedTopic Schedules Schedule Tried"
    },
    "settings": {
        "foqs.client": "PolicyFields ThrottleFields Settings SettingsChange SettingsLog SettingsVersion SettingsStamp "
        "ValueDigest"
    },
    "figures": {
        "foqs.client": "Status HostStatus ShardStatus TopicStatus QuotaStatus RateStatus TopicsPage ActiveTopic "
        "TopicStats TenantStats WorkerStats HookStats Consumers ConsumerStats Throttles ThrottleStats ShadowHour Rates "
        "NamespaceRates OldestTopic ServerInfo"
    },
    "testing": {"foqs.testing": "dev server Dev Server"},
}
_TWINS = ("AsyncClient", "AsyncProducer", "AsyncWorker", "AsyncJob")
"""They have the methods of a blocking class, as coroutines: the page lists these once."""
_AGAIN = ("Retry", "Reject", "Code")
"""Names of foqs.client that the page has elsewhere: two under `foqs`, the codes in errors.md."""


def group(name: str) -> str:
    return "\n\n".join(_directive(f"{module}.{one}") for module, one in _names(_GROUPS[name]))


def _names(modules: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for module, names in modules.items():
        yield from ((module, one) for one in names.split())


def _directive(path: str) -> str:
    only = "\n    options:\n      members: false" if path.endswith(_TWINS) else ""
    return f"::: {path}{only}"


def _complete() -> None:
    """Raise AssertionError unless each public name is in a group: a new one is forgotten otherwise."""
    listed = {f"{module}.{one}" for groups in _GROUPS.values() for module, one in _names(groups)}
    for module in (foqs, foqs.client, foqs.testing):
        for name in module.__all__:
            found = getattr(module, name)
            is_error = isinstance(found, type) and issubclass(found, FoqsError | RuntimeError)
            if not is_error and not (module is foqs.client and name in _AGAIN):
                assert f"{module.__name__}.{name}" in listed, (
                    f"{module.__name__}.{name}: script/lookup/api.py has no group"
                )


_complete()
PARTS: Mapping[str, Callable[[], str]] = {name: partial(group, name) for name in _GROUPS}
