"""Takes from the process what a script has no use for: files, network, other processes, further memory.

Lua's libraries are the first wall, and this is the second: it holds if a script finds an error in Lua itself.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from typing import NamedTuple

SECCOMP, NETWORK_NAMESPACE, NONE = "seccomp", "network namespace", "none"
_OPEN_FILES = 3
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_CLONE_NEWUSER, _CLONE_NEWNET = 0x1000_0000, 0x4000_0000
_ALLOW, _REFUSE = 0x7FFF_0000, 0x0005_0000 | errno.EPERM
_LOAD, _JUMP_EQUAL, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _THIRD_ARGUMENT_AT = 0, 4, 32
_PROT_EXEC = 4


class _Machine(NamedTuple):
    """System calls that a process needs to run scripts. `mappings` are allowed only for memory that holds no code."""

    architecture: int
    calls: tuple[int, ...]
    mappings: tuple[int, int]


_MACHINES = {
    # read, write, close, poll, munmap, brk, rt_sigaction, rt_sigprocmask, rt_sigreturn, sched_yield, mremap, madvise,
    # setitimer, getpid, sendto, recvfrom, exit, gettimeofday, getrusage, sigaltstack, gettid, futex, restart_syscall,
    # clock_gettime, clock_getres, exit_group, getrandom, membarrier, rseq; then mmap, mprotect
    "x86_64": _Machine(
        0xC000_003E,
        (0, 1, 3, 7, 11, 12, 13, 14, 15, 24, 25, 28, 38, 39, 44, 45, 60, 96, 98, 131, 186, 202, 219, 228, 229, 231,
         318, 324, 334),
        (9, 10),
    ),
    # The same; ppoll in place of poll.
    "aarch64": _Machine(
        0xC000_00B7,
        (63, 64, 57, 73, 215, 214, 134, 135, 139, 124, 216, 233, 103, 172, 206, 207, 93, 169, 165, 132, 178, 98, 128,
         113, 114, 94, 278, 283, 293),
        (222, 226),
    ),
}  # fmt: skip


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def limit(memory_bytes: int) -> None:
    """Bound the process: its address space, no file beyond the three that are open, no core dump, no written byte."""
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
    }
    for name, most in limits.items():
        resource.setrlimit(name, (most, most))


def confine() -> str:
    """Deny system calls, or at least the network. Return what the kernel gave: one of SECCOMP, NETWORK_NAMESPACE, NONE.

    There is no way back, also for a process of root."""
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return NONE
    libc = ctypes.CDLL(None, use_errno=True)
    if _deny_calls(libc):
        return SECCOMP
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0:
        return NETWORK_NAMESPACE
    return NONE


def _deny_calls(libc: ctypes.CDLL) -> bool:
    machine = _MACHINES.get(platform.machine())
    if machine is None or libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    code = filter_of(machine)
    instructions = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(instructions))
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0)


def filter_of(machine: _Machine) -> bytes:
    """Return the BPF program that refuses all other calls with EPERM."""
    count = len(machine.calls)
    # Jumps count from the next instruction. At the end: load the third argument, test it, refuse, allow.
    mmap_from, calls_from = 3, 5
    test_at = calls_from + count + 1
    refuse_at, allow_at = test_at + 2, test_at + 3
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 0, refuse_at - 2, machine.architecture),
        (_LOAD, 0, 0, _NUMBER_AT),
        *((_JUMP_EQUAL, test_at - (mmap_from + at) - 1, 0, one) for at, one in enumerate(machine.mappings)),
        *((_JUMP_EQUAL, allow_at - (calls_from + at) - 1, 0, one) for at, one in enumerate(machine.calls)),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _THIRD_ARGUMENT_AT),
        (_JUMP_BITS, 0, 1, _PROT_EXEC),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *one) for one in code)
