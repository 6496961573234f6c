"""Reads a call per line of stdin and writes its answer as a line of stdout, both JSON.

A taskset's own prints go to stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import Any

from .refusals import describe_error, describe_missing
from .server import TasksetServer


async def answer(server: TasksetServer, call: dict[str, Any]) -> dict[str, Any]:
    limit = asyncio.timeout(call["limit_s"])
    try:
        async with limit:
            match call["do"]:
                case "task":
                    return {"result": server.task(call["split"], call["number"])}
                case "respond":
                    return {"result": await server.respond(call)}
                case _:
                    return {"result": await server.score(call)}
    except Exception as error:  # the taskset is the user's code and may raise anything
        described = describe_error(error)
        return described | {"error": f"no answer within {call['limit_s']:.4g} s"} if limit.expired() else described


async def serve(opening: dict[str, Any], write: Any) -> None:
    """Open the taskset, then answer the calls on stdin, several at a time, until stdin ends."""
    try:
        server = TasksetServer(opening["taskset"], opening["search_folder"], opening["arguments"])
        described = await server.open()
    except ModuleNotFoundError as error:
        write(describe_error(describe_missing(error, opening["taskset"])))
        return
    except BaseException as error:  # also a SystemExit of the taskset's module
        write(describe_error(error))
        return
    write({"result": described})
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    async def run(call: dict[str, Any]) -> None:
        write({"id": call["id"], **await answer(server, call)})

    def start(call: dict[str, Any]) -> None:
        task = loop.create_task(run(call))
        running.add(task)
        task.add_done_callback(running.discard)

    def read() -> None:
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(start, json.loads(line))
        os._exit(0)  # the trainer has ended, or no longer needs the taskset; a reward may still block the loop

    threading.Thread(target=read, daemon=True).start()
    await loop.create_future()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a print of the taskset is no answer
    lock = threading.Lock()

    def write(value: dict[str, Any]) -> None:
        with lock:
            answers.write(json.dumps(value) + "\n")
            answers.flush()

    opening = json.loads(sys.stdin.buffer.readline() or "null")
    if opening is not None:
        asyncio.run(serve(opening, write))
