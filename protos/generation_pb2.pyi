from protos import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenOrigin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_ORIGIN_UNSPECIFIED: _ClassVar[TokenOrigin]
    TOKEN_ORIGIN_ACCEPTED: _ClassVar[TokenOrigin]
    TOKEN_ORIGIN_RECOVERED: _ClassVar[TokenOrigin]
    TOKEN_ORIGIN_BONUS: _ClassVar[TokenOrigin]
    TOKEN_ORIGIN_REPLAYED: _ClassVar[TokenOrigin]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
TOKEN_ORIGIN_UNSPECIFIED: TokenOrigin
TOKEN_ORIGIN_ACCEPTED: TokenOrigin
TOKEN_ORIGIN_RECOVERED: TokenOrigin
TOKEN_ORIGIN_BONUS: TokenOrigin
TOKEN_ORIGIN_REPLAYED: TokenOrigin
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason

class ServiceInfo(_message.Message):
    __slots__ = ("model_name", "model_fingerprint", "dtype", "vocab_size", "max_context", "drafters", "verifications", "ready_drafters", "ready_verifiers", "speculation_enabled", "speculation_disabled_reason", "config")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    VERIFICATIONS_FIELD_NUMBER: _ClassVar[int]
    READY_DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    READY_VERIFIERS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_ENABLED_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_DISABLED_REASON_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    model_fingerprint: str
    dtype: str
    vocab_size: int
    max_context: int
    drafters: _containers.RepeatedScalarFieldContainer[str]
    verifications: _containers.RepeatedScalarFieldContainer[str]
    ready_drafters: int
    ready_verifiers: int
    speculation_enabled: bool
    speculation_disabled_reason: str
    config: _containers.ScalarMap[str, str]
    def __init__(self, model_name: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., dtype: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_context: _Optional[int] = ..., drafters: _Optional[_Iterable[str]] = ..., verifications: _Optional[_Iterable[str]] = ..., ready_drafters: _Optional[int] = ..., ready_verifiers: _Optional[int] = ..., speculation_enabled: _Optional[bool] = ..., speculation_disabled_reason: _Optional[str] = ..., config: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class StringList(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[str]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("session_id", "received_tokens", "text", "token_ids", "chat", "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop", "stop_token_ids", "ignore_eos", "n", "logprobs", "num_draft_tokens", "drafter", "verification", "grammar", "json_schema", "regex", "best_of", "prompt_logprobs", "beam_width")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    BEST_OF_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    BEAM_WIDTH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    received_tokens: int
    text: str
    token_ids: TokenIds
    chat: Chat
    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    n: int
    logprobs: int
    num_draft_tokens: int
    drafter: str
    verification: str
    grammar: str
    json_schema: str
    regex: str
    best_of: int
    prompt_logprobs: int
    beam_width: int
    def __init__(self, session_id: _Optional[str] = ..., received_tokens: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., n: _Optional[int] = ..., logprobs: _Optional[int] = ..., num_draft_tokens: _Optional[int] = ..., drafter: _Optional[str] = ..., verification: _Optional[str] = ..., grammar: _Optional[str] = ..., json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., best_of: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., beam_width: _Optional[int] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("id", "logprob")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    id: int
    logprob: float
    def __init__(self, id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("id", "text", "origin", "logprob", "top_logprobs")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    id: int
    text: str
    origin: TokenOrigin
    logprob: float
    top_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, id: _Optional[int] = ..., text: _Optional[str] = ..., origin: _Optional[_Union[TokenOrigin, str]] = ..., logprob: _Optional[float] = ..., top_logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("session_id", "epoch", "seed", "prompt_tokens", "params", "max_tokens", "verification", "drafter", "index")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    epoch: int
    seed: int
    prompt_tokens: int
    params: _common_pb2.SamplingParams
    max_tokens: int
    verification: str
    drafter: str
    index: int
    def __init__(self, session_id: _Optional[str] = ..., epoch: _Optional[int] = ..., seed: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., params: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., max_tokens: _Optional[int] = ..., verification: _Optional[str] = ..., drafter: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class CycleTiming(_message.Message):
    __slots__ = ("cycle_us", "draft_us", "draft_queue_us", "draft_compute_us", "verify_us", "verify_queue_us", "verify_compute_us")
    CYCLE_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    VERIFY_QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    VERIFY_COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    cycle_us: int
    draft_us: int
    draft_queue_us: int
    draft_compute_us: int
    verify_us: int
    verify_queue_us: int
    verify_compute_us: int
    def __init__(self, cycle_us: _Optional[int] = ..., draft_us: _Optional[int] = ..., draft_queue_us: _Optional[int] = ..., draft_compute_us: _Optional[int] = ..., verify_us: _Optional[int] = ..., verify_queue_us: _Optional[int] = ..., verify_compute_us: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("index", "offset", "text", "tokens", "timing", "drafter", "num_draft_tokens", "draft_depth", "num_accepted_tokens", "exact_alphas")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_DEPTH_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXACT_ALPHAS_FIELD_NUMBER: _ClassVar[int]
    index: int
    offset: int
    text: str
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    timing: CycleTiming
    drafter: str
    num_draft_tokens: int
    draft_depth: int
    num_accepted_tokens: int
    exact_alphas: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, index: _Optional[int] = ..., offset: _Optional[int] = ..., text: _Optional[str] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., timing: _Optional[_Union[CycleTiming, _Mapping]] = ..., drafter: _Optional[str] = ..., num_draft_tokens: _Optional[int] = ..., draft_depth: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ..., exact_alphas: _Optional[_Iterable[float]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class DraftStats(_message.Message):
    __slots__ = ("cycles", "drafts", "draft_tokens", "accepted_tokens", "accepted_per_position", "exact_alpha_sum", "exact_alpha_count", "fallbacks", "cut_tokens", "draft_seconds", "verify_seconds", "commit_seconds", "decode_seconds", "bytes_sent", "bytes_received", "time_to_first_token", "lossy", "reached_per_position", "cycles_per_drafter")
    class FallbacksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class CyclesPerDrafterEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CYCLES_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    EXACT_ALPHA_SUM_FIELD_NUMBER: _ClassVar[int]
    EXACT_ALPHA_COUNT_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    CUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DECODE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOSSY_FIELD_NUMBER: _ClassVar[int]
    REACHED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    CYCLES_PER_DRAFTER_FIELD_NUMBER: _ClassVar[int]
    cycles: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: _containers.RepeatedScalarFieldContainer[int]
    exact_alpha_sum: float
    exact_alpha_count: int
    fallbacks: _containers.ScalarMap[str, int]
    cut_tokens: int
    draft_seconds: float
    verify_seconds: float
    commit_seconds: float
    decode_seconds: float
    bytes_sent: int
    bytes_received: int
    time_to_first_token: float
    lossy: bool
    reached_per_position: _containers.RepeatedScalarFieldContainer[int]
    cycles_per_drafter: _containers.ScalarMap[str, int]
    def __init__(self, cycles: _Optional[int] = ..., drafts: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., accepted_per_position: _Optional[_Iterable[int]] = ..., exact_alpha_sum: _Optional[float] = ..., exact_alpha_count: _Optional[int] = ..., fallbacks: _Optional[_Mapping[str, int]] = ..., cut_tokens: _Optional[int] = ..., draft_seconds: _Optional[float] = ..., verify_seconds: _Optional[float] = ..., commit_seconds: _Optional[float] = ..., decode_seconds: _Optional[float] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., time_to_first_token: _Optional[float] = ..., lossy: _Optional[bool] = ..., reached_per_position: _Optional[_Iterable[int]] = ..., cycles_per_drafter: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Complete(_message.Message):
    __slots__ = ("index", "finish_reason", "stop", "usage", "draft_stats")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_STATS_FIELD_NUMBER: _ClassVar[int]
    index: int
    finish_reason: FinishReason
    stop: str
    usage: Usage
    draft_stats: DraftStats
    def __init__(self, index: _Optional[int] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., stop: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., draft_stats: _Optional[_Union[DraftStats, _Mapping]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("started", "chunk", "complete")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    started: Started
    chunk: Chunk
    complete: Complete
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., complete: _Optional[_Union[Complete, _Mapping]] = ...) -> None: ...
