"""What a process with scripts knows, and the messages that let it know more. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from foqs.hooks.call_queues import Waiting
from foqs.hooks.frames import NAMESPACES, SCRIPTS, text_of
from foqs.hooks.protocol import Entries, HookCall

_LOADED_BYTES_A_MS = 10_000


class Known:
    """The scripts and settings of one process, by the numbers that the host gave them. The process forgets nothing by
    itself, so both sides know the same after each message."""

    def __init__(self) -> None:
        self._scripts: OrderedDict[tuple[str, bytes], _Script] = OrderedDict()
        self._entries: OrderedDict[str, _Entries] = OrderedDict()
        self._number = 0

    def messages(self, calls: Sequence[Waiting], timeout_ms: int) -> tuple[list[str], int]:
        """Return the messages that run calls of one script, with one version of the settings; and the milliseconds that
        the process may take for new scripts and settings."""
        call = calls[0].call
        sent: list[str] = []
        entries = self._entries_of(call.entries, sent)
        script = self._script_of(call, sent)
        loaded_bytes = 0
        if script.entries != entries.number:  # its Lua state takes the entries over
            script.entries = entries.number
            loaded_bytes = entries.size_bytes
        loaded_bytes += sum(map(len, sent))
        items = [one.call.item for one in calls]
        function = "" if call.compiles else call.key.hook
        sent.append(text_of(["run", script.number, entries.number, function, timeout_ms, items]))
        return sent, loaded_bytes // _LOADED_BYTES_A_MS

    def _script_of(self, call: HookCall, sent: list[str]) -> _Script:
        identity = (call.script.ns, call.script.digest)
        script = self._scripts.get(identity)
        if script is not None:
            self._scripts.move_to_end(identity)
            return script
        if len(self._scripts) == SCRIPTS:
            _, oldest = self._scripts.popitem(last=False)
            sent.append(text_of(["forget_script", oldest.number]))
        self._number += 1
        script = self._scripts[identity] = _Script(self._number)
        sent.append(text_of(["script", script.number, call.script.name, call.script.source]))
        return script

    def _entries_of(self, given: Entries, sent: list[str]) -> _Entries:
        known = self._entries.get(given.ns)
        if known is not None and known.given is given:
            self._entries.move_to_end(given.ns)
            return known
        if known is not None:
            sent.append(text_of(["forget_entries", self._entries.pop(given.ns).number]))
        elif len(self._entries) == NAMESPACES:
            _, oldest = self._entries.popitem(last=False)
            sent.append(text_of(["forget_entries", oldest.number]))
        self._number += 1
        text = text_of(["entries", self._number, dict(given.values)])
        sent.append(text)
        made = self._entries[given.ns] = _Entries(given, self._number, len(text))
        return made


class _Script:
    __slots__ = ("entries", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries = 0


class _Entries:
    __slots__ = ("given", "number", "size_bytes")

    def __init__(self, given: Entries, number: int, size_bytes: int) -> None:
        self.given = given
        self.number = number
        self.size_bytes = size_bytes
