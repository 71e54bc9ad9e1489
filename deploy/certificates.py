"""An authority, and a certificate for each role of a pool.

    python deploy/certificates.py tls

    tls/authority/                              stays out of the cluster
    tls/scheduler/, tls/teacher/, tls/run/      ca.pem, cert.pem, key.pem: one Secret each

Called again, it keeps the authority and makes new certificates of the roles, which is how they
are renewed. OpenSSL refuses a certificate that is shown for what it was not made for: runs only
ever connect, so theirs cannot be shown by a server, and whoever steals one cannot pose as a
scheduler or a teacher. The other two do both.
"""

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
ROLES = {"scheduler": (SERVER, CLIENT), "teacher": (SERVER, CLIENT), "run": (CLIENT,)}
AUTHORITY_DAYS = 3650
DAYS = 90  # nobody asks a list of stolen certificates: they end by themselves

Authority = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def make(folder: Path, days: int = DAYS) -> None:
    """Certificates of all roles, below `folder`, readable by this user alone."""
    certificate, key = authority(folder / "authority")
    for role, purposes in ROLES.items():
        own = ec.generate_private_key(ec.SECP256R1())
        made = (
            _begun(f"kdlab-{role}", own, certificate.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName(f"kdlab-{role}")]), False
            )
            .sign(key, hashes.SHA256())
        )
        _keep(folder / role, made, own)
        _write(folder / role / "ca.pem", _pem(certificate))


def authority(folder: Path) -> Authority:
    """The one in `folder`; made when there is none."""
    if (folder / "key.pem").is_file():
        certificate = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
        kept = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), None)
        assert isinstance(kept, ec.EllipticCurvePrivateKey)
        return certificate, kept
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("kdlab authority")
    certificate = (
        _begun("kdlab authority", key, name, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .sign(key, hashes.SHA256())
    )
    _keep(folder, certificate, key)
    return certificate, key


def _keep(
    folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(folder / "cert.pem", _pem(certificate))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    _write(folder / "key.pem", key.private_bytes(serialization.Encoding.PEM, form, plain))


def _write(path: Path, text: bytes) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)


def _begun(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks of other machines
        .not_valid_after(now + timedelta(days=days))
        .add_extension(own, critical=False)
        .add_extension(by, critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    """Of messages, or of certificates."""
    return x509.KeyUsage(
        digital_signature=signs,
        key_cert_sign=not signs,
        crl_sign=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
