"""Refuses a taskset that needs more than can be served here, and describes errors for the trainer."""

from __future__ import annotations

import traceback
from typing import Any


class Refused(Exception):
    """The taskset cannot be served here. `kind` decides the advice."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


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
