"""Serves one taskset of verifiers 0.4: a JSON object per line on stdin and stdout. Runs in the taskset's interpreter.

Needs the standard library and verifiers, and nothing of prime_train. The taskset's own prints go to stderr.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_INFINITE_TASKS = 10_000  # tasks that are read of a taskset without an end
HELD_OUT_PART = 8  # one of so many different tasks is held out
MAX_CHATS = 4096  # chats with tools that were not scored, because their rollouts failed


class Refused(Exception):
    """The taskset cannot be served here. `kind` decides the advice."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Tools:
    """Tools that are called in this process, by the names that verifiers' own harness gives them."""

    def __init__(self) -> None:
        self.listed: list[dict[str, Any]] = []
        self._calls: dict[str, tuple[Any, str]] = {}  # full name -> server, name there
        self._toolsets: list[Any] = []

    async def add(self, toolset: Any, data: Any = None) -> None:
        """Set up a toolset; `data` is of the task whose chat it serves, None if all chats share it."""
        from mcp.server.mcpserver import MCPServer

        refuse_toolset(toolset)
        self._toolsets.append(toolset)
        await toolset.setup()
        if data is not None:
            await toolset.setup_task(data)
        server = MCPServer(toolset.server_name or type(toolset).__name__)
        toolset.register(server)
        for tool in await server.list_tools():
            name = f"{toolset.server_name}_{tool.name}" if toolset.server_name else tool.name
            self._calls[name] = (server, tool.name)
            listed = {"name": name, "description": tool.description or "", "parameters": tool.input_schema}
            self.listed.append(listed)

    def has(self, name: str) -> bool:
        return name in self._calls

    async def call(self, name: str, written: str) -> str:
        """What the model reads: the result, or the error. `written` are the arguments as the model wrote them."""
        try:
            arguments = json.loads(written or "{}")
        except (ValueError, RecursionError):
            return "error: invalid JSON in tool arguments; resend the call with valid JSON"
        if not isinstance(arguments, dict):
            return "error: tool arguments must be a JSON object; resend as an object"
        if name not in self._calls:
            return f"error: unknown tool {name!r}"
        server, inner = self._calls[name]
        try:
            result = await server.call_tool(inner, arguments)
        except Exception as error:  # a tool may raise anything; verifiers gives the model its text, too
            return str(error)
        blocks = getattr(result, "content", result)
        return "\n".join(block.text if block.type == "text" else str(block) for block in blocks)

    async def close(self) -> None:
        for toolset in self._toolsets:
            with suppress(Exception):  # the chat is over, so an error has no consequence
                await toolset._exit_stack.aclose()


@dataclass
class Chat:
    """A task that is being answered."""

    task: Any
    trace: Any
    runtime: Any
    tools: Tools

    async def close(self) -> None:
        await self.tools.close()
        await self.runtime.stop()


