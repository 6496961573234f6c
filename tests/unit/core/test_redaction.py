from __future__ import annotations

import base64
import json
import random
import sysconfig
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.redaction import MASK, LineRedactor, forms, is_secret, redact, redact_all, secrets
from prime_train.events import AttemptEnded, EventLog, read
from prime_train.views.config.masked import mask
from tests.planted import KINDS, WRITTEN, draw, draw_named, in_text


def test_a_secret_is_known_by_the_name_of_its_variable() -> None:
    named = {
        "HF_TOKEN": "abcd1",
        "WANDB_API_KEY": "abcd2",
        "aws_secret_access_key": "abcd3",
        "DB_PASSWORD": "abcd4",
        "OPENAI_API_KEY_2": "abcd5",
        "GITHUB_PAT": "abcd6",
        "SENTRY_DSN": "abcd7",
        "SLACK_WEBHOOK_URL": "abcd8",
    }
    assert set(secrets(named)) == set(named.values())
    assert all(is_secret(name, value) for name, value in named.items())


def test_switches_counts_and_short_words_are_none() -> None:
    environ = {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "true", "MAX_TOKENS": "4096", "PATH": "/usr/bin", "API_KEY": "on"}
    assert secrets(environ) == ()
    assert not any(is_secret(*entry) for entry in (environ | {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}).items())


def test_the_password_of_any_url_is_one_and_the_user_is_none() -> None:
    environ = {
        "https_proxy": "http://anna:pass%2Fword@proxy.example.org:3128",
        "REMOTE": "https://0123456789abcdef@h/x",
    }
    hidden = secrets(environ)
    said = redact("anna could not log in with pass/word nor pass%2Fword nor 0123456789abcdef", hidden)
    assert said == f"anna could not log in with {MASK} nor {MASK} nor {MASK}"


def test_a_variable_may_be_called_anything_where_the_config_names_it() -> None:
    environ = {"ALERTS": "https://hooks.example.org/T0/B0/abc"}
    assert secrets(environ) == ()
    assert (
        redact("posted to https://hooks.example.org/T0/B0/abc", secrets(environ, ("ALERTS", None)))
        == f"posted to {MASK}"
    )


def test_what_has_the_shape_of_a_secret_is_masked_though_no_variable_holds_it() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----"
    assert redact(f"401 for hf_{'a' * 34}: see log") == f"401 for {MASK}: see log"
    assert redact("cannot reach redis://me:hunter22@host:6379/0") == f"cannot reach redis://{MASK}@host:6379/0"
    assert redact(f"{key} was refused") == f"{MASK} was refused"
    assert redact("https://example.org/a:b and step 12:30 at a@b") == "https://example.org/a:b and step 12:30 at a@b"


def test_each_line_of_a_secret_of_several_lines_is_hidden() -> None:
    hidden = secrets({"SSH_KEY": "-----\nfirstpart0\nsecondpart\n-----"})
    assert redact("log: secondpart", hidden) == f"log: {MASK}"
    assert redact("log: -----", hidden) == "log: -----"


_secret = st.text(st.characters(exclude_characters=MASK[0], exclude_categories=["Cs"]), min_size=6)


@given(_secret, st.text())
def test_no_form_of_a_secret_is_left(secret: str, around: str) -> None:
    hidden = secrets({"A_TOKEN": secret})
    for form in (secret, json.dumps(secret), json.dumps(secret, ensure_ascii=False), quote(secret, safe="")):
        assert secret not in redact(f"{around}{form}{around}", hidden)


def test_a_document_is_masked_in_its_strings_alone() -> None:
    document = {"line": 4321, "what": "401 for 4321", "of": [{"text": "4321"}, None, True]}
    masked = {"line": 4321, "what": f"401 for {MASK}", "of": [{"text": MASK}, None, True]}
    assert redact_all(document, secrets({"A_KEY": "4321"})) == masked


def test_the_word_after_the_flag_of_a_secret_is_masked_and_others_stay() -> None:
    words = ["train", "--api-key", "gr4nulAted", "--lr", "0.1", "--max-tokens", "51200000", "--token", "--password", 7]
    assert redact_all({"argv": words})["argv"] == [*words[:2], MASK, *words[3:]]
    assert mask("args", words, ()) == [*words[:2], MASK, *words[3:]]


def test_no_pattern_looks_back() -> None:
    """Each text would take hours where one did."""
    words = (
        "://a:",
        "-----BEGIN ",
        "sk-",
        "hf_",
        "key=",
        "password='",
        "--key ",
        "--a-secret",
        "secret:   ",
        'token="A1a',
    )
    for text in ("://" + "a" * 10**6, "password='" + "a" * 10**6, *(word * 10**5 for word in words)):
        assert len(redact(text)) <= len(text)


