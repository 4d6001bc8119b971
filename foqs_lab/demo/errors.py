"""The one way in which the demo fails."""


class DemoFailed(Exception):
    """A process of the demo did not run, or the queue did not answer.

    Attributes:
        log_tail: the last lines that the process concerned printed, if any.
    """

    def __init__(self, reason: str, log_tail: str = "") -> None:
        super().__init__(reason)
        self.log_tail = log_tail
