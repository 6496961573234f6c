"""The inference server's root."""

from __future__ import annotations

from pydantic import Field

from .shared import Strict, VllmConfig


class ServerConfig(Strict):
    host: str | None = None
    port: int = Field(default=8000, ge=1, le=65535)


class InferenceConfig(Strict):
    vllm: VllmConfig = VllmConfig()
    server: ServerConfig = ServerConfig()