def test_events_hold_no_secret_of_the_environment(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("WANDB_API_KEY", "0123456789secret")
    log = EventLog(tmp_path, "supervisor")
    log.append(
        AttemptEnded(1, 1, "failed", "auth", "401 for 0123456789secret", "why", "export 0123456789secret", "a", 0)
    )
    log.close()
    assert "0123456789secret" not in (tmp_path / "supervisor.jsonl").read_text(encoding="utf-8")
    (record,) = read(tmp_path)
    assert isinstance(record.event, AttemptEnded)
    assert record.event.what == f"401 for {MASK}"


_PLACES = (
    "{}",
    "401 for {}: denied",
    "{{'key': '{}'}}",
    "--api-key={} --steps 5",
    '[rank0]: {{"of": "{}"}}',
    "<{}>",
    "a,{},b",
)


@pytest.mark.parametrize("kind", KINDS)
def test_no_secret_of_any_kind_is_left_though_no_variable_holds_it(kind: str) -> None:
    chance = random.Random(kind)
    for _ in range(10_000 // len(KINDS) + 1):
        secret, text = draw(chance, kind)
        shown = redact(chance.choice(_PLACES).format(text))
        assert not in_text(shown, secret), shown
        document = json.dumps(redact_all({"what": text, "argv": ["--header", text]}))
        assert not in_text(document, secret), document


@pytest.mark.parametrize("form", WRITTEN)
def test_no_secret_with_a_name_is_left_though_no_variable_holds_it(form: str) -> None:
    chance = random.Random(form)
    for _ in range(1_000):
        secret, text = draw_named(chance, form)
        shown = redact(text)
        assert not in_text(shown, secret[2:]), shown
        assert redact(shown) == shown
        assert not in_text(json.dumps(redact_all({"what": text})), secret), text


@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_that_the_environment_holds_in_any_variable_is_masked_alone(kind: str) -> None:
    chance = random.Random(kind)
    for name in ("OPTIONS", "HTTP_HEADERS"):
        secret, text = draw(chance, kind)
        assert not in_text(redact(f"sent {secret} to", secrets({name: text})), secret)


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_long_text_the_same_is_masked_as_in_its_line(kind: str) -> None:
    secret, line = draw(random.Random(kind), kind)
    rows = "7  1.3 B  45 s\n" * 20_000
    shown = redact(f"{rows}{line}\n{rows}")
    assert shown == f"{rows}{redact(line)}\n{rows}"
    assert not in_text(shown, secret)


def test_a_masked_text_stays_the_same() -> None:
    chance = random.Random(4)
    for kind in KINDS:
        shown = redact(draw(chance, kind)[1])
        assert redact(shown) == shown


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=12, max_size=40), st.binary(max_size=9))
def test_no_base64_of_a_secret_is_left(secret: str, before: bytes) -> None:
    hidden = secrets({"A_TOKEN": secret})
    text = base64.b64encode(before + secret.encode()).decode()
    assert text not in redact(text, hidden)


@given(st.integers(0, 2**32), st.lists(st.integers(1, 900), max_size=20))
def test_pieces_of_a_log_are_masked_as_the_whole(seed: int, cuts: list[int]) -> None:
    chance = random.Random(seed)
    planted = [draw(chance, kind) for kind in KINDS]
    text = "".join(f"step {number}\n{written}\nnext line\n" for number, (_, written) in enumerate(planted)) + "torn"
    redactor, shown, at = LineRedactor(), "", 0
    for cut in (*cuts, len(text)):
        shown, at = shown + redactor.feed(text[at : at + cut]), at + cut
    shown += redactor.flush()
    assert not [kind for kind, (secret, _) in zip(KINDS, planted, strict=True) if in_text(shown, secret)]
    assert shown == redact(text)


def test_ordinary_lines_are_not_changed() -> None:
    lines = (
        "Step 12 | Time: 1.52s | Loss: 2.3456 | LR: 1.0e-06 | Throughput: 9120 tokens/s | MFU: 41.2%",
        "commit 0123456789abcdef0123456789abcdef01234567 of https://github.com/org/repo.git@main",
        "token type ids are not used; pad_token='<|endoftext|>', eos_token_id=151645, MAX_NEW_TOKENS=4096",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  model-00001-of-00004.safetensors",
        "the bearer of this letter; authorization required: no token was sent; task-specific-learning-rates",
        "https://huggingface.co/org/hf_model/resolve/main/config.json?download=true&key=1",
        "/tmp/ray/session_2026-11-23_07-12-53_123456_789/logs/worker-0123456789abcdef.out",
        "password=password, api_key=self.api_key, token=None, secret: str, key=lambda row: row[0], password: required",
        "missing key: 'layers.0.attention.weight1234567', key=model.layers.10.mlp, --key optim.lr --secret API_KEY",
        "api_key='${API_KEY}', password=\"%(password)s\", token: <your token>, secrets = {}, --token-file /run/token",
        "HF_TOKEN=$HF_TOKEN FORCE_TORCHRUN=1 torchrun train.py; WANDB_KEY=${WANDB_KEY} NCCL_IB_DISABLE=1 srun train",
        "Basic block 4: BEGIN PRIVATE KEYWORD; 12:30:45 a@b ssh://git@host:22/x; user@host: 10 of 12",
    )
    for line in lines:
        assert redact(line) == line


def test_of_ten_thousand_lines_of_source_at_most_one_is_changed() -> None:
    lines = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        lines += path.read_text(encoding="utf-8", errors="replace").splitlines()
    changed = [line for line in lines[:: max(1, len(lines) // 30_000)] if redact(line) != line]
    assert len(changed) <= 3, changed


def test_every_form_has_a_source_and_a_keyword_in_what_it_finds() -> None:
    for form in forms():
        assert form.source
        assert form.keywords
        assert not form.any_case or all(word == word.lower() for word in form.keywords)
    assert len({form.id for form in forms()}) == len(forms())
