from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias_ids", "logit_biases", "min_tokens", "end_ids", "logprobs")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIASES_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    END_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias_ids: bytes
    logit_biases: bytes
    min_tokens: int
    end_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias_ids: _Optional[bytes] = ..., logit_biases: _Optional[bytes] = ..., min_tokens: _Optional[int] = ..., end_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[int] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ("protocol_version", "session_id", "params", "seed", "turn_start", "drafter", "feature_layers", "cache_salt")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TURN_START_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    session_id: str
    params: SamplingParams
    seed: int
    turn_start: int
    drafter: str
    feature_layers: _containers.RepeatedScalarFieldContainer[int]
    cache_salt: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., session_id: _Optional[str] = ..., params: _Optional[_Union[SamplingParams, _Mapping]] = ..., seed: _Optional[int] = ..., turn_start: _Optional[int] = ..., drafter: _Optional[str] = ..., feature_layers: _Optional[_Iterable[int]] = ..., cache_salt: _Optional[bytes] = ...) -> None: ...

class StaleContext(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: int
    def __init__(self, held: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "message", "field")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    field: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("queue_us", "compute_us", "batch_size", "computed_tokens", "batch_rows")
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    queue_us: int
    compute_us: int
    batch_size: int
    computed_tokens: int
    batch_rows: int
    def __init__(self, queue_us: _Optional[int] = ..., compute_us: _Optional[int] = ..., batch_size: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., batch_rows: _Optional[int] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("queued", "running", "kv_free", "kv_total", "draining")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    KV_FREE_FIELD_NUMBER: _ClassVar[int]
    KV_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    queued: int
    running: int
    kv_free: int
    kv_total: int
    draining: bool
    def __init__(self, queued: _Optional[int] = ..., running: _Optional[int] = ..., kv_free: _Optional[int] = ..., kv_total: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...

class StepTimes(_message.Message):
    __slots__ = ("rows", "contexts", "seconds")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    rows: bytes
    contexts: bytes
    seconds: bytes
    def __init__(self, rows: _Optional[bytes] = ..., contexts: _Optional[bytes] = ..., seconds: _Optional[bytes] = ...) -> None: ...

class DrafterInfo(_message.Message):
    __slots__ = ("name", "tree", "feature_layers", "feature_size", "target_base_fingerprint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_SIZE_FIELD_NUMBER: _ClassVar[int]
    TARGET_BASE_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    tree: bool
    feature_layers: _containers.RepeatedScalarFieldContainer[int]
    feature_size: int
    target_base_fingerprint: str
    def __init__(self, name: _Optional[str] = ..., tree: _Optional[bool] = ..., feature_layers: _Optional[_Iterable[int]] = ..., feature_size: _Optional[int] = ..., target_base_fingerprint: _Optional[str] = ...) -> None: ...

class ReplicaInfo(_message.Message):
    __slots__ = ("protocol_version", "role", "replica_id", "vocab_size", "tokenizer_hash", "model_fingerprint", "dtype", "max_context", "max_nodes", "token_budget", "kv_block_size", "eos_ids", "drafters", "model_name", "load", "config", "step_times", "num_layers", "hidden_size", "base_fingerprint", "drafter_infos")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMES_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    BASE_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_INFOS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    role: str
    replica_id: str
    vocab_size: int
    tokenizer_hash: str
    model_fingerprint: str
    dtype: str
    max_context: int
    max_nodes: int
    token_budget: int
    kv_block_size: int
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    drafters: _containers.RepeatedScalarFieldContainer[str]
    model_name: str
    load: Load
    config: _containers.ScalarMap[str, str]
    step_times: StepTimes
    num_layers: int
    hidden_size: int
    base_fingerprint: str
    drafter_infos: _containers.RepeatedCompositeFieldContainer[DrafterInfo]
    def __init__(self, protocol_version: _Optional[int] = ..., role: _Optional[str] = ..., replica_id: _Optional[str] = ..., vocab_size: _Optional[int] = ..., tokenizer_hash: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., dtype: _Optional[str] = ..., max_context: _Optional[int] = ..., max_nodes: _Optional[int] = ..., token_budget: _Optional[int] = ..., kv_block_size: _Optional[int] = ..., eos_ids: _Optional[_Iterable[int]] = ..., drafters: _Optional[_Iterable[str]] = ..., model_name: _Optional[str] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., config: _Optional[_Mapping[str, str]] = ..., step_times: _Optional[_Union[StepTimes, _Mapping]] = ..., num_layers: _Optional[int] = ..., hidden_size: _Optional[int] = ..., base_fingerprint: _Optional[str] = ..., drafter_infos: _Optional[_Iterable[_Union[DrafterInfo, _Mapping]]] = ...) -> None: ...
