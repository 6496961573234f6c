"""Chooses certificate and key of the page: two files that the user names, or one that signs itself. Opens no port."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from typing import NamedTuple

from prime_train.bus.base import to_word
from prime_train.bus.certificate import create_certificate
from prime_train.core.errors import UserError
from prime_train.core.machines import is_loopback
from prime_train.core.outside import MARK_BYTES, read_text
from prime_train.core.rundir import make_folder

AUTO = "auto"


class Encryption(NamedTuple):
    """The files of a server. `fingerprint`: SHA-256 of the certificate, as a browser shows it."""

    certificate: Path
    key: Path
    fingerprint: str


def choose_encryption(
    host: str, mode: str, certificate: Path | None, key: Path | None, folder: Path
) -> Encryption | None:
    """None for a page on loopback without TLS. Raises UserError for another host without it, and for unusable files.

    `mode`: "auto" makes a certificate in `folder`, or takes the one that is there; "" does not.
    """
    if mode not in ("", AUTO):
        what, why = f"--tls {mode[:40]} is not known", "a certificate is made, or read from files"
        raise UserError(what, "--tls", why, "--tls auto, or --tls-cert FILE --tls-key FILE")
    if (certificate is None) != (key is None) or (mode and certificate is not None):
        what, why = "the options of the certificate do not go together", "a server needs one certificate and its key"
        raise UserError(what, "--tls, --tls-cert, --tls-key", why, "--tls auto, or both --tls-cert and --tls-key")
    if certificate is not None and key is not None:
        return _read(certificate, key)
    if mode:
        return _make(host, folder)
    if is_loopback(host):
        return None
    what, why = f"{host} is not encrypted", "on a network everybody could read the token, and then control the runs"
    raise UserError(what, f"--host {host}", why, "add --tls auto, or --tls-cert FILE --tls-key FILE")


def _make(host: str, folder: Path) -> Encryption:
    # One that is there stays, because browsers trust it.
    make_folder(folder)
    certificate, key = (folder / f"{to_word(host)}.{kind}" for kind in ("pem", "key"))
    if not (certificate.exists() and key.exists()):
        create_certificate(host, certificate, key, where="--tls auto")
    return _read(certificate, key)


def _read(certificate: Path, key: Path) -> Encryption:
    """Raises UserError for files that no server could use, and for a key that others may read."""
    where = f"{certificate}, {key}"
    try:
        if key.stat().st_mode & 0o077:
            why = "other users may read it, and could answer in the place of this page"
            raise UserError("the key is no secret", str(key), why, f"chmod 600 {key}")
        # A password would be asked for on the terminal.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, password=_refuse_password)
        encoded = ssl.PEM_cert_to_DER_cert(_first_certificate(read_text(certificate, MARK_BYTES)))
    except (OSError, ValueError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        fix = "give a certificate and its own key as PEM, the key without a password; or --tls auto"
        raise UserError("the certificate cannot be used", where, why, fix) from error
    digest = hashlib.sha256(encoded).hexdigest().upper()
    return Encryption(certificate, key, ":".join(digest[start : start + 2] for start in range(0, len(digest), 2)))


def _first_certificate(text: str) -> str:
    """The certificate of the server: a file may have those that signed it behind it."""
    end = "-----END CERTIFICATE-----"
    return text[text.index("-----BEGIN CERTIFICATE-----") :].partition(end)[0] + end


def _refuse_password() -> str:
    raise ValueError("the key has a password")
