"""Certificates and kubeconfigs of the bed's Kubernetes: one authority, made anew at each start, in a 0700 directory.

Everything listens on loopback, where the job users of the bed can connect too: so etcd asks for a client
certificate like the API server does.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=30)
SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def write_private(path: Path, text: str) -> None:
    """Write `path` so that only its owner can ever read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(text)


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _name(common_name: str, organisation: str | None = None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organisation:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(attributes)


class Authority:
    """A certificate authority in `directory`: each name becomes NAME.crt and NAME.key."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, mode=0o700)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = _name("speedrun-testbed")
        builder = self._builder(self.name, self.key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._write("ca", self.key, builder)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + VALID)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )

    def _write(self, name: str, key: ec.EllipticCurvePrivateKey, builder: x509.CertificateBuilder) -> None:
        certificate = builder.sign(self.key, hashes.SHA256())
        write_private(self.directory / f"{name}.key", _pem(key))
        (self.directory / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        common_name: str,
        *,
        organisation: str | None = None,
        server: bool = False,
        addresses: Sequence[str] = ("127.0.0.1",),
    ) -> None:
        """A client certificate for `common_name`, or one that also serves on `addresses`."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = self._builder(_name(common_name, organisation), key.public_key())
        if server:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            names: list[x509.GeneralName] = [x509.DNSName(each) for each in SERVER_NAMES]
            names += [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        self._write(name, key, builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False))


def signing_key(private: Path, public: Path) -> None:
    """A key pair with which the API server signs and checks service account tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    write_private(private, _pem(key))
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def kubeconfig(path: Path, *, server: str, authority: Path, user: dict[str, Any], namespace: str = "default") -> None:
    """Write a kubeconfig (0600) with everything inlined: `user` is its credential as kubectl knows it."""
    data = base64.b64encode(authority.read_bytes()).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": {"server": server, "certificate-authority-data": data}}],
        "users": [{"name": "testbed", "user": user}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed", "namespace": namespace}}],
        "current-context": "testbed",
    }
    write_private(path, yaml.safe_dump(document, sort_keys=False))


def certificate_user(directory: Path, name: str) -> dict[str, str]:
    """The kubeconfig credential of a client certificate that `Authority.issue` made."""
    pair = {"client-certificate-data": f"{name}.crt", "client-key-data": f"{name}.key"}
    return {field: base64.b64encode((directory / file).read_bytes()).decode() for field, file in pair.items()}
