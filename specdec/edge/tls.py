"""TLS between processes: what each shows of itself, and whom it believes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from specdec.core.errors import ConfigError

CERTIFICATE_OPTION: dict[str, Any] = {
    "help": "PEM file of this process' certificate chain, shown to whoever connects and to whom it connects to"
}
KEY_OPTION: dict[str, Any] = {"help": "PEM file of the certificate's private key"}
CA_OPTION: dict[str, Any] = {
    "help": "PEM file of the authorities that signed the others' certificates; with it, whoever connects to a replica "
    "must show one of theirs"
}


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM texts. certificate and key: None where a client shows none; authority: None: the system's."""

    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    authority: bytes | None = None

    def server_credentials(self, *, clients: bool) -> grpc.ServerCredentials:
        """clients: whoever connects must show a certificate that the authority signed."""
        assert self.certificate is not None and self.key is not None, "a server shows a certificate"
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)],
            root_certificates=self.authority if clients else None,
            require_client_auth=clients,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)


def read_tls(certificate: str | None, key: str | None, authority: str | None) -> Tls | None:
    """What these files hold, None where none is named. A key and its certificate come together. Raises ConfigError."""
    if bool(certificate) != bool(key):
        missing, given = ("tls_key", certificate) if certificate else ("tls_certificate", key)
        raise ConfigError(missing, None, f"is needed beside {given}")
    if not certificate and not authority:
        return None
    return Tls(_read("tls_certificate", certificate), _read("tls_key", key), _read("tls_ca", authority))


def _read(name: str, file: str | None) -> bytes | None:
    if file is None:
        return None
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(name, file, f"cannot be read: {error.strerror}") from None
    if b"-----BEGIN " not in content:
        raise ConfigError(name, file, "is no PEM file")
    return content
