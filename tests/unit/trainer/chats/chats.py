"""Chats, random and fixed, and chat tokenizers for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from prime_train.environments.environment import Message, Tool, ToolCall
from prime_train.spec import Batch, Data, Eval, Run, RunSpec, Source, Tokenizer
from prime_train.trainer.chats.chat import Chat
from prime_train.trainer.chats.chat_template import BUILT_IN
from prime_train.trainer.chats.chat_tokenizer import load_chat_tokenizer
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from tests.fakes.model_folder import SPECIAL, write_tokenizer

WEATHER = Tool("get_weather", "The weather in a city.", {"type": "object", "properties": {"city": {"type": "string"}}})

# The shape of Qwen3's template: tools in the system message, results of tools as a user's turn, and thoughts only
# behind the last question.
QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{% endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set last = namespace(question=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {%- if loop.index0 > last.question and (loop.last or message.reasoning_content) %}
            {{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
# Ends an answer with the end-of-text token and drops the content of a message with calls, as Llama 3.1 does.
LLAMA = """\
{{- bos_token }}
{%- if tools %}{{- tools | tojson }}{% endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n\\n' }}
    {%- if message.role == 'assistant' %}{% generation %}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}{{- call.function | tojson }}{% endfor %}
        {%- else %}{{- message.content | trim }}{% endif %}
        {{- '<|im_end|>' }}{% endgeneration %}
    {%- else %}{{- message.content | trim + '<|im_end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n\\n' }}{% endif %}
"""
# The shape of GLM-4-MoE's template: no token ends a turn, but the one that begins the next message does. Thoughts are
# written only behind the last question. With `marked`, the end is written in the turn and left out of the next message,
# as a template for training does; then it also ends the last turn.
_GLM = """\
{{- '[gMASK]<sop>' }}
{%- if tools %}
    {{- '<|system|>\\n# Tools\\n' }}
    {%- for tool in tools %}{{- (tool | tojson) + '\\n' }}{% endfor %}
{%- endif %}
{%- set begins = {'system': '<|system|>', 'user': '<|user|>'} %}
{%- set begins = dict(begins, assistant='<|assistant|>', tool='<|observation|>') %}
{%- set last = namespace(question=-1, role='') %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if not (marked and last.role == 'assistant') and not (message.role == 'tool' and last.role == 'tool') %}
        {{- begins[message.role] }}
    {%- endif %}
    {%- set last.role = message.role %}
    {%- if message.role == 'assistant' %}
        {%- set thoughts = message.reasoning_content or '' %}
        {%- set answer = message.content %}
        {%- if '</think>' in answer %}
            {%- set thoughts = answer.split('</think>')[0].split('<think>')[-1] %}
            {%- set answer = answer.split('</think>')[-1] %}
        {%- endif %}
        {%- generation %}
        {{- '\\n<think>' + (thoughts.strip() if loop.index0 > last.question else '') + '</think>' }}
        {%- if answer.strip() %}{{- '\\n' + answer.strip() }}{% endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>' + call.function.name }}
            {%- for key, value in call.function.arguments.items() %}
                {{- '\\n<arg_key>' + key + '</arg_key>\\n<arg_value>' }}
                {{- (value if value is string else value | tojson) + '</arg_value>' }}
            {%- endfor %}
            {{- '\\n</tool_call>' }}
        {%- endfor %}
        {%- if marked %}
            {{- begins['tool' if loop.last and message.tool_calls else 'user' if loop.last else loop.nextitem.role] }}
        {%- endif %}
        {%- endgeneration %}
    {%- elif message.role == 'tool' %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- else %}
        {{- '\\n' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}
"""
GLM, GLM_MARKED = ("{%- set marked = " + marked + " %}" + _GLM for marked in ("false", "true"))
GLM_SPECIAL = (
    *("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "/nothink"),
)
GLM_STOPS = ("<|endoftext|>", "<|user|>", "<|observation|>")  # of its generation_config.json

TEMPLATES = {"built-in": BUILT_IN, "qwen": QWEN, "llama": LLAMA, "glm": GLM}
MARKED = TEMPLATES | {"glm": GLM_MARKED}  # with {% generation %}
# Do not know tools: the shapes of Phi-3 and of Llama 3. The first writes no message of a tool.
PHI = """\
{%- for message in messages %}
    {%- if message.role in ('system', 'user', 'assistant') %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% else %}{{- eos_token }}{% endif %}
"""
LLAMA_3 = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n\\n' + message.content | trim + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n\\n' }}{% endif %}
"""


def write_family(folder: Path, name: str) -> Path:
    """A folder with one of TEMPLATES and the tokens that it needs."""
    return write_glm(folder) if name == "glm" else write_folder(folder, TEMPLATES[name])


def write_glm(folder: Path, template: str = GLM) -> Path:
    """A folder with the tokens of GLM-4-MoE, of which three stop the model."""
    write_folder(folder, template, GLM_SPECIAL, eos_token="<|endoftext|>")
    stops = [256 + GLM_SPECIAL.index(token) for token in GLM_STOPS]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}), encoding="utf-8")
    return folder


