from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from specdec.edge.cores import usable_cores
from specdec.edge.process import ChildProcess, ProcessFailed
from tests.edge.eventually import eventually

PROGRAMS = {
    "talks_and_fails": "print('first'); print('the disk is full'); raise SystemExit(3)",
    "waits": "import time; print('up', flush=True); time.sleep(60)",
    "ignores_sigterm": (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    ),
    "shows_itself": (
        "import os; print(sorted(os.sched_getaffinity(0)), os.environ['COLOUR'], os.getsid(0) == os.getpid())"
    ),
}


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def child(tmp_path: Path, module: str) -> ChildProcess:
    return ChildProcess(
        module, module, [], log_file=tmp_path / "log", cores=usable_cores()[:1], environment={"COLOUR": "blue"}
    )


async def until_up(log: Path) -> None:
    await eventually(lambda: "up" in log.read_text())


async def test_an_early_end_is_told_with_exit_code_and_last_words(tmp_path: Path) -> None:
    process = child(tmp_path, "talks_and_fails")
    await process.start()
    with pytest.raises(ProcessFailed, match=r"talks_and_fails ended with exit code 3(.|\n)*the disk is full"):
        await process.run_to_its_end()


async def test_a_child_killed_from_outside_is_told_by_the_signals_name(tmp_path: Path) -> None:
    process = child(tmp_path, "waits")
    await process.start()
    await until_up(process.log_file)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(ProcessFailed, match="was killed by SIGKILL"):
        await process.run_to_its_end()


async def test_a_child_has_its_cores_its_environment_and_a_session_of_its_own(tmp_path: Path) -> None:
    process = child(tmp_path, "shows_itself")
    await process.start()
    with pytest.raises(ProcessFailed, match="exit code 0"):
        await process.run_to_its_end()
    assert process.log_file.read_text().split() == [f"[{usable_cores()[0]}]", "blue", "True"]


@pytest.mark.parametrize("module", ["waits", "ignores_sigterm"])
async def test_stop_ends_the_child_even_if_it_will_not_listen(tmp_path: Path, module: str) -> None:
    process = child(tmp_path, module)
    await process.start()
    await until_up(process.log_file)
    await process.stop(grace=0.2 if module == "ignores_sigterm" else 20)
    assert not alive(process.pid)
    await process.stop(grace=1)


async def test_a_cancelled_stop_kills_at_once(tmp_path: Path) -> None:
    process = child(tmp_path, "ignores_sigterm")
    await process.start()
    await until_up(process.log_file)
    stopping = asyncio.create_task(process.stop(grace=60))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not alive(process.pid)


PARENT = """
import asyncio, sys
from pathlib import Path
from specdec.edge.process import ChildProcess

async def main():
    child = ChildProcess(
        "child", "ignores_sigterm", [], log_file=Path(sys.argv[1]), cores=(int(sys.argv[2]),), environment={}
    )
    await child.start()
    print(child.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
async def parent(tmp_path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    command = (sys.executable, "-c", PARENT, str(tmp_path / "log"), str(usable_cores()[0]))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    yield process
    if process.returncode is None:
        process.kill()
        await process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
async def test_a_parent_that_is_killed_leaves_no_child(tmp_path: Path, parent: asyncio.subprocess.Process) -> None:
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    await until_up(tmp_path / "log")
    assert alive(pid)
    parent.kill()
    await parent.wait()
    await eventually(lambda: not alive(pid))


def alive(pid: int) -> bool:
    """A zombie that its reaper has not seen yet is as dead as one it has."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
