"""Certificates for tests: an authority, and what it issues to services and to clients."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Issued:
    """The files of a certificate."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into a directory; ``ca`` is the file of its own."""

    def __init__(self, directory: Path, name: str = "lab") -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca = directory / f"{name}-ca.pem"
        self.ca.write_bytes(_pem(self._certificate(name, self._key, 365, is_ca=True)))

    def issue(self, file: str, *, common_name: str = "", days: float = 90) -> Issued:
        """Issue to ``common_name``, for 127.0.0.1; over an earlier file of this name."""
        key = ec.generate_private_key(ec.SECP256R1())
        issued = Issued(self._directory / f"{file}.pem", self._directory / f"{file}.key")
        issued.certificate.write_bytes(
            _pem(self._certificate(common_name or file, key, days, is_ca=False))
        )
        issued.key.touch(0o600)
        issued.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return issued

    def _certificate(
        self, common_name: str, key: ec.EllipticCurvePrivateKey, days: float, *, is_ca: bool
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return (
            x509.CertificateBuilder()
            .subject_name(_name(common_name))
            .issuer_name(_name(self._name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=100))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([here]), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "cachetier"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
