"""Serves the tasks of a taskset: poses them, calls their tools, and has the taskset score the chats."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .refusals import Refused, refuse_agents, refuse_task, refuse_toolset, write_message

MAX_INFINITE_TASKS = 10_000  # tasks that are read of a taskset without an end
HELD_OUT_PART = 8  # one of so many different tasks is held out
MAX_CHATS = 4096  # chats with tools that were not scored, because their rollouts failed


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
class OpenTask:
    """A task that is being answered."""

    task: Any
    trace: Any
    runtime: Any
    tools: Tools

    async def close(self) -> None:
        await self.tools.close()
        await self.runtime.stop()


class TasksetServer:
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
        self._chats: dict[str, OpenTask] = {}  # by key, the oldest first

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

    async def _open_chat(self, call: dict[str, Any]) -> OpenTask:
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
        chat = OpenTask(task, trace, runtime, Tools())
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

    def _write_trace(self, chat: OpenTask, messages: list[dict[str, Any]]) -> None:
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
