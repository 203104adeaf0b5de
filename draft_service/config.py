"""A drafter replica's settings: one flat list, flags and environment of the same names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast, get_args

from draft_service.drafters import DRAFTERS
from specdec.core.errors import ConfigError
from specdec.edge.tls import CA_OPTION, CERTIFICATE_OPTION, KEY_OPTION
from specdec.lm.id_map import ALL
from specdec.lm.networks import AUTO, DTYPE_OPTION, NETWORK_OPTION, Dtype

_WITHOUT_ARGUMENT = ("ngram", "suffix")
_OF_THE_TARGET = ("self", "medusa", "eagle", "eagle2")  # made of the target's own weights
_TRAINED = ("medusa", "eagle", "eagle2")  # a draft folder each


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """vocab_size and tokenizer hash in Info come from the drafters' models; drafters without one fit any target."""

    drafters: tuple[str, ...] = field(
        default=("ngram",),
        metadata={
            "help": f"drafters served, comma separated, the first is the default; each one of {', '.join(DRAFTERS)}, "
            "with a colon and its argument: a model or draft folder for lm, medusa, eagle and eagle2, a dtype for self"
        },
    )
    model: str | None = field(
        default=None,
        metadata={"help": "folder or hub name of lm's model; for ngram alone a folder with a tokenizer.json"},
    )
    target_model: str | None = field(
        default=None, metadata={"help": "folder or hub name of the target: weights that drafters share, its tokenizer"}
    )
    num_layers: int | None = field(
        default=None, metadata={"help": "lm: serve the first layers only; unset: all of them", "ge": 1}
    )
    head_ids: str | None = field(
        default=None,
        metadata={
            "help": "ids that lm and self can draft: first:N, the N lowest and all that end a turn; a file of ids; "
            f"{ALL}; unset: what the draft folder says, else {ALL}"
        },
    )
    tli: bool = field(
        default=False,
        metadata={"help": "lm may have another tokenizer than the target: it drafts the tokens that both have"},
    )
    dtype: str | None = field(
        default=None, metadata={**DTYPE_OPTION, "help": f"{DTYPE_OPTION['help']}; unset: int8 on CPU, else bfloat16"}
    )
    network: str = field(default=AUTO, metadata=NETWORK_OPTION)
    device: str = field(default="cpu", metadata={"help": "where the draft model runs: cpu, cuda, cuda:1"})
    host: str = field(default="127.0.0.1", metadata={"help": "interface to serve on"})
    port: int = field(default=50052, metadata={"help": "gRPC port, 0: any", "ge": 0, "le": 65535})
    tls_certificate: str | None = field(default=None, metadata=CERTIFICATE_OPTION)
    tls_key: str | None = field(default=None, metadata=KEY_OPTION)
    tls_ca: str | None = field(default=None, metadata=CA_OPTION)
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
    suffix_tokens: int = field(
        default=262144, metadata={"help": "tokens of earlier outputs that suffix holds, 40 bytes each", "ge": 1024}
    )
    suffix_shared: bool = field(
        default=True, metadata={"help": "suffix drafts from earlier outputs of all sessions; else from their own only"}
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

    @property
    def entries(self) -> Mapping[str, str | None]:
        """The argument of each drafter, by its name."""
        parts = [entry.partition(":") for entry in self.drafters]
        return {name: argument if colon else None for name, colon, argument in parts}

    @property
    def has_weights(self) -> bool:
        """Whether any drafter has a model, which says what vocabulary the replica serves."""
        return any(name not in _WITHOUT_ARGUMENT for name in self.entries)

    @property
    def precision(self) -> Dtype:
        """What draft models are served in. A draft's rounding costs acceptance, never exactness: int8 reads the least
        memory on CPU."""
        default = "int8" if self.device == "cpu" else "bfloat16"
        return cast(Dtype, self.dtype or default)

    def validate(self) -> None:
        """Raises ConfigError for settings that contradict each other, or that no folder could make right."""
        if not self.drafters:
            raise ConfigError("drafters", "", f"name at least one of {', '.join(DRAFTERS)}")
        if len(self.entries) < len(self.drafters):
            raise ConfigError("drafters", ",".join(self.drafters), "names a drafter twice")
        for name, argument in self.entries.items():
            self._check_entry(name, argument)
        if self.tli and self.target_model is None:
            raise ConfigError("target_model", None, "tli needs the target's tokenizer: its folder or hub name")
        if self.tli and "lm" not in self.entries:
            raise ConfigError("tli", True, "is for the drafter 'lm'")
        if self.head_ids is not None and not {"lm", "self"} & set(self.entries):
            raise ConfigError("head_ids", self.head_ids, "is for the drafters 'lm' and 'self'")
        if self.kv_tokens <= self.max_draft_tokens:
            raise ConfigError(
                "kv_tokens",
                self.kv_tokens,
                f"must be above max_draft_tokens = {self.max_draft_tokens}, or no draft ever fits",
            )

    def _check_entry(self, name: str, argument: str | None) -> None:
        shown = name if argument is None else f"{name}:{argument}"
        if name not in DRAFTERS:
            raise ConfigError("drafters", shown, f"choose among {', '.join(DRAFTERS)}")
        if argument == "":
            raise ConfigError("drafters", shown, "nothing behind the colon")
        if name in _WITHOUT_ARGUMENT and argument is not None:
            raise ConfigError("drafters", shown, f"{name} takes no argument")
        if name == "lm" and argument is None and self.model is None:
            raise ConfigError(
                "model", None, "the drafter 'lm' needs a model: a folder or hub name, here or as lm:MODEL"
            )
        if name in _TRAINED and argument is None:
            raise ConfigError("drafters", shown, f"the drafter {name!r} needs its draft folder: {name}:FOLDER")
        if name in _OF_THE_TARGET and self.target_model is None:
            raise ConfigError("target_model", None, f"the drafter {name!r} needs the target's folder or hub name")
        if name == "self" and argument is not None and argument not in get_args(Dtype):
            raise ConfigError("drafters", shown, f"the argument is a dtype: one of {', '.join(get_args(Dtype))}")
