from protos import common_pb2 as _common_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERIFY_FORM_UNSPECIFIED: _ClassVar[VerifyForm]
    VERIFY_FORM_Y: _ClassVar[VerifyForm]
    VERIFY_FORM_PQ: _ClassVar[VerifyForm]
    VERIFY_FORM_TYPICAL: _ClassVar[VerifyForm]
VERIFY_FORM_UNSPECIFIED: VerifyForm
VERIFY_FORM_Y: VerifyForm
VERIFY_FORM_PQ: VerifyForm
VERIFY_FORM_TYPICAL: VerifyForm

class VerifyRequest(_message.Message):
    __slots__ = ("open", "cycle", "offset", "token_ids", "draft_token_ids", "draft_parents", "form", "support_sizes", "support_ids", "want_child_p", "budget_us", "traceparent")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_PARENTS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_SIZES_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_IDS_FIELD_NUMBER: _ClassVar[int]
    WANT_CHILD_P_FIELD_NUMBER: _ClassVar[int]
    BUDGET_US_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    open: _common_pb2.OpenSession
    cycle: int
    offset: int
    token_ids: bytes
    draft_token_ids: bytes
    draft_parents: bytes
    form: VerifyForm
    support_sizes: bytes
    support_ids: bytes
    want_child_p: bool
    budget_us: int
    traceparent: str
    def __init__(self, open: _Optional[_Union[_common_pb2.OpenSession, _Mapping]] = ..., cycle: _Optional[int] = ..., offset: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., draft_token_ids: _Optional[bytes] = ..., draft_parents: _Optional[bytes] = ..., form: _Optional[_Union[VerifyForm, str]] = ..., support_sizes: _Optional[bytes] = ..., support_ids: _Optional[bytes] = ..., want_child_p: _Optional[bool] = ..., budget_us: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Verification(_message.Message):
    __slots__ = ("drawn", "support_p", "tails", "child_p", "drawn_logprobs", "support_logprobs", "top_ids", "top_logprobs", "entropies", "features", "feature_rows", "context_feature_rows")
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_P_FIELD_NUMBER: _ClassVar[int]
    TAILS_FIELD_NUMBER: _ClassVar[int]
    CHILD_P_FIELD_NUMBER: _ClassVar[int]
    DRAWN_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ENTROPIES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    FEATURE_ROWS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FEATURE_ROWS_FIELD_NUMBER: _ClassVar[int]
    drawn: bytes
    support_p: bytes
    tails: bytes
    child_p: bytes
    drawn_logprobs: bytes
    support_logprobs: bytes
    top_ids: bytes
    top_logprobs: bytes
    entropies: bytes
    features: bytes
    feature_rows: int
    context_feature_rows: int
    def __init__(self, drawn: _Optional[bytes] = ..., support_p: _Optional[bytes] = ..., tails: _Optional[bytes] = ..., child_p: _Optional[bytes] = ..., drawn_logprobs: _Optional[bytes] = ..., support_logprobs: _Optional[bytes] = ..., top_ids: _Optional[bytes] = ..., top_logprobs: _Optional[bytes] = ..., entropies: _Optional[bytes] = ..., features: _Optional[bytes] = ..., feature_rows: _Optional[int] = ..., context_feature_rows: _Optional[int] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("cycle", "verification", "stale", "refusal", "timing", "load")
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    cycle: int
    verification: Verification
    stale: _common_pb2.StaleContext
    refusal: _common_pb2.Refusal
    timing: _common_pb2.Timing
    load: _common_pb2.Load
    def __init__(self, cycle: _Optional[int] = ..., verification: _Optional[_Union[Verification, _Mapping]] = ..., stale: _Optional[_Union[_common_pb2.StaleContext, _Mapping]] = ..., refusal: _Optional[_Union[_common_pb2.Refusal, _Mapping]] = ..., timing: _Optional[_Union[_common_pb2.Timing, _Mapping]] = ..., load: _Optional[_Union[_common_pb2.Load, _Mapping]] = ...) -> None: ...
