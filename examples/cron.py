"""Work at set times, which the service enqueues, also while no worker runs.

foqs worker examples.cron:app
foqs schedule list
"""

from foqs import App, Job

app = App.from_env()


@app.periodic("0 3 * * *", timezone="Europe/Berlin", catch_up="last")
@app.task(topic="nightly", max_attempts=3)
def clean_up(job: Job, days: int = 30) -> None:
    at = job.headers.get("schedule_at_ms", "now")  # `foqs schedule run` gives none
    print(f"time {at}: remove carts older than {days} days")


@app.periodic("@every 10s", overlap="skip")
@app.task(topic="poll")
async def poll() -> None:
    print("look for new files")
