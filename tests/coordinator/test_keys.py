"""A key file holds hashes only; what it says wrongly is refused by its line."""

from __future__ import annotations

import hmac
from pathlib import Path
from unittest.mock import patch

import pytest

from coordinator.keys import ANYONE, Caller, Keys
from specdec.core.errors import ConfigError, Unauthenticated
from specdec.edge.cli import main


def made(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """(key, line) of `specdec key`."""
    assert main(["key", *arguments]) == 0
    shown = capsys.readouterr()
    return shown.err.split()[-1], shown.out


@pytest.fixture
def two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, str, str]:
    (one, first), (other, second) = made(capsys, "one"), made(capsys, "two", "--max-streams", "3")
    file = tmp_path / "keys"
    file.write_text(f"# callers\n\n{first}{second.strip()}  tokens_per_minute=500 # a comment\n")
    return file, one, other


def test_a_key_that_was_made_is_known_by_its_hash_alone(two: tuple[Path, str, str]) -> None:
    file, one, other = two
    keys = Keys.read(str(file))
    assert keys.caller(f"Bearer {one}") == Caller("one")
    assert keys.caller(f"bearer  {other} ") == Caller("two", max_streams=3, tokens_per_minute=500)
    assert one not in file.read_text() and len(one) > 40


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer ", "Bearer wrong", "Basic {key}", "{key}", "Bearer {key}x"]
)
def test_whoever_shows_no_known_key_is_refused(two: tuple[Path, str, str], authorization: str | None) -> None:
    file, one, _ = two
    with pytest.raises(Unauthenticated) as refused:
        Keys.read(str(file)).caller(authorization.format(key=one) if authorization else authorization)
    assert one not in str(refused.value)


def test_every_hash_is_compared_in_constant_time_whichever_it_is(two: tuple[Path, str, str]) -> None:
    file, one, other = two
    keys = Keys.read(str(file))
    for key in (one, other):
        with patch.object(hmac, "compare_digest", wraps=hmac.compare_digest) as compared:
            keys.caller(f"Bearer {key}")
        assert compared.call_count == 2


def test_without_a_file_anyone_may_call_and_all_share() -> None:
    assert Keys.read(None).caller(None) == ANYONE and not ANYONE.cache_salt


def test_callers_have_salts_of_their_own_that_do_not_change() -> None:
    salts = [Caller(name).cache_salt for name in ("one", "two", "one")]
    assert salts[0] == salts[2] != salts[1] and len(salts[0]) == 16


@pytest.mark.parametrize(
    "content",
    [
        "", "# nothing", "name", "name sha256:abc", "name md5:" + 64 * "0", "na/me sha256:" + 64 * "0",
        "name sha256:" + 64 * "0" + " max_streams=0", "name sha256:" + 64 * "0" + " unknown=3",
        "a sha256:" + 64 * "0" + "\nb sha256:" + 64 * "0", "a sha256:" + 64 * "0" + "\na sha256:" + 64 * "1",
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_meant_stops_the_start(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(ConfigError):
        Keys.read(str(file))


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Keys.read(str(tmp_path / "missing"))


@pytest.mark.parametrize("arguments", [["a b"], ["x", "--max-streams", "0"]])
def test_the_command_makes_no_key_that_the_file_would_not_take(arguments: list[str]) -> None:
    assert main(["key", *arguments]) == 2
