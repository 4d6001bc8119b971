"""The imports of every `foqs` command, for the process that tests/support/forked.py forks."""

from importlib import import_module

import foqs.cli.host
import foqs.doctor
import foqs.store.maintenance
import foqs.zk.client  # noqa: F401
from foqs.cli.main import VERBS

for module in {verb.module for verb in VERBS.values()}:
    import_module(f"foqs.cli.{module}")
for module in ("foqs.client", "foqs.client.item_copies"):
    import_module(module)
