from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.bandwidth import bandwidth
from benchmarks.peers import install, installed, requirements
from benchmarks.subjects.lineup import Setting, lineup
from specdec.core.errors import ConfigError

METADATA = """Metadata-Version: 2.4
Name: something
Requires-Dist: regex
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchvision; platform_machine != "riscv64"
Requires-Dist: torchcodec>=0.14
Requires-Dist: torch_like[all]>=1
Requires-Dist: pandas; extra == "bench"
Requires-Dist: scipy; extra == 'bench'

Requires-Dist: the text of the description
"""


def test_requirements_are_those_of_the_header_without_extras_and_without_what_is_not_needed() -> None:
    assert requirements(METADATA) == ["regex", "torch_like[all]>=1"]


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Setting("smollm2", "folder", "bfloat16", "cpu", 1024, 512, 8)


@pytest.mark.parametrize(
    ("device", "peers", "remedy"),
    [
        ("cpu", ["vllm"], "make bench-peers"),
        ("cpu", ["lamacpp"], "choose from"),
        ("cuda", ["vllm"], "CPU build"),
    ],
)
def test_a_peer_that_cannot_take_part_is_refused_before_anything_starts(
    setting: Setting, device: str, peers: list[str], remedy: str
) -> None:
    chosen = Setting(setting.model, setting.folder, setting.dtype, device, 1024, 512, 8)
    with pytest.raises(ConfigError, match=remedy):
        lineup(chosen, ["auto"], peers)


def test_each_network_and_transformers_take_turns_in_order(setting: Setting) -> None:
    entries = lineup(setting, ["native", "lean"], [])
    assert [entry.name for entry in entries] == ["ours, native", "ours, lean", "transformers"]
    assert [entry.is_ours for entry in entries] == [True, True, False]


def test_an_interrupted_installation_is_not_taken_for_a_whole_one(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def stops_in_the_middle(folder: Path) -> None:
        calls.append([file.name for file in folder.iterdir()] if folder.exists() else [])
        folder.mkdir(parents=True)
        (folder / "half").touch()
        if len(calls) == 1:
            raise ConfigError("peer", "vllm", "interrupted")

    monkeypatch.setitem(__import__("benchmarks.peers").peers.INSTALLERS, "vllm", stops_in_the_middle)
    with pytest.raises(ConfigError, match="interrupted"):
        install("vllm")
    assert not installed("vllm")
    install("vllm")
    install("vllm")
    assert installed("vllm")
    assert calls == [[], []]


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_probe_reads_at_a_rate_that_memory_can_have(setting: Setting) -> None:
    rates = bandwidth(mebibytes=64, repeats=1)
    assert list(rates) == [1, 2, 4, 8, 16]
    assert all(1e7 < rate < 1e13 for rate in rates.values())
