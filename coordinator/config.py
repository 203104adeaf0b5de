"""The coordinator's settings: one flat list, flags and environment of the same names."""

from __future__ import annotations

from dataclasses import dataclass, field

from specdec.core.errors import ConfigError
from specdec.edge.tls import CA_OPTION, CERTIFICATE_OPTION, KEY_OPTION


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    model: str = field(metadata={"help": "folder (or hub name) of the target's tokenizer and generation_config"})
    target_addresses: tuple[str, ...] = field(
        metadata={"help": "verifiers, host:port, comma separated; a name may stand for many"}
    )
    draft_addresses: tuple[str, ...] = field(
        default=(), metadata={"help": "drafters, host:port, comma separated; none: plain decoding"}
    )
    host: str = field(default="127.0.0.1", metadata={"help": "interface to serve on"})
    port: int = field(default=50050, metadata={"help": "gRPC port, 0: any", "ge": 0, "le": 65535})
    tls_certificate: str | None = field(default=None, metadata=CERTIFICATE_OPTION)
    tls_key: str | None = field(default=None, metadata=KEY_OPTION)
    tls_ca: str | None = field(default=None, metadata=CA_OPTION)
    tls_replica_name: str | None = field(
        default=None, metadata={"help": "name in the replicas' certificates; unset: the address they were found at"}
    )
    tls_clients: bool = field(
        default=False, metadata={"help": "callers, too, must show a certificate that tls_ca signed"}
    )
    api_keys: str | None = field(
        default=None, metadata={"help": "file of the keys that may call (`specdec key` makes one); unset: anyone may"}
    )
    metrics_port: int | None = field(
        default=None, metadata={"help": "port of /metrics, 0: any, unset: none", "ge": 0, "le": 65535}
    )
    session_store_url: str = field(
        default="memory://",
        metadata={"help": "memory://, redis://, rediss://, redis+sentinel://, redis+cluster://"},
    )
    session_ttl: float = field(default=3600.0, metadata={"help": "seconds that an idle session is kept", "ge": 1.0})
    session_lease: float = field(
        default=15.0, metadata={"help": "seconds after which a silent owner is given up", "ge": 0.5}
    )
    store_deadline: float = field(
        default=2.0, metadata={"help": "seconds that one store operation may take, retries included", "ge": 0.05}
    )
    num_draft_tokens: int | None = field(
        default=None,
        metadata={"help": "draft tokens per cycle; unset: the planner, 0: off", "ge": 0, "le": 255},
    )
    max_draft_tokens: int = field(default=16, metadata={"help": "most draft tokens per cycle", "ge": 0, "le": 255})
    support: int = field(default=32, metadata={"help": "ids kept of a sampled draft law (M)", "ge": 1, "le": 255})
    max_context: int | None = field(default=None, metadata={"help": "context limit below the verifiers' own", "ge": 2})
    max_streams: int = field(default=256, metadata={"help": "generations at once; more are refused", "ge": 1})
    draft_timeout: float = field(default=2.0, metadata={"help": "seconds a draft may take at most", "ge": 0.001})
    verify_timeout: float = field(default=30.0, metadata={"help": "seconds one verification may take", "ge": 0.001})
    failover_timeout: float = field(
        default=10.0, metadata={"help": "seconds to wait for a verifier when none is ready", "ge": 0.0}
    )
    request_timeout: float = field(
        default=3600.0, metadata={"help": "seconds a request may take, whatever deadline its caller set", "ge": 0.1}
    )
    drain_grace: float = field(
        default=20.0, metadata={"help": "seconds for running generations after SIGTERM", "ge": 0.0}
    )

    profile: str | None = field(
        default=None,
        metadata={"help": "JSON of `specdec profile`: say so when a drafter's acceptance sags below what it found"},
    )

    def validate(self) -> None:
        if not self.target_addresses:
            raise ConfigError("target_addresses", "", "name at least one verifier as host:port")
        for name in ("target_addresses", "draft_addresses"):
            for address in getattr(self, name):
                host, colon, port = address.rpartition(":")
                if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
                    raise ConfigError(name, address, "write host:port")
        if self.tls_clients and not (self.tls_ca and self.tls_certificate):
            raise ConfigError("tls_clients", True, "needs tls_certificate, tls_key and tls_ca")
        if self.num_draft_tokens is not None and self.num_draft_tokens > self.max_draft_tokens:
            raise ConfigError(
                "num_draft_tokens",
                self.num_draft_tokens,
                f"at most max_draft_tokens = {self.max_draft_tokens}; 0 turns speculation off",
            )
