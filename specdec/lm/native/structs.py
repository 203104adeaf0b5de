"""The structs of `model.h`, field by field."""

from __future__ import annotations

import ctypes
from ctypes import c_double as Real
from ctypes import c_int64 as Int
from ctypes import c_void_p as Pointer


class Linear(ctypes.Structure):
    _fields_ = (("weights", Pointer), ("scales", Pointer), ("bias", Pointer), ("n", Int), ("k", Int))


class Layer(ctypes.Structure):
    _fields_ = (
        *((name, Linear) for name in ("qkv", "out", "gate_up", "down")),
        *((name, Pointer) for name in ("norm_attention", "norm_mlp", "norm_query", "norm_key")),
        ("windowed", Int),
    )


class Model(ctypes.Structure):
    _fields_ = (
        *((name, Int) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim")),
        *((name, Int) for name in ("weights", "amx", "kv_bf16")),
        *((name, Real) for name in ("eps", "scale")),
        ("layer", Pointer),
        ("norm_final", Pointer),
        ("head", Linear),
        ("embedding", Pointer),
    )


class Segment(ctypes.Structure):
    _fields_ = (
        *((name, Int) for name in ("first", "rows", "start", "base")),
        ("visible", Pointer),
        ("window_base", Int),
        ("window_visible", Pointer),
        ("blocks", Pointer),
    )


class Batch(ctypes.Structure):
    _fields_ = (
        *((name, Int) for name in ("rows", "segments", "wanted")),
        *((name, Pointer) for name in ("ids", "kv_rows", "wanted_rows", "inputs")),
        *((name, Int) for name in ("tapped", "taps")),
        *((name, Pointer) for name in ("tapped_rows", "tap")),
        *((name, Pointer) for name in ("cos", "sin", "segment", "kv", "logits", "hidden")),
        *((name, Pointer) for name in ("x", "qkv", "a", "mixed", "inner", "scratch")),
        ("scratch_bytes", Int),
        ("threads", Int),
    )


class Laws(ctypes.Structure):
    """`Shared` of law.c."""

    _fields_ = (
        *((name, Int) for name in ("vocab", "likeliest")),
        *((name, Pointer) for name in ("edit_ids", "edit_bias", "edit_repetition", "edit_penalty")),
        *((name, Pointer) for name in ("look_ids", "look_p", "likeliest_ids", "likeliest_p")),
    )
