from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.subjects.process import Subject, SubjectFailed, descendants

Start = Callable[..., Subject]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def started(fault: str = "") -> Subject:
        command = [sys.executable, "-m", "tests.benchmarks.fake_subject", *([fault] if fault else [])]
        return Subject("fake", command, tmp_path / "log", {"PYTHONPATH": str(Path(__file__).parents[2])})

    return started


def test_a_subject_answers_whatever_it_prints_and_sleeps_between_two_questions(start: Start, tmp_path: Path) -> None:
    with start() as subject:
        for length in (2, 3):
            answer = subject.ask("generate", prompts=[[7] * length], new_tokens=4)
            assert answer == {"seconds": 0.5, "tokens": [[length] * 4]}
            stopped = os.waitid(os.P_PID, subject._process.pid, os.WSTOPPED | os.WNOWAIT)
            assert stopped is not None and stopped.si_status == signal.SIGSTOP
        assert subject.ask("memory")["peak"] >= subject.libraries > 0
    assert "prints where the answers go" in (tmp_path / "log").read_text()
    assert subject._process.returncode == 0


def test_a_question_that_fails_says_why_and_the_next_one_is_answered(start: Start) -> None:
    with start("fails") as subject:
        with pytest.raises(SubjectFailed, match="out of memory"):
            subject.ask("generate", prompts=[[1]], new_tokens=1)
        assert subject.ask("clock")["state"] == "asked"


@pytest.mark.parametrize("question", ["generate", "clock"])
def test_a_subject_that_dies_is_a_failure_not_a_wait(start: Start, question: str) -> None:
    with start("dies") as subject, pytest.raises(SubjectFailed, match="died"):
        subject.ask("generate", prompts=[[1]], new_tokens=1)
        subject.ask(question)


def test_what_killed_it_while_it_loaded_is_in_the_message(start: Start) -> None:
    with pytest.raises(SubjectFailed, match="no such model"):
        start("dies while it loads")


DRIVER = """
import os, signal, sys
from pathlib import Path
from benchmarks.subjects.process import Subject
subject = Subject("fake", [sys.executable, "-m", "tests.benchmarks.fake_subject"], Path(sys.argv[1]), {})
print(subject._process.pid, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_stopped_subject_goes_when_its_driver_is_killed(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment) as driver:
        assert driver.stdin is not None and driver.stdout is not None
        subject = os.pidfd_open(int(driver.stdout.readline()))
        driver.stdin.write("\n")
        driver.stdin.close()
        gone, _, _ = select.select([subject], [], [], 10)
    os.close(subject)
    assert gone


CHURNS = """
import subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
while True:
    threads = [threading.Thread(target=int) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def test_children_are_seen_while_threads_come_and_go() -> None:
    parent = subprocess.Popen([sys.executable, "-c", CHURNS], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert all(descendants(parent.pid) == [child] for _ in range(2_000))
    finally:
        parent.kill()
        parent.communicate()
    assert descendants(parent.pid) == []
