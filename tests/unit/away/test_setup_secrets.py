"""Which lines of a setup give a secret its value, and which only name one."""

from __future__ import annotations

import pytest

from prime_train.away.sky.refusals import refuse_setup
from prime_train.away.sky.setup_secrets import find_named
from prime_train.core.errors import UserError

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
