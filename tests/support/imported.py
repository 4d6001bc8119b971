"""The imports of every `foqs` command, for the process that tests/support/forked.py forks."""

import foqs.cli.main
import foqs.cli.process
import foqs.doctor
import foqs.store.schema
import foqs.zk.client  # noqa: F401
