"""What blocking code waits with, by the names of its asynchronous twin."""

from threading import Condition, Event, RLock
from weakref import finalize

from foqs.client.guard import Background, renew_after_fork

Lock = RLock  # a signal handler may call the client
when_forgotten = finalize  # a client that is just forgotten leaves no thread

__all__ = ["Background", "Condition", "Event", "Lock", "renew_after_fork", "when_forgotten"]
