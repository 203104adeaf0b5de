"""A verifier replica's settings: one flat list, flags and environment of the same names."""

from __future__ import annotations

from dataclasses import dataclass, field

from specdec.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TargetConfig:
    model: str = field(metadata={"help": "folder or hub name of the target model"})
    dtype: str = field(default="float32", metadata={"help": "of weights and KV", "choices": ("float32", "bfloat16")})
    device: str = field(default="cpu", metadata={"help": "where the model runs: cpu, cuda, cuda:1"})
    host: str = field(default="127.0.0.1", metadata={"help": "interface to serve on"})
    port: int = field(default=50051, metadata={"help": "gRPC port, 0: any", "ge": 0, "le": 65535})
    metrics_port: int | None = field(
        default=None, metadata={"help": "port of /metrics, 0: any, unset: none", "ge": 0, "le": 65535}
    )
    replica_id: str | None = field(
        default=None, metadata={"help": "this process' name in traces and logs; unset: host and process id"}
    )
    token_budget: int = field(default=512, metadata={"help": "token rows of one forward at most", "ge": 1})
    max_nodes: int = field(default=64, metadata={"help": "draft tokens of one message at most", "ge": 1, "le": 255})
    max_context: int | None = field(
        default=None, metadata={"help": "context limit below the model's own; unset: the model's", "ge": 2}
    )
    kv_tokens: int = field(
        default=65536, metadata={"help": "tokens whose keys and values are held, all sessions together", "ge": 2}
    )
    max_sessions: int = field(default=256, metadata={"help": "open streams; more are refused", "ge": 1})
    threads: int | None = field(default=None, metadata={"help": "threads on CPU; unset: torch decides", "ge": 1})
    queue_limit: int = field(default=1024, metadata={"help": "messages that may wait; more are refused", "ge": 1})
    drain_grace: float = field(default=20.0, metadata={"help": "seconds for open streams after SIGTERM", "ge": 0.0})

    def validate(self) -> None:
        if self.token_budget < self.max_nodes + 1:
            raise ConfigError(
                "token_budget",
                self.token_budget,
                f"must be at least max_nodes + 1 = {self.max_nodes + 1}, or a whole draft never fits a forward",
            )
        if self.kv_tokens <= self.max_nodes + 1:
            raise ConfigError(
                "kv_tokens",
                self.kv_tokens,
                f"must be above max_nodes + 1 = {self.max_nodes + 1}, or no draft ever fits",
            )
