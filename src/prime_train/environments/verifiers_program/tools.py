"""Calls the tools of a taskset."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from .refusals import refuse_toolset


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
