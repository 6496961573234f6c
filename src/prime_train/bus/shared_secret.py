"""Makes the credentials of a bus from a secret that machines share. Opens nothing, and writes no file.

Each machine makes a password and the certificate that it trusts, so nothing but the secret has to reach it. An
empty secret gives credentials that every installation of this package has, so it is for loopback alone.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from prime_train.bus.credentials import Credentials

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

SERVER_NAME = "bus.prime-train.internal"  # in the certificate in the place of an address, which differs per network
_SCRYPT = {"n": 2**14, "r": 8, "p": 1}  # 16 MiB and 0.05 s, because a person may choose a short secret
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256. Source: FIPS 186-4, D.1.2.3
# The clocks of machines differ, and a secret lives as long as a run: the certificate has no time of its own.
_FROM, _UNTIL = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (2020, 2120))


def derive_credentials(secret: str, user: str, host: str, port: int) -> Credentials:
    """Those of one user, for a server at this address."""
    return Credentials(host, port, user, derive_password(secret, user), derive_anchor(secret), True, SERVER_NAME)


def derive_password(secret: str, user: str) -> str:
    return _derive(secret, f"password of {user}").hex()


@cache
def derive_anchor(secret: str) -> str:
    """The certificate of the authority, as PEM. Two machines make different ones, and each proves the same servers."""
    from cryptography.hazmat.primitives.serialization import Encoding

    key = _authority(secret)
    return _sign(key, "authority", key.public_key(), _list_authority(key)).public_bytes(Encoding.PEM).decode()


def create_server_pair(secret: str) -> tuple[str, str]:
    """A certificate that the authority signed, and the key, both as PEM. Each start of a server has a new key."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    authority, own = _authority(secret), ec.generate_private_key(ec.SECP256R1())
    extensions = (
        (x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False),
    )
    made = _sign(authority, "server", own.public_key(), extensions)
    key = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made.public_bytes(Encoding.PEM).decode(), key.decode()


def _derive(secret: str, purpose: str) -> bytes:
    return hmac.new(_stretch(secret), purpose.encode(), hashlib.sha256).digest()


@cache
def _stretch(secret: str) -> bytes:
    return hashlib.scrypt(secret.encode("utf-8", "surrogatepass"), salt=b"prime-train machines", **_SCRYPT, dklen=32)


def _authority(secret: str) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    number = int.from_bytes(_derive(secret, "authority, first half") + _derive(secret, "authority, second half"))
    return ec.derive_private_key(number % (_ORDER - 1) + 1, ec.SECP256R1())


def _list_authority(key: EllipticCurvePrivateKey) -> Sequence[tuple[x509.ExtensionType, bool]]:
    """What Python 3.13 asks of an authority (ssl.VERIFY_X509_STRICT)."""
    from cryptography import x509

    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = x509.KeyUsage(
        **dict.fromkeys(names, False), key_cert_sign=True, crl_sign=False, encipher_only=False, decipher_only=False
    )
    return (
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (usage, True),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
    )


def _sign(
    authority: EllipticCurvePrivateKey,
    name: str,
    key: EllipticCurvePublicKey,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    subject, issuer = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, one)]) for one in (name, "authority"))
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(_FROM).not_valid_after(_UNTIL)
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, critical=is_critical)
    return builder.sign(authority, hashes.SHA256())