def write_folder(folder: Path, template: str | None = None, special: Sequence[str] = SPECIAL, **config: Any) -> Path:
    """A byte-level tokenizer without merges, with a chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder / "tokenizer.json", special)
    tokens = {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>", **config}
    if template is not None:
        tokens["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens), encoding="utf-8")
    return folder


def load_folder(folder: Path) -> ChatTokenizer:
    return load_chat_tokenizer(chat_run(tokenizer=Tokenizer(path=str(folder))))


def chat_run(*sources: Source, **parts: Any) -> RunSpec:
    """64 tokens per sequence, a vocabulary of 300, no worker."""
    given: dict[str, Any] = {
        "run": Run(name="chats", kind="sft", max_steps=10, seed=7),
        "data": Data(sources=sources, ctx_tokens=64, pack_buffer_docs=8, loader_workers=0),
        "tokenizer": Tokenizer(vocab_size=300),
        "batch": Batch(micro_batch=2),
        "eval": Eval(held_out_ratio=0.1),
    }
    return RunSpec(**(given | parts))


def weather_chat(thought: str = "") -> Chat:
    """Two questions, the first with two calls at once."""
    calls = tuple(
        ToolCall("get_weather", json.dumps({"city": city}), f"call{n:05d}") for n, city in enumerate(("Paris", "Rome"))
    )
    return Chat(
        (
            Message("system", "Answer briefly."),
            Message("user", "How warm is it in Paris and Rome?"),
            Message("assistant", "I look.", tool_calls=calls, reasoning=thought),
            Message("tool", "18", tool_call_id="call00000", name="get_weather"),
            Message("tool", "21", tool_call_id="call00001", name="get_weather"),
            Message("assistant", "18 and 21 degrees."),
            Message("user", "Danke! 日本?"),
            Message("assistant", "I do not know."),
        ),
        (WEATHER,),
    )


def texts(blocked: tuple[str, ...] = ()) -> st.SearchStrategy[str]:
    """Short texts, also with spaces and line ends at their ends, and with words of a template unless blocked."""
    words = [
        word
        for word in ("<|im_end|>", "<|im_start|>", "<|user|>", "<think>", "\n", " ", "{%", "é", "日")
        if word not in blocked
    ]
    return st.lists(st.sampled_from([*words, "a", "be", "12"]), max_size=6).map("".join)


@st.composite
def chats(draw: st.DrawFn, text: st.SearchStrategy[str], thoughts: bool = False) -> Chat:
    """One to three questions, each with up to two rounds of tools before the answer."""
    messages = [Message("system", draw(text))] if draw(st.booleans()) else []
    uses_tools = draw(st.booleans())
    for _ in range(draw(st.integers(1, 3))):
        messages.append(Message("user", draw(text)))
        for _ in range(draw(st.integers(0, 2)) if uses_tools else 0):
            call = ToolCall("get_weather", json.dumps({"city": draw(text)}, ensure_ascii=False), "call00001")
            messages.append(Message("assistant", draw(text), tool_calls=(call,), reasoning=_thought(draw, thoughts)))
            messages.append(Message("tool", draw(text), tool_call_id=call.id, name=call.name))
        messages.append(Message("assistant", draw(text), reasoning=_thought(draw, thoughts)))
    return Chat(tuple(messages), (WEATHER,) if uses_tools else ())


def _thought(draw: st.DrawFn, thoughts: bool) -> str:
    return draw(st.sampled_from(["", "hm"])) if thoughts else ""
