"""Which lines of a setup and words of a command give a secret its value, and which only name one."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.away.sky.refusals import refuse_setup
from prime_train.core.errors import UserError
from prime_train.core.named_secrets import find_in_words, find_named

GIVEN = {
    "export MY_TOKEN=abcdefgh": "MY_TOKEN",
    "MY_TOKEN='abcdefgh' pip install x": "MY_TOKEN",
    "cd x && MY_TOKEN=abcdefgh;pip install x": "MY_TOKEN",
    "export MY_TOKEN=${MY_TOKEN:-abcdefgh}": "MY_TOKEN",
    "pip install --token abcdefgh x": "--token",
    "pip install --token \\\n  abcdefgh x": "--token",
    "pip install --api-key=abcdefgh x": "--api-key",
    "login -token +abcdefgh": "-token",
    "echo don't; hf login --token abcdefgh": "--token",
    "curl -H 'Authorization: Bearer abcdefgh' https://x.org": "Authorization",
    "curl https://x.org/?access_token=abcdefgh": "access_token",
    'echo \'{"api_key": "abcdefgh"}\' > login.json': "api_key",
    "curl -ume:password https://x.org": "curl -u",
    "curl -u me:password https://x.org": "curl -u",
    "/usr/bin/curl -fsSu 'me:password' https://x.org": "curl -u",
    "curl --user=me:password https://x.org": "curl -u",
}
READ = (
    "pip install -r requirements.txt",
    "export MY_TOKEN=$HF_TOKEN",
    'export MY_TOKEN="${HF_TOKEN}"',
    "export MY_TOKEN=$(cat token)",
    "export MY_TOKEN=`cat token`",
    ': "${HF_TOKEN:?it is not set}"',
    '[ "$MY_KEY" = "test" ] || exit 1',
    "export HF_HUB_DISABLE_IMPLICIT_TOKEN=true",
    'hf auth login --token "$HF_TOKEN" --add-to-git-credential && pip install x',
    "curl -H 'Authorization: Bearer $T' https://x.org",
    'curl -u "me:$PASSWORD" https://x.org',
    'curl -u "${NAME:-me}:$PASSWORD" https://x.org',
    "docker run -u 1000:1000 --rm x",
    "python prepare.py --input-key prompt --pad-token '<pad>'",
    'test "$VIRTUAL_ENV" = "$HOME/command-env"',
)


@pytest.mark.parametrize("line", GIVEN)
def test_a_value_behind_the_name_of_a_secret_is_refused_and_not_shown(line: str) -> None:
    assert GIVEN[line] in list(find_named(line))
    with pytest.raises(UserError) as raised:
        refuse_setup(("pip install x", line), "run.toml")
    error = raised.value
    assert all((error.what, error.where, error.why, error.fix))
    assert not any(secret in f"{error.what} {error.where} {error.fix}" for secret in ("abcdefgh", "me:password"))


@pytest.mark.parametrize("line", READ)
def test_a_variable_is_no_secret(line: str) -> None:
    assert list(find_named(line)) == []
    refuse_setup((line,), "run.toml")


IN_WORDS = {
    ("env", "WANDB_API_KEY=abcdefgh", "python", "t.py"): 1,
    ("bash", "-c", "export HF_TOKEN=abcdefgh; python t.py"): 2,
    ("bash", "-lc", 'cd /tmp && torchrun t.py --hub-token "abcdefgh"'): 2,
    ("srun", "sh", "-c", "env A=1 bash -c 'WANDB_API_KEY=abcdefgh python t.py'"): 3,
    ("python", "t.py", "wandb.api_key=abcdefgh"): 2,
    ("python", "t.py", "+trainer.hub_token=abcdefgh"): 2,
    ("python", "t.py", "++logger={project: x, api_key: abcdefgh}"): 2,
    ("python", "t.py", '--config={"hub": {"hub_token": "abcdefgh"}}'): 2,
    ("srun", "--export=ALL,HF_TOKEN=abcdefgh", "python", "t.py"): 1,
    ("docker", "run", "--env=HF_TOKEN=abcdefgh", "image"): 2,
    ("python", "t.py", "--hub-token", "abcdefgh"): 3,
    ("python", "t.py", "-password", "abcdefgh"): 3,
    ("python", "t.py", "--url", "https://x.org/?token=abcdefgh"): 3,
}
IN_NO_WORDS = (
    ("python", "t.py", "tokenizer=gpt2", "max_tokens=100", "key_size=8", "num_keys=8", "monkeys=1000"),
    ("python", "t.py", "model.pad_token=<pad>", "data.prompt_key=question", "--input-key", "prompt"),
    ("python", "t.py", "flops_per_token=1e12", "--flops-per-token", "1000000", "hub_token=${oc.env:HF_TOKEN}"),
    ("python", "t.py", "+hub.token=null", "hub.token=???", "use_auth_token=true", "ssl_key=~/.ssh/id_rsa"),
    ("env", "HF_TOKEN=$HF_TOKEN", "python", "t.py"),
    ("bash", "-c", 'export HF_TOKEN="$(cat token)"; python t.py --hub-token "$HF_TOKEN"'),
    ("python", "-c", "rows.sort(key=lambda row: row.step); token=tokens[0]"),
    ("bash", "-c", "python -X dev -c 'print(sorted(rows, key=lambda row: row.step))'"),
    ("python", "t.py", "--system-prompt", "Answer with the key: value pairs, then the token of the end"),
    ("docker", "run", "registry/my-token:latest", "--name", "key"),
)


@pytest.mark.parametrize("words", IN_WORDS, ids=" ".join)
def test_the_word_of_a_command_that_has_a_secret_is_found(words: tuple[str, ...]) -> None:
    assert {place for place, _ in find_in_words(words)} == {IN_WORDS[words]}


@pytest.mark.parametrize("words", IN_NO_WORDS, ids=" ".join)
def test_an_ordinary_command_has_no_secret(words: tuple[str, ...]) -> None:
    assert list(find_in_words(words)) == []


@given(
    name=st.sampled_from(("WANDB_API_KEY", "hub_token", "trainer.hub_token", "client-secret", "db_password")),
    value=st.text("abcXYZ019+/=_-", min_size=8, max_size=40).filter(lambda text: text[0].isalpha()),
    depth=st.integers(0, 3),
)
def test_a_secret_is_found_in_any_number_of_shells(name: str, value: str, depth: int) -> None:
    words = ["env", f"{name}={value}", "python", "t.py"]
    for _ in range(depth):
        words = ["bash", "-c", shlex.join(words)]
    assert [found for _, found in find_in_words(words)][:1] == [name]
