"""Who takes part, and how each is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import bf16_gguf, installed, llamacpp_program, vllm_python
from benchmarks.qwen_pair import PAIR, gguf_folder
from benchmarks.subjects.process import Subject
from specdec.core.errors import ConfigError
from specdec.lm.prepare import SMOLLM2, installed_smollm2

OURS, GENERATE, VLLM, LLAMACPP = "ours", "transformers", "vLLM", "llama.cpp"
PEERS = {"vllm": VLLM, "llamacpp": LLAMACPP}
ROOT = Path(__file__).parents[2]
VLLM_KV_GIB = 1  # the least that it takes


@dataclass(frozen=True, slots=True)
class Setting:
    """What all subjects have in common. max_context: of one sequence; streams: sequences at a time at most."""

    model: str
    folder: str
    dtype: str
    device: str
    kv_tokens: int
    max_context: int
    streams: int

    @property
    def peer_dtype(self) -> str:
        """int8 weights are ours alone: the others hold what those were rounded from."""
        return "bfloat16" if self.dtype == "int8" else self.dtype


@dataclass(frozen=True, slots=True)
class Entry:
    """name: in the table. kv_bytes: its budget for KV; None: as many tokens of the same size as ours."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    kv_bytes: int | None = None

    @property
    def is_ours(self) -> bool:
        return self.name.startswith(OURS)


def ours(setting: Setting, network: str) -> Entry:
    arguments = [setting.folder, setting.dtype, setting.device, network, str(setting.kv_tokens)]
    return Entry(f"{OURS}, {network}", [sys.executable, "-m", "benchmarks.subjects.ours", *arguments])


def generate(setting: Setting) -> Entry:
    arguments = [setting.folder, setting.peer_dtype, setting.device]
    return Entry(GENERATE, [sys.executable, "-m", "benchmarks.subjects.generate", *arguments], kv_bytes=0)


def vllm(setting: Setting) -> Entry:
    arguments = [setting.folder, setting.peer_dtype, str(setting.streams), str(setting.max_context)]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(VLLM_KV_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: stopped and counted as one
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",  # the model is a folder
    }
    command = [str(vllm_python()), "-m", "benchmarks.subjects.vllm_cpu", *arguments]
    return Entry(VLLM, command, environment, VLLM_KV_GIB << 30)


def llamacpp(setting: Setting, gguf: str | None) -> Entry:
    if setting.peer_dtype != "bfloat16":
        raise ConfigError("peers", "llamacpp", f"it is compared in bfloat16, not {setting.dtype}")
    file = bf16_gguf(quantised(setting.model, gguf))
    arguments = [str(llamacpp_program("llama-server")), str(file), str(setting.streams), str(setting.kv_tokens)]
    return Entry(LLAMACPP, [sys.executable, "-m", "benchmarks.subjects.llama_server", *arguments])


def quantised(model: str, gguf: str | None) -> Path:
    """The GGUF file that the model's folder was made from."""
    if gguf is not None:
        return Path(gguf)
    if model == SMOLLM2:
        return installed_smollm2()
    if model in PAIR and (file := gguf_folder() / PAIR[model].file).is_file():
        return file
    if model.endswith(".gguf"):
        return Path(model)
    raise ConfigError("gguf", None, f"name the GGUF file that holds the weights of {model}, for llama.cpp")


def lineup(setting: Setting, networks: Sequence[str], peers: Sequence[str], gguf: str | None = None) -> list[Entry]:
    """In the order in which they take turns. Raises ConfigError where a peer is unknown, missing or cannot take
    part."""
    entries = [ours(setting, network) for network in networks] + [generate(setting)]
    for peer in peers:
        if peer not in PEERS:
            raise ConfigError("peers", peer, f"choose from {', '.join(PEERS)}")
        if setting.device != "cpu":
            raise ConfigError("peers", peer, "it is a CPU build")
        if not installed(peer):
            raise ConfigError("peers", peer, "not installed: make bench-peers")
        entries.append(vllm(setting) if peer == "vllm" else llamacpp(setting, gguf))
    return entries


@contextmanager
def started(entries: Sequence[Entry], logs: Path) -> Iterator[dict[str, Subject]]:
    """One after the other: loading takes the most memory. Raises SubjectFailed."""
    with ExitStack() as exits:
        subjects = {}
        for number, entry in enumerate(entries):
            print(f"loading {entry.name}", file=sys.stderr, flush=True)
            environment = {"PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"} | entry.environment
            subject = Subject(entry.name, entry.command, logs / f"{number}.log", environment)
            subjects[entry.name] = exits.enter_context(subject)
        yield subjects
