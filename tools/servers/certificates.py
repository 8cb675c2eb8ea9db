"""A self-signed certificate for 127.0.0.1."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """PEM files: the key, the certificate (which is also its own authority), and both in one."""

    key: Path
    certificate: Path
    both: Path


def create_certificate(openssl: str, folder: Path) -> Certificate:
    """Write a certificate for ``127.0.0.1`` and ``localhost``, good for 30 days, into `folder`."""
    files = Certificate(folder / "tls-key.pem", folder / "tls-certificate.pem", folder / "tls-both.pem")
    command = [
        openssl, "req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=localhost",
        "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
        "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
        "-keyout", str(files.key), "-out", str(files.certificate),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, text=True)
    files.both.write_text(files.key.read_text() + files.certificate.read_text())
    return files
