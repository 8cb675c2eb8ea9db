"""Why a cluster cannot be reached.

kafka-python says "Unable to bootstrap" whether nobody listens, the certificate is not trusted or the account
is wrong (a broker closes the connection, and the error that it sent before is lost). So we look ourselves.
"""

from __future__ import annotations

import socket
import ssl

_PATIENCE_SECONDS = 2.0


def why_unreachable(
    servers: list[tuple[str, int]],
    *,
    tls: bool,
    sasl: bool,
    ca_file: str = "",
    cert_file: str = "",
    key_file: str = "",
) -> str:
    """Say how far a connection gets with each server: address, TLS, login."""
    context = None
    if tls:
        try:
            context = ssl.create_default_context(cafile=ca_file or None)
            if cert_file:
                context.load_cert_chain(cert_file, key_file or None)
        except (OSError, ValueError) as error:
            files = ", ".join(filter(None, (ca_file, cert_file, key_file)))
            return f"certificate files {files}: {error}"
    return "; ".join(f"{host}:{port}: {_try(host, port, context, sasl=sasl)}" for host, port in servers)


def _try(host: str, port: int, context: ssl.SSLContext | None, *, sasl: bool) -> str:
    try:
        with socket.create_connection((host, port), timeout=_PATIENCE_SECONDS) as plain:
            if context is not None:
                with context.wrap_socket(plain, server_hostname=host):
                    pass
    except ssl.SSLError as error:
        return f"no TLS connection: {error.strerror or error}"
    except OSError as error:
        return f"no connection: {error.strerror or error}"
    if sasl:
        return "connects but does not let us in: wrong user, password or SASL mechanism?"
    return "connects but does not answer as a Kafka broker: wrong security protocol?"
