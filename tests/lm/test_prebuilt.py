"""Libraries made beforehand: the best that a processor can run is loaded, and none that it cannot."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdec.lm.native import library as native_library
from specdec.lm.native import prebuilt as prebuilt_module
from specdec.lm.native.library import library
from specdec.lm.native.prebuilt import CPU_INFO, KINDS, build, cpu_features, prebuilt
from specdec.lm.networks import Unsupported

MINE = [kind for kind in KINDS if kind.machine == platform.machine()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of libraries, empty; this machine has no compiler."""
    monkeypatch.setattr(prebuilt_module, "FOLDER", tmp_path)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    return tmp_path


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    native_library.library.cache_clear()
    yield
    native_library.library.cache_clear()


def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, *features: str) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nflags\t\t: {' '.join(features)}\n\nprocessor\t: 1\nflags\t\t: other\n")
    monkeypatch.setattr(prebuilt_module, "CPU_INFO", file)
    monkeypatch.setattr(platform, "machine", lambda: machine)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_processor_gets_the_best_it_can_run(
    kind: prebuilt_module.Kind, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in KINDS:
        (folder / each.file).touch()
    pretend(monkeypatch, folder, kind.machine, "fpu", *kind.needs)
    assert prebuilt() == folder / kind.file


def test_a_processor_that_lacks_something_gets_the_next_best(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in KINDS:
        (folder / each.file).touch()
    best, *_ = [kind for kind in KINDS if kind.machine == "x86_64"]
    pretend(monkeypatch, folder, "x86_64", *(best.needs - {"avx512vl"}))
    found = prebuilt()
    assert found is not None and found.name.startswith("avx2-")
    pretend(monkeypatch, folder, "x86_64", "fpu", "sse2")
    assert prebuilt() is None


def test_a_library_of_other_sources_is_not_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kind, *_) = MINE
    (folder / f"{kind.name}-{'0' * 24}.so").touch()
    pretend(monkeypatch, folder, kind.machine, *kind.needs)
    assert prebuilt() is None
    with pytest.raises(Unsupported, match="no C compiler"):
        library()


def test_without_a_compiler_what_was_made_for_this_processor_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = cpu_features(CPU_INFO.read_text())
    kind = next((kind for kind in MINE if kind.needs <= features), None)
    if kind is None:
        pytest.skip("nothing is made beforehand for this processor")
    monkeypatch.setattr(prebuilt_module, "FOLDER", tmp_path)
    monkeypatch.setattr(prebuilt_module, "KINDS", (kind,))
    try:
        assert build() == [tmp_path / kind.file]
    except Unsupported as reason:
        pytest.skip(f"nothing to test: {reason}")
    tiles = library().specdec_tiles()  # as compiled for this very processor
    native_library.library.cache_clear()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert Path(library()._name) == tmp_path / kind.file
    assert library().specdec_tiles() == tiles
