"""The table of the contract's methods. A handler checks a request, gives it to the engine or to another host, and
answers when either reports the outcome.

The table imports all classes with handlers, so none of their files can hold it.
"""

from __future__ import annotations

from collections.abc import Callable

from foqs.api.ack_dequeue import AckDequeue
from foqs.api.admin_methods import ChangeMethods, HookMethods, LeaseMethods, SettingsMethods
from foqs.api.batches import Batches
from foqs.api.dead_letters import DeadLetters
from foqs.api.host import Host
from foqs.api.item_life import ItemLife
from foqs.api.lookups import Explain, Lookups, RoutingMethods
from foqs.api.peer_methods import PeerMethods
from foqs.api.results import Results
from foqs.api.schedules import Schedules
from foqs.api.status import Status
from foqs.api.unique import Unique
from foqs.hooks.topic_hooks import TopicHooks
from foqs.peers.forwarded import Timers
from foqs.peers.lending import Lending
from foqs.peers.ready_topics import ReadyPublisher
from foqs.peers.settings_sync import HostSettings
from foqs.peers.tenant_shares import TenantShares
from foqs.policies.settings import SettingsStore
from foqs.rpc.call import Call


class Handlers:
    """`routing_changed` is called when the shards that are served here, or the routing, changed."""

    def __init__(
        self,
        host: Host,
        news: ReadyPublisher,
        lending: Lending,
        shares: TenantShares,
        settings: HostSettings,
        store: SettingsStore,
        hooks: TopicHooks,
        quiet: Callable[[], bool],
        timers: Timers,
    ) -> None:
        self.host = host
        self.routing = RoutingMethods(host, news, quiet)
        self.routing_changed = self.routing.changed
        unique = Unique(host)
        items = ItemLife(host, news, lending.quotas, shares.elsewhere, hooks, unique)
        lookups = Lookups(host, hooks, lending.coordinator)
        schedules = Schedules(host, items, lookups, timers)
        self.scheduler = schedules.scheduler
        self.status = Status(host, lending.quotas.of)
        self._parts = (
            items,
            AckDequeue(items, host),
            lookups,
            schedules,
            self.status,
            Results(host),
            Batches(host),
            unique,
            Explain(host, lending.coordinator),
            DeadLetters(host, lending.quotas.admit),
            self.routing,
            SettingsMethods(host, settings, store, hooks),
            HookMethods(host, hooks),
            LeaseMethods(host),
            ChangeMethods(host, items),
            PeerMethods(host, lending, shares),
        )

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {method: handle for part in self._parts for method, handle in part.handlers().items()}
