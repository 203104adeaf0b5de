from protos import common_pb2 as _common_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_MODE_UNSPECIFIED: _ClassVar[DraftMode]
    DRAFT_MODE_CHOSEN: _ClassVar[DraftMode]
    DRAFT_MODE_SAMPLED: _ClassVar[DraftMode]

class DraftKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_KIND_UNSPECIFIED: _ClassVar[DraftKind]
    DRAFT_KIND_CHOSEN: _ClassVar[DraftKind]
    DRAFT_KIND_SAMPLED: _ClassVar[DraftKind]
    DRAFT_KIND_SAMPLED_WITHOUT_REPLACEMENT: _ClassVar[DraftKind]
DRAFT_MODE_UNSPECIFIED: DraftMode
DRAFT_MODE_CHOSEN: DraftMode
DRAFT_MODE_SAMPLED: DraftMode
DRAFT_KIND_UNSPECIFIED: DraftKind
DRAFT_KIND_CHOSEN: DraftKind
DRAFT_KIND_SAMPLED: DraftKind
DRAFT_KIND_SAMPLED_WITHOUT_REPLACEMENT: DraftKind

class DraftRequest(_message.Message):
    __slots__ = ("open", "cycle", "offset", "token_ids", "num_draft_tokens", "mode", "support", "budget_us", "traceparent", "features", "feature_rows", "feature_offset")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_FIELD_NUMBER: _ClassVar[int]
    BUDGET_US_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    FEATURE_ROWS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    open: _common_pb2.OpenSession
    cycle: int
    offset: int
    token_ids: bytes
    num_draft_tokens: int
    mode: DraftMode
    support: int
    budget_us: int
    traceparent: str
    features: bytes
    feature_rows: int
    feature_offset: int
    def __init__(self, open: _Optional[_Union[_common_pb2.OpenSession, _Mapping]] = ..., cycle: _Optional[int] = ..., offset: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., num_draft_tokens: _Optional[int] = ..., mode: _Optional[_Union[DraftMode, str]] = ..., support: _Optional[int] = ..., budget_us: _Optional[int] = ..., traceparent: _Optional[str] = ..., features: _Optional[bytes] = ..., feature_rows: _Optional[int] = ..., feature_offset: _Optional[int] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("kind", "token_ids", "parents", "support_sizes", "support_ids", "support_q", "drafter", "score", "coupled")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_SIZES_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_IDS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_Q_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    COUPLED_FIELD_NUMBER: _ClassVar[int]
    kind: DraftKind
    token_ids: bytes
    parents: bytes
    support_sizes: bytes
    support_ids: bytes
    support_q: bytes
    drafter: str
    score: float
    coupled: bool
    def __init__(self, kind: _Optional[_Union[DraftKind, str]] = ..., token_ids: _Optional[bytes] = ..., parents: _Optional[bytes] = ..., support_sizes: _Optional[bytes] = ..., support_ids: _Optional[bytes] = ..., support_q: _Optional[bytes] = ..., drafter: _Optional[str] = ..., score: _Optional[float] = ..., coupled: _Optional[bool] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("cycle", "draft", "stale", "refusal", "timing", "load")
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    draft: Draft
    stale: _common_pb2.StaleContext
    refusal: _common_pb2.Refusal
    timing: _common_pb2.Timing
    load: _common_pb2.Load
    def __init__(self, cycle: _Optional[int] = ..., draft: _Optional[_Union[Draft, _Mapping]] = ..., stale: _Optional[_Union[_common_pb2.StaleContext, _Mapping]] = ..., refusal: _Optional[_Union[_common_pb2.Refusal, _Mapping]] = ..., timing: _Optional[_Union[_common_pb2.Timing, _Mapping]] = ..., load: _Optional[_Union[_common_pb2.Load, _Mapping]] = ...) -> None: ...
