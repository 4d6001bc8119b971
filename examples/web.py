"""A web application whose customers share its workers, each with at most 2 reports at a time.

foqs throttle set 'customer:*' --concurrency 2
foqs worker examples.web:app
uvicorn examples.web:web
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from foqs import App

app = App.from_env()


@app.task(topic="reports", time_limit=300)
async def report(customer: str, month: str) -> str:
    return f"{month} of {customer}"


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    async with app:  # closes the client of this event loop
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/reports", status_code=202)
async def order(customer: str, month: str) -> str:
    task = report.options(tenant=customer, throttle=[f"customer:{customer}"], unique=f"{customer}/{month}")
    return str((await task.aenqueue(customer, month)).id)


@web.get("/reports/{item_id}")
async def look(item_id: int) -> str:
    return await report.handle(item_id).aresult(timeout=20)
