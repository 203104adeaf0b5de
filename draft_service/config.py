"""A drafter replica's settings: one flat list, flags and environment of the same names."""

from __future__ import annotations

from dataclasses import dataclass, field

from draft_service.drafters import DRAFTERS
from specdec.core.errors import ConfigError
from specdec.lm.networks import AUTO, DTYPE_OPTION, NETWORK_OPTION


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """vocab_size and tokenizer hash in Info come from `model`; an n-gram drafter without one fits any target."""

    drafters: tuple[str, ...] = field(
        default=("ngram",),
        metadata={"help": "drafters served, comma separated, the first is the default", "choices": (*DRAFTERS,)},
    )
    model: str | None = field(
        default=None,
        metadata={"help": "folder or hub name of the draft model; for ngram alone a folder with a tokenizer.json"},
    )
    num_layers: int | None = field(
        default=None, metadata={"help": "serve the first layers only; unset: all of them", "ge": 1}
    )
    dtype: str = field(default="float32", metadata=DTYPE_OPTION)
    network: str = field(default=AUTO, metadata=NETWORK_OPTION)
    device: str = field(default="cpu", metadata={"help": "where the draft model runs: cpu, cuda, cuda:1"})
    host: str = field(default="127.0.0.1", metadata={"help": "interface to serve on"})
    port: int = field(default=50052, metadata={"help": "gRPC port, 0: any", "ge": 0, "le": 65535})
    metrics_port: int | None = field(
        default=None, metadata={"help": "port of /metrics, 0: any, unset: none", "ge": 0, "le": 65535}
    )
    replica_id: str | None = field(
        default=None, metadata={"help": "this process' name in traces and logs; unset: host and port"}
    )
    token_budget: int = field(default=256, metadata={"help": "token rows of one forward at most", "ge": 1})
    kv_tokens: int = field(
        default=65536, metadata={"help": "tokens whose keys and values are held, all sessions together", "ge": 2}
    )
    threads: int | None = field(
        default=None, metadata={"help": "threads of the draft model on CPU; unset: torch decides", "ge": 1}
    )
    max_draft_tokens: int = field(
        default=16, metadata={"help": "draft tokens of one answer at most", "ge": 1, "le": 255}
    )
    max_support: int = field(
        default=255, metadata={"help": "ids kept of a sampled draft law at most", "ge": 1, "le": 255}
    )
    queue_limit: int = field(default=1024, metadata={"help": "messages that may wait; more are refused", "ge": 1})
    stuck_after: float = field(
        default=60.0, metadata={"help": "seconds without progress after which health says NOT_SERVING", "ge": 1.0}
    )
    drain_grace: float = field(default=20.0, metadata={"help": "seconds for open streams after SIGTERM", "ge": 0.0})

    def validate(self) -> None:
        if not self.drafters:
            raise ConfigError("drafters", "", f"name at least one of {', '.join(DRAFTERS)}")
        if len(set(self.drafters)) < len(self.drafters):
            raise ConfigError("drafters", ",".join(self.drafters), "names a drafter twice")
        if "lm" in self.drafters and self.model is None:
            raise ConfigError("model", None, "the drafter 'lm' needs a model: a folder or hub name")
        if self.kv_tokens <= self.max_draft_tokens:
            raise ConfigError(
                "kv_tokens",
                self.kv_tokens,
                f"must be above max_draft_tokens = {self.max_draft_tokens}, or no draft ever fits",
            )
