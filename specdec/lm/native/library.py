"""The C in this folder, compiled once for this processor with the system's compiler and kept in the cache; without a
compiler one that was made beforehand (`prebuilt.py`)."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from specdec.lm.networks import Unsupported

FLAGS: tuple[str, ...] = (
    "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=fast", "-Wno-psabi",
)  # fmt: skip
_HERE = Path(__file__).parent
_COMPILE_SECONDS = 120


@cache
def library() -> ctypes.CDLL:
    """The loaded library; $CC or the first of cc, gcc, clang makes it, a few seconds, when the cache has none for
    these sources and this processor.

    Raises Unsupported where there is no compiler and none was made beforehand, or it fails."""
    from specdec.lm.native.prebuilt import prebuilt  # which builds on this module

    try:
        compiler = found_compiler()
    except Unsupported:
        made = prebuilt()
        if made is None:
            raise
        return _loaded(made)
    try:
        path = _folder() / f"{_key(compiler)}.so"
        if not path.exists():
            compile_library(compiler, FLAGS, path)
    except subprocess.CalledProcessError as error:
        raise Unsupported(f"{compiler} failed: {error.stderr.strip()[-300:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unsupported(f"{compiler}: {error}") from error
    return _loaded(path)


def found_compiler() -> str:
    """Raises Unsupported."""
    compiler = os.environ.get("CC") or next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if compiler is None:
        raise Unsupported("no C compiler")
    return compiler


def _loaded(path: Path) -> ctypes.CDLL:
    try:
        return _typed(ctypes.CDLL(str(path)))
    except OSError as error:
        raise Unsupported(str(error)) from error


def _folder() -> Path:
    """$XDG_CACHE_HOME/specdec/native, ~/.cache by default; where nothing can be written, a folder for this process."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(root) / "specdec" / "native"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="specdec-native-"))
    return folder if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="specdec-native-"))


def _sources() -> list[Path]:
    return sorted((*_HERE.glob("*.c"), *_HERE.glob("*.h")))


def _key(compiler: str) -> str:
    """Of the sources, and of what the compiler is and knows of this processor: its predefined macros say both."""
    macros = _run([compiler, *FLAGS, "-dM", "-E", "-x", "c", os.devnull])
    return source_digest(macros + " ".join(FLAGS))


def source_digest(how: str) -> str:
    """Of the sources, and of how they are compiled."""
    digest = hashlib.sha256(how.encode())
    for source in _sources():
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:24]


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_COMPILE_SECONDS).stdout


def compile_library(compiler: str, flags: Sequence[str], path: Path) -> None:
    """Several processes may do this at the same time: each renames a file of its own into place."""
    handle, name = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    command = [compiler, *flags, *(str(s) for s in _sources() if s.suffix == ".c"), "-lm", "-o", name]
    try:
        _run(command)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _typed(loaded: ctypes.CDLL) -> ctypes.CDLL:
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    loaded.specdec_tiles.restype = size
    loaded.specdec_forward.argtypes, loaded.specdec_forward.restype = [pointer, pointer], size
    loaded.specdec_kv_rows.argtypes = [pointer, pointer, pointer, size, pointer, size]
    loaded.specdec_kv_rows.restype = None
    return loaded
