"""The library where there is no compiler, as in a container: made beforehand for a few kinds of processor, of which the
best that this one is gets loaded. A processor that is none of them is served by another network.

`python -m specdec.lm.native.prebuilt` makes them, when an image is built."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from specdec.lm.native.library import FLAGS, compile_library, found_compiler, source_digest

FOLDER = Path(__file__).parent / "prebuilt"
CPU_INFO = Path("/proc/cpuinfo")
_AVX2 = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm"})  # x86-64-v3, as the kernel names it
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}  # x86-64-v4
_BF16 = _AVX512 | {"avx512_bf16"}


@dataclass(frozen=True, slots=True)
class Kind:
    """Of processor. flags: the compiler's, in place of `-march=native`. needs: as /proc/cpuinfo lists it."""

    name: str
    machine: str
    flags: tuple[str, ...]
    needs: frozenset[str]

    @property
    def file(self) -> str:
        """Of these sources: a library that others made is not found."""
        return f"{self.name}-{source_digest(' '.join(self.compiler_flags))}.so"

    @property
    def compiler_flags(self) -> tuple[str, ...]:
        return (*(flag for flag in FLAGS if not flag.startswith("-march")), *self.flags)


# Best first.
KINDS = (
    Kind(
        "tiles",
        "x86_64",
        ("-march=x86-64-v4", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
        _BF16 | {"amx_tile", "amx_bf16"},
    ),
    Kind("bf16", "x86_64", ("-march=x86-64-v4", "-mavx512bf16"), _BF16),
    Kind("avx512", "x86_64", ("-march=x86-64-v4",), _AVX512),
    Kind("avx2", "x86_64", ("-march=x86-64-v3",), _AVX2),
    Kind("neon", "aarch64", ("-march=armv8-a",), frozenset({"asimd"})),
)


def prebuilt() -> Path | None:
    """The best library there is for this processor."""
    features = cpu_features(CPU_INFO.read_text()) if CPU_INFO.exists() else frozenset[str]()
    fitting = (k for k in KINDS if k.machine == platform.machine() and k.needs <= features)
    return next((path for kind in fitting if (path := FOLDER / kind.file).is_file()), None)


def cpu_features(cpu_info: str) -> frozenset[str]:
    """Those of the first processor: all are alike."""
    for name, _, value in (line.partition(":") for line in cpu_info.splitlines()):
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def build() -> list[Path]:
    """For every kind of this machine's architecture. Raises Unsupported without a compiler, CalledProcessError where it
    fails."""
    FOLDER.mkdir(exist_ok=True)
    compiler, made = found_compiler(), []
    for kind in KINDS:
        if kind.machine == platform.machine():
            made.append(FOLDER / kind.file)
            compile_library(compiler, kind.compiler_flags, made[-1])
            made[-1].chmod(0o755)
    return made


if __name__ == "__main__":
    libraries = build()
    print(*libraries, sep="\n")
    sys.exit(0 if libraries else f"no kinds of {platform.machine()} are known")
