"""Tasks that are sent to another process: `multiprocessing`, Spark and other queues pickle them."""

import copy
import multiprocessing
import pickle
from datetime import timedelta

import pytest

from foqs import App, Job
from foqs.client import ItemSpec
from foqs.tasks import Message

app = App()


@app.task(topic="double")
def double(job: Job, n: int) -> int:
    return 2 * n


class Shop:
    @staticmethod
    @app.task(name="inner", batch=2)
    def inner(calls: list) -> None: ...


@pytest.mark.memory
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_task_is_pickled_by_its_module_and_name(protocol):
    for task in (double, Shop.inner):
        assert pickle.loads(pickle.dumps(task, protocol)) is task
    assert pickle.loads(pickle.dumps({"call": double}, protocol))["call"](n=3) == 6
    assert copy.deepcopy([double]) == [double]
    assert copy.copy(double) is double


@pytest.mark.memory
def test_other_options_travel_along():
    later = double.options(delay=timedelta(minutes=5), tenant="acme").options(priority=3)
    there = pickle.loads(pickle.dumps(later))
    assert there is not double
    assert there.default == later.default
    assert double.default.get("tenant") is None
    message = pickle.loads(pickle.dumps(double.options(unique="k").message(n=4)))
    assert isinstance(message, Message) and message.task.default["unique"] == "k"
    assert isinstance(message.spec, ItemSpec) and message.spec.dedup_key == "k"


@pytest.mark.process
def test_a_task_is_called_in_another_process():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(double, kwds={"n": 4}) == 8


@pytest.mark.memory
def test_a_task_that_no_other_process_finds():
    @app.task(name="local")
    def local() -> None: ...

    hidden = app.task(name="hidden")(lambda: None)
    for task in (local, hidden, local.options(priority=1)):
        with pytest.raises(TypeError, match=f"^task {task.name} cannot be pickled: it is not .*app.tasks"):
            pickle.dumps(task)
    with pytest.raises(TypeError, match=r"^an App cannot be copied, pickled or sent to another process: import its"):
        pickle.dumps(app)
