"""Makes the certificate of a server, which signs itself: of the bus or of the control page.

A client of the bus gets it with its credentials; the reader of a page compares the fingerprint.
"""

from __future__ import annotations

import datetime
import ipaddress
from importlib.util import find_spec
from pathlib import Path

from prime_train.core.errors import UserError
from prime_train.core.installation import install_command
from prime_train.core.rundir import write_atomic

_VALID = datetime.timedelta(days=3650)


def create_certificate(host: str, certificate: Path, key: Path, where: str = "--bus nats") -> None:
    """Writes a certificate for a host name or an address, and its key, both for their owner alone.

    `where`: the option that asks for it. Raises UserError.
    """
    if find_spec("cryptography") is None:
        what, why = "the package cryptography is not installed", "what leaves this machine is encrypted"
        raise UserError(what, f"{where} on {host}", why, install_command("control"))
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    try:
        alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        alternative = x509.DNSName(host)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "prime-train")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # the clocks of machines differ
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    write_atomic(key, private.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    write_atomic(certificate, made.public_bytes(pem))
