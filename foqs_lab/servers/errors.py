"""The one way in which a private server fails to be there."""


class ServerUnavailable(Exception):
    """No usable program was found, or the server did not answer in time.

    Attributes:
        reason: one line for a skip message; the tail of the server's log, if any, is on the lines after it.
    """

    def __init__(self, reason: str, *, log_tail: str = "") -> None:
        super().__init__(f"{reason}\n{log_tail}" if log_tail else reason)
        self.reason = reason
        self.log_tail = log_tail