class Server:
    """The tasks of a taskset, each in one split, their tools and rewards."""

    def __init__(self, taskset_id: str, search_folder: str, arguments: dict[str, Any]) -> None:
        import verifiers.v1 as vf
        from verifiers.v1.utils import loaders

        self._vf = vf
        if search_folder:
            sys.path.insert(0, search_folder)
        config_type = loaders.taskset_config_type(taskset_id)
        try:
            config = config_type.model_validate({"id": taskset_id, **nest(arguments)})
        except ValueError as error:
            raise Refused("arguments", str(error)) from error
        refuse_agents(loaders, taskset_id)
        taskset = loaders.load_taskset(config)
        tasks = list(taskset if taskset.bounded else taskset.take(MAX_INFINITE_TASKS))
        for task in tasks[:1]:
            refuse_task(task)
        self._splits = split_tasks(tasks)
        self._shared_toolsets = taskset.toolsets(config)
        self._shared = Tools()
        self._chats: dict[str, Chat] = {}  # by key, the oldest first

    async def open(self) -> dict[str, Any]:
        """Set up the shared tools; returns the description of the taskset."""
        for toolset in self._shared_toolsets:
            await self._shared.add(toolset)
        first, own = self._splits["train"][0], Tools()
        for toolset in first.toolsets(first.config):
            await own.add(toolset, first.data)
        await own.close()
        counts = {split: len(tasks) for split, tasks in self._splits.items()}
        return {**counts, "tools": [*self._shared.listed, *own.listed]}

    def task(self, split: str, number: int) -> dict[str, Any]:
        task = self._splits[split][number]
        refuse_task(task)
        return {"messages": [write_message(message) for message in self._prompt(task)]}

    async def respond(self, call: dict[str, Any]) -> list[str]:
        """The results of the tool calls in the last message, in their order."""
        chat = await self._open_chat(call)
        if call["chat"] not in self._chats:
            while len(self._chats) >= MAX_CHATS:
                await self._chats.pop(next(iter(self._chats))).close()
            self._chats[call["chat"]] = chat
        results = []
        for asked in call["messages"][-1]["tool_calls"]:
            tools = self._shared if self._shared.has(asked["name"]) else chat.tools
            results.append(await tools.call(asked["name"], asked["arguments"]))
        return results

    async def score(self, call: dict[str, Any]) -> float:
        """The sum of the weighted rewards that the task gives the chat."""
        from verifiers.v1.utils.decorators import invoke

        chat = await self._open_chat(call)
        self._chats.pop(call["chat"], None)
        try:
            self._write_trace(chat, call["messages"])
            await invoke(chat.task.finalize, {"trace": chat.trace, "runtime": chat.runtime})
            await chat.task.score(chat.trace, chat.runtime)
        finally:
            await chat.close()
        return float(chat.trace.reward)

    async def _open_chat(self, call: dict[str, Any]) -> Chat:
        """The chat of a call; a new one if none of its tools was called yet."""
        from verifiers.v1.runtimes import SubprocessConfig, make_runtime
        from verifiers.v1.state import state_cls
        from verifiers.v1.utils.decorators import invoke

        if call["chat"] in self._chats:
            return self._chats[call["chat"]]
        task, vf = self._splits[call["split"]][call["number"]], self._vf
        if any(message["role"] == "tool" for message in call["messages"][len(self._prompt(task)) :]):
            raise RuntimeError("the tools of this chat ended with the process of the taskset")
        trace = vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            state=state_cls(type(task))(),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
        )
        runtime = make_runtime(SubprocessConfig(), name=trace.id)
        runtime.env = dict(task.runtime_env())
        chat = Chat(task, trace, runtime, Tools())
        try:
            await runtime.start()
            await runtime.prepare_setup()
            await invoke(task.setup, {"trace": trace, "runtime": runtime})
            for toolset in task.toolsets(task.config):
                await chat.tools.add(toolset, task.data)
        except BaseException:
            await chat.close()
            raise
        return chat

    def _write_trace(self, chat: Chat, messages: list[dict[str, Any]]) -> None:
        """Write the turns of a finished chat into its trace."""
        from verifiers.v1.graph import prepare_turn

        vf = self._vf
        tools = [vf.Tool(**listed) for listed in (*self._shared.listed, *chat.tools.listed)]
        written = list(self._prompt(chat.task))
        for turn, message in enumerate(messages[len(written) :]):
            if message["role"] == "tool":
                written.append(vf.ToolMessage(**{name: message[name] for name in ("tool_call_id", "content", "name")}))
                continue
            calls = [vf.ToolCall(**call) for call in message.get("tool_calls", ())]
            answer = vf.AssistantMessage(content=message["content"], tool_calls=calls or None)
            response = vf.Response(
                id=f"turn-{turn}",
                created=int(time.time()),
                model="policy",
                message=answer,
                finish_reason="tool_calls" if calls else "stop",
            )
            prepare_turn(chat.trace, written, tools).commit(response)
            written.append(answer)
        chat.trace.stop("agent_completed")
        chat.trace.ok = True

    def _prompt(self, task: Any) -> list[Any]:
        """The messages before the model's first turn, as the `null` harness of verifiers builds them."""
        vf, data = self._vf, task.data
        system = [] if data.system_prompt is None else [vf.SystemMessage(content=data.system_prompt)]
        prompt = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else data.prompt
        return [*system, *prompt]


def nest(arguments: dict[str, Any]) -> dict[str, Any]:
    """`{"task.style": 1}` as `{"task": {"style": 1}}`."""
    nested: dict[str, Any] = {}
    for name, value in arguments.items():
        *outer, last = name.split(".")
        place = nested
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


