"""Random secrets of many kinds, in the forms that their issuers give them, and texts around them."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable

_LETTERS = string.ascii_letters + string.digits
_URL_SAFE = _LETTERS + "-_"
_HEX = "0123456789abcdef"


def _drawn(chance: random.Random, length: int, letters: str = _LETTERS) -> str:
    """Random letters with at least one digit, as every token of this length has."""
    return "".join(chance.choices(letters, k=length - 1)) + chance.choice(string.digits)


def _encoded(document: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()


def _json_web_token(chance: random.Random) -> str:
    header = _encoded({"alg": chance.choice(("HS256", "RS256")), "typ": "JWT"})
    return f"{header}.{_encoded({'sub': _drawn(chance, 20)})}.{_drawn(chance, 43, _URL_SAFE)}"


# Kind -> the secret, and a text that holds it as programs write it: "" where the secret is known alone.
KINDS: dict[str, tuple[Callable[[random.Random], str], str]] = {
    "bearer": (lambda chance: _drawn(chance, chance.randint(20, 60)), "Authorization: Bearer {}"),
    "github": (
        lambda chance: f"{chance.choice(('ghp_', 'gho_', 'ghu_', 'ghs_', 'ghr_', 'github_pat_'))}{_drawn(chance, 36)}",
        "",
    ),
    "slack": (lambda chance: f"xox{chance.choice('abp')}-{_drawn(chance, 12, string.digits)}-{_drawn(chance, 24)}", ""),
    "slack webhook": (
        lambda chance: f"T{_drawn(chance, 8)}/B{_drawn(chance, 8)}/{_drawn(chance, 24)}",
        "https://hooks.slack.com/services/{}",
    ),
    "json web token": (_json_web_token, ""),
    "azure sas": (
        lambda chance: base64.b64encode(chance.randbytes(32)).decode().replace("+", "%2B").replace("=", "%3D"),
        "https://store.blob.core.windows.net/c/o?sv=2024-11-04&se=2026-12-01&sr=c&sp=r&sig={}",
    ),
    "aws": (lambda chance: _drawn(chance, 40, _LETTERS + "/+"), "aws_secret_access_key = {}"),
    "aws id": (
        lambda chance: f"{chance.choice(('AKIA', 'ASIA'))}{_drawn(chance, 16, string.ascii_uppercase + '234567')}",
        "",
    ),
    "google": (lambda chance: f"AIza{_drawn(chance, 35, _URL_SAFE)}", ""),
    "npm": (lambda chance: f"npm_{_drawn(chance, 36)}", ""),
    "pypi": (lambda chance: f"pypi-AgEIcHlwaS5vcmc{_drawn(chance, 150, _URL_SAFE)}", ""),
    "hugging face": (lambda chance: f"hf_{''.join(chance.choices(string.ascii_letters, k=34))}", ""),
    "wandb": (lambda chance: _drawn(chance, 40, _HEX), "WANDB_API_KEY={}"),
    "openai": (lambda chance: f"sk-{chance.choice(('proj-', 'ant-api03-', ''))}{_drawn(chance, 48, _URL_SAFE)}", ""),
    "private key": (
        lambda chance: base64.encodebytes(chance.randbytes(600)).decode().strip(),
        "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
    ),
    "login": (lambda chance: _drawn(chance, chance.randint(8, 40)), "https://ada:{}@proxy.example.org:3128/x"),
    "discord webhook": (
        lambda chance: f"{_drawn(chance, 18, string.digits)}/{_drawn(chance, 68, _URL_SAFE)}",
        "https://discord.com/api/webhooks/{}",
    ),
    "gitlab": (lambda chance: f"glpat-{_drawn(chance, 20, _URL_SAFE)}", ""),
}


def draw(chance: random.Random, kind: str) -> tuple[str, str]:
    """A secret of this kind, and a text as programs write it, which holds the secret."""
    make, written = KINDS[kind]
    secret = make(chance)
    return secret, (written or "{}").format(secret)


def in_text(text: str, secret: str) -> bool:
    """Whether a text shows the secret: one of its lines, as it is or as in JSON."""
    return any(line in text or json.dumps(line)[1:-1] in text for line in secret.splitlines())


_NAMES = (
    *(
        "api_key",
        "apikey",
        "apiKey",
        "API_KEY",
        "api-key",
        "secret",
        "secret_key",
        "secretKey",
        "access_key",
        "private_key",
    ),
    *("password", "passwd", "pwd", "db_password", "token", "auth_token", "access_token", "refresh_token", "hf_token"),
    *("client_secret", "credentials", "key", "wandb_api_key", "aws_secret_access_key"),
)
_ALPHABETS = (_LETTERS, _URL_SAFE, _HEX, string.ascii_lowercase + string.digits, _LETTERS + "!@#%^*+?")
# A name and its value in Python, JSON, YAML, argv, an address and a header.
WRITTEN = {
    "keyword": ("{name}='{secret}'", 'client({name}="{secret}", retries=3)', "{name} = '{secret}'", "{name}={secret}"),
    "json": ('{{"{name}": "{secret}"}}', "{{'{name}': '{secret}', 'n': 1}}", r'"{{\"{name}\": \"{secret}\"}}"'),
    "yaml": ("{name}: {secret}", "  {name}: '{secret}'", '{name}: "{secret}"'),
    "argv": (
        "train --{name} {secret} --steps 4",
        "train -{name} {secret}",
        "train --{name}={secret}",
        "['train', '--{name}', '{secret}']",
    ),
    "url": ("https://h/x?{name}={secret}", "https://h/x?a=1&{name}={secret}&b=2"),
    "header": ("{name}: {secret}", "X-{name}: {secret}"),
}


def draw_named(chance: random.Random, form: str) -> tuple[str, str]:
    """A secret with a name that is no variable of the environment, and a text that has both in this form."""
    secret = _drawn(chance, chance.randint(16, 64), chance.choice(_ALPHABETS))
    return secret, chance.choice(WRITTEN[form]).format(name=chance.choice(_NAMES), secret=secret)
