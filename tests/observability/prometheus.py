"""promtool and Prometheus themselves: those on the PATH, else from Debian's package, taken without root into the cache
folder: the download is checked by apt as always, and unpacked instead of installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OBSERVABILITY = ROOT / "observability"
RULES = OBSERVABILITY / "rules"
PATIENCE = 300  # seconds for package lists and 30 MB


def program(name: str) -> Path:
    """`promtool` or `prometheus`. Skips the test only where there is neither the program nor apt."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(root, "specdec", "tools", "prometheus")
    if not (folder / name).exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            pytest.skip(f"NOT CHECKED: no {name} on the PATH, and no apt-get to fetch it with")
        _fetch(folder)
    return folder / name


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(program("promtool")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _fetch(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        work = Path(scratch)
        download = ["apt-get", "-q", "download", "prometheus"]
        if subprocess.run(download, cwd=work, capture_output=True, timeout=PATIENCE, check=False).returncode:
            # No lists, or old ones: fresh ones of our own, which needs no root either.
            (work / "lists").mkdir()
            own = ["-o", f"Dir::State::Lists={work}/lists", "-o", f"Dir::Cache={work}/cache"]
            _run(["apt-get", "-q", *own, "update"], work)
            _run(["apt-get", "-q", *own, "download", "prometheus"], work)
        (package,) = work.glob("prometheus_*.deb")
        _run(["dpkg", "-x", package.name, "unpacked"], work)
        with suppress(OSError):  # another process of the same run was first
            (work / "unpacked" / "usr" / "bin").rename(folder)


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
