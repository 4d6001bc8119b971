"""Functions as tasks: declared on an App, enqueued with their arguments, and run by its workers."""

from foqs.tasks.app import App
from foqs.tasks.codecs import Codec, JsonCodec, MsgpackCodec
from foqs.tasks.handle import Handle, ResultLost, TaskFailed, Waited, wait
from foqs.tasks.job import Job
from foqs.tasks.middleware import Middleware
from foqs.tasks.runner import TaskWorker
from foqs.tasks.task import Call, Message, Options, Task
from foqs.tasks.wrappers import EncryptedCodec, OffloadCodec

__all__ = [
    "App",
    "Call",
    "Codec",
    "EncryptedCodec",
    "Handle",
    "Job",
    "JsonCodec",
    "Message",
    "Middleware",
    "MsgpackCodec",
    "OffloadCodec",
    "Options",
    "ResultLost",
    "Task",
    "TaskFailed",
    "TaskWorker",
    "Waited",
    "wait",
]
