"""The methods of the contract. A handler checks a request, gives it to the engine or to another host, and answers when
either reports the outcome."""

from __future__ import annotations

from collections.abc import Callable

from foqs.api.ack_dequeue import AckDequeue
from foqs.api.admin_methods import HookMethods, Leases, SettingsMethods
from foqs.api.dead_letters import DeadLetters
from foqs.api.item_life import ItemLife
from foqs.api.lookups import Explain, Info, Lookups, RoutingMethods, ThrottleMethods
from foqs.api.peer_methods import PeerMethods
from foqs.bounds import Limits
from foqs.engine.engine import Engine
from foqs.hooks.topic_hooks import TopicHooks
from foqs.peers.forwarder import Forwarder, LoneForwarder
from foqs.peers.lease_coordinator import SlotCoordinator
from foqs.peers.quota_client import QuotaClient
from foqs.peers.ready_topics import ReadyPublisher
from foqs.peers.settings_sync import HostSettings
from foqs.peers.tenant_shares import ShareExchange
from foqs.policies.settings import SettingsStore
from foqs.rpc.call import Call


class Handlers:
    """`now_ms` is the host's clock; `address` is host:port as clients know it. `routing_changed` is called when the
    shards that are served here, or the routing, changed."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        now_ms: Callable[[], int],
        address: Callable[[], str],
        news: ReadyPublisher,
        quotas: QuotaClient,
        slots: SlotCoordinator,
        shares: ShareExchange,
        forwarder: Forwarder | LoneForwarder,
        settings: HostSettings,
        store: SettingsStore,
        hooks: TopicHooks,
    ) -> None:
        self._items = ItemLife(engine, limits, now_ms, news, quotas, shares.elsewhere, forwarder, hooks)
        self._ack_dequeue = AckDequeue(self._items, engine, now_ms, forwarder)
        self._lookups = Lookups(engine, limits, now_ms, address, forwarder, hooks)
        self._explain = Explain(engine, lambda: self.limits, now_ms, forwarder)
        self._dead_letters = DeadLetters(engine, limits, now_ms, address, forwarder, quotas.admit)
        self.routing = RoutingMethods(engine, limits, now_ms, news, forwarder)
        self._leases = Leases(engine, lambda: self.limits, now_ms, address, forwarder)
        self._throttles = ThrottleMethods(
            engine, lambda: self.limits, now_ms, address, quotas.coordinator, slots, forwarder
        )  # fmt: skip
        self._info = Info(engine, lambda: self.limits, now_ms)
        hash_slots = lambda: forwarder.routing().slots  # noqa: E731
        self._peers = PeerMethods(
            engine, lambda: self.limits, now_ms, hash_slots, quotas.coordinator, slots, shares
        )  # fmt: skip
        self._settings = SettingsMethods(
            engine, lambda: self.limits, now_ms, address, settings, store, forwarder, hooks
        )
        self._hooks = HookMethods(hooks, lambda: self.limits, now_ms)
        self.routing_changed = self.routing.changed

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {
            **self._items.handlers(),
            **self._ack_dequeue.handlers(),
            **self._lookups.handlers(),
            **self._dead_letters.handlers(),
            **self.routing.handlers(),
            **self._peers.handlers(),
            **self._settings.handlers(),
            "ReleaseLeases": self._leases.release,
            "TryHook": self._hooks.try_hook,
            "ExplainItem": self._explain.explain,
            "GetThrottles": self._throttles.throttles,
            "GetServerInfo": self._info.server_info,
        }

    @property
    def limits(self) -> Limits:
        return self._items.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        """Follow a reload of the configuration: from the next request on."""
        self._items.limits = self._lookups.limits = self.routing.limits = limits
        self._dead_letters.limits = limits
