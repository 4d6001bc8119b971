"""Functions as tasks: declared on an App, enqueued with their arguments, and run by its workers."""

from foqs.tasks.app import App
from foqs.tasks.chain import Chain
from foqs.tasks.codecs import Codec, JsonCodec, MsgpackCodec
from foqs.tasks.handle import Handle, ResultLost, TaskFailed, Waited, wait
from foqs.tasks.item_batch import BatchEnd, ItemBatch
from foqs.tasks.job import Job
from foqs.tasks.message import Message
from foqs.tasks.middleware import Middleware
from foqs.tasks.options import CallOptions, Options
from foqs.tasks.runner import TaskWorker
from foqs.tasks.task import Call, Task
from foqs.tasks.wrappers import EncryptedCodec, OffloadCodec

__all__ = [
    "App",
    "BatchEnd",
    "Call",
    "CallOptions",
    "Chain",
    "Codec",
    "EncryptedCodec",
    "Handle",
    "ItemBatch",
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