def refuse_agents(loaders: Any, taskset_id: str) -> None:
    """Refuse a taskset that plays with agents of its own."""
    from verifiers.v1.envs.single_agent import SingleAgentEnv

    if loaders.environment_class(taskset_id) is not SingleAgentEnv:
        raise Refused("agents", "the taskset has an Env of its own, with agents that prime-train does not run")
    harness = loaders.default_harness_id(taskset_id)
    if harness not in ("bash", "null"):
        raise Refused("agents", f"the taskset brings the harness {harness!r}, a program that prime-train does not run")


def refuse_task(task: Any) -> None:
    """Refuse a task that needs more than a prompt, one answer, a subprocess and a reward."""
    from verifiers.v1.utils.decorators import discover_decorated

    data = task.data
    if type(task).NEEDS_CONTAINER or data.image is not None or data.agent_user is not None:
        raise Refused("container", "its tasks need a container; prime-train has only verifiers' subprocess runtime")
    if discover_decorated(task, "intercept") or task.hooks("stop"):
        raise Refused("hooks", "its tasks intercept or stop turns, which only verifiers' own harness lets them do")
    if data.prompt is None:
        raise Refused("prompt", "its tasks have no prompt, because a simulated user opens the chat")
    if not (task.hooks("reward") or task.config.judges):
        raise Refused("reward", "its tasks have no @vf.reward")
    if not isinstance(data.prompt, str):
        for message in data.prompt:
            write_message(message)


def refuse_toolset(toolset: Any) -> None:
    """Refuse tools that need more than this process."""
    from verifiers.v1.state import State, state_cls

    config, name = toolset.config, type(toolset).__name__
    if getattr(config, "url", None) or getattr(config, "colocated", False) or config.runtime.type != "subprocess":
        raise Refused(
            "tools", f"the toolset {name} runs elsewhere, and prime-train calls tools in the taskset's process"
        )
    if state_cls(type(toolset)) is not State:
        raise Refused("tools", f"the toolset {name} shares a State, which only verifiers' own harness carries")


def write_message(message: Any) -> dict[str, Any]:
    if message.role == "assistant" and message.tool_calls:
        raise Refused("tools", "its prompts have tool calls")
    content = message.content
    if isinstance(content, list):
        if any(part.type != "text" for part in content):
            raise Refused("images", "its prompts have images, and the trainer's models read text")
        content = "\n".join(part.text for part in content)
    return {"role": message.role, "content": content or ""}


def split_tasks(tasks: list[Any]) -> dict[str, list[Any]]:
    """Tasks for training and held-out ones. Equal tasks are in the same split, and no seed changes the split."""
    groups: dict[str, list[Any]] = {}
    for task in tasks:
        data = task.data.model_dump(mode="json", exclude={"idx", "id", "name"})
        text = json.dumps(data, sort_keys=True)
        groups.setdefault(hashlib.sha256(text.encode()).hexdigest(), []).append(task)
    if len(groups) < 2:
        raise Refused("size", f"it has {len(groups)} different tasks; at least 2 are needed, because one is held out")
    held_out = set(sorted(groups)[: max(1, len(groups) // HELD_OUT_PART)])
    splits: dict[str, list[Any]] = {"train": [], "held_out": []}
    for key, group in groups.items():
        splits["held_out" if key in held_out else "train"] += group
    return splits


def describe_error(error: BaseException) -> dict[str, Any]:
    """The error for the trainer, with its kind and its traceback."""
    trace = "".join(traceback.format_exception(error))
    text = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
    return {"error": text[:2000], "kind": getattr(error, "kind", ""), "trace": trace[-8000:]}


def describe_missing(error: ModuleNotFoundError, taskset_id: str) -> Refused:
    """Which module is missing: verifiers, the taskset, or one that the taskset imports."""
    root = error.__cause__ if isinstance(error.__cause__, ModuleNotFoundError) else error
    module = root.name or ""
    if module.split(".")[0] == "verifiers":
        return Refused("verifiers", "verifiers is not installed")
    name = taskset_id.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_").lower()
    if module == name:
        return Refused("id", f"there is no taskset {taskset_id!r}")
    return Refused("package", f"it imports {module}, which is not installed")


async def answer(server: Server, call: dict[str, Any]) -> dict[str, Any]:
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
        server = Server(opening["taskset"], opening["search_folder"], opening["arguments"])
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
    own_folder = str(Path(__file__).resolve().parent)
    sys.path[:] = [folder for folder in sys.path if folder != own_folder]  # its modules would hide those of a taskset
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


if __name__ == "__main__":
    main()
