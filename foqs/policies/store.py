"""Where the settings of namespaces are kept.

Three implementations, which pass one contract suite: ZooKeeper (a part of `foqs.zk.protocol.FactStore`), the shards
of a lone host (`foqs.server.shard_settings`), and the fake ZooKeeper of the simulations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from foqs.errors import FoqsError
from foqs.policies.settings import Change, Settings

Changed = Callable[[Settings | FoqsError], None]


class SettingsStore(Protocol):
    """Called on the event loop; returns at once, and calls back on the loop."""

    def change_settings(self, ns: str, change: Change, done: Changed) -> None:
        """Replace the stored settings of a namespace by what `change` makes of them, in one step: if they are replaced
        in between, they are read and `change` is asked again.

        `change` may run on any thread and several times. If it returns its argument, nothing is written. `done`
        gets the settings as stored from now on, or the FoqsError that `change` raised; Invalid: the stored ones are
        not readable; Unavailable: nothing was changed; OutcomeUnknown.
        """
