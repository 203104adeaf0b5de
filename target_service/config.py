"""A verifier replica's settings: one flat list, flags and environment of the same names."""

from __future__ import annotations

from dataclasses import dataclass, field

from specdec.core.errors import ConfigError
from specdec.core.tree import MAX_NODES
from specdec.edge.tls import CA_OPTION, CERTIFICATE_OPTION, KEY_OPTION
from specdec.lm.networks import AUTO, DTYPE_OPTION, NETWORK_OPTION

UNTUNED_BUDGET = 512  # token rows, where neither a budget was given nor forwards were measured


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """Defaults suit a small model on a CPU."""

    model: str = field(metadata={"help": "folder or hub name of the target model"})
    dtype: str = field(default="float32", metadata=DTYPE_OPTION)
    network: str = field(default=AUTO, metadata=NETWORK_OPTION)
    device: str = field(default="cpu", metadata={"help": "where the model runs: cpu, cuda, cuda:1"})
    host: str = field(default="127.0.0.1", metadata={"help": "interface to serve on"})
    port: int = field(default=50053, metadata={"help": "gRPC port, 0: any", "ge": 0, "le": 65535})
    tls_certificate: str | None = field(default=None, metadata=CERTIFICATE_OPTION)
    tls_key: str | None = field(default=None, metadata=KEY_OPTION)
    tls_ca: str | None = field(default=None, metadata=CA_OPTION)
    metrics_port: int | None = field(
        default=None, metadata={"help": "port of /metrics, 0: any, unset: none", "ge": 0, "le": 65535}
    )
    replica_id: str | None = field(
        default=None, metadata={"help": "this process' name in traces and logs; unset: host and process id"}
    )
    token_budget: int | None = field(
        default=None,
        metadata={"help": "token rows of one forward at most; unset: those from which on more bring little", "ge": 1},
    )
    step_target: float | None = field(
        default=None,
        metadata={
            "help": "seconds at most of a forward that serves a piece of a prompt beside short work; unset: three "
            "times a plain forward, and at least 0.05",
            "ge": 0.001,
        },
    )
    tune_seconds: float = field(
        default=4.0, metadata={"help": "for measuring forwards at start-up, 0: nothing is measured", "ge": 0.0}
    )
    max_nodes: int = field(
        default=64, metadata={"help": "draft tokens of one message at most", "ge": 0, "le": MAX_NODES}
    )
    max_context: int | None = field(
        default=None,
        metadata={"help": "tokens of one context at most; unset: what the model and the KV pool allow", "ge": 1},
    )
    kv_tokens: int = field(
        default=32768, metadata={"help": "tokens whose keys and values are held, all sessions together", "ge": 1}
    )
    kv_store_url: str | None = field(
        default=None,
        metadata={
            "help": "redis://, rediss://, redis+sentinel:// or redis+cluster:// where verifiers share keys and values; "
            "it may evict them; unset: each keeps its own"
        },
    )
    kv_store_ttl: float = field(default=3600.0, metadata={"help": "seconds that unused KV is kept there", "ge": 1.0})
    kv_store_bytes: int | None = field(
        default=None,
        metadata={"help": "memory in use there above which no more is stored; unset: until it evicts", "ge": 1},
    )
    kv_store_queue_bytes: int = field(
        default=1 << 27, metadata={"help": "bytes of KV that may wait to be stored; more is dropped", "ge": 1}
    )
    kv_store_timeout: float = field(
        default=1.0, metadata={"help": "seconds that one trip to the KV store may take", "ge": 0.01}
    )
    max_sessions: int = field(default=1024, metadata={"help": "streams served at a time", "ge": 1})
    threads: int | None = field(
        default=None, metadata={"help": "threads of the model on CPU; unset: torch decides", "ge": 1}
    )
    queue_limit: int = field(default=1024, metadata={"help": "messages that may wait; more are refused", "ge": 1})
    stuck_after: float = field(
        default=60.0, metadata={"help": "seconds without a finished forward until health says so", "ge": 0.1}
    )
    drain_grace: float = field(default=20.0, metadata={"help": "seconds for open streams after SIGTERM", "ge": 0.0})

    def validate(self) -> None:
        rows = self.max_nodes + 1
        if self.token_budget is not None and self.token_budget < rows:
            raise ConfigError(
                "token_budget",
                self.token_budget,
                f"must be at least max_nodes + 1 = {rows}: a draft and its root are verified in one forward",
            )
        if self.step_target is not None and not self.tune_seconds:
            raise ConfigError("step_target", self.step_target, "needs tune_seconds above 0: forwards must be measured")
        least = (self.max_context or 1) + self.max_nodes
        if self.kv_tokens < least:
            raise ConfigError(
                "kv_tokens",
                self.kv_tokens,
                f"must be at least {least}: one context of max_context tokens and its max_nodes draft tokens",
            )

    def context_limit(self, model_context: int) -> int:
        """Effective max_context, for a model of `model_context` positions. Raises ConfigError."""
        if self.max_context is None:
            return min(model_context, self.kv_tokens - self.max_nodes)
        if self.max_context > model_context:
            raise ConfigError("max_context", self.max_context, f"the model has {model_context} positions")
        return self.max_context
