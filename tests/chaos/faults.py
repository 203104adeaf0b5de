"""What can go wrong, each as it happens to a cluster at work. A fault heals itself before it returns, but for processes
that take a while to come back: those are awaited by `Scene.healthy`. It returns False where it found nothing to do."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence

from tests.chaos.liar import DRAFTER_LIES, VERIFIER_LIES, Lie
from tests.chaos.scene import Member, Scene

Fault = Callable[[Scene, Member], Awaitable[bool | None]]  # the coordinator that serves the generation

FROZEN = 3.0  # seconds
LIED = 5.0  # seconds in which one should have been told


async def _one_of(scene: Scene, members: Sequence[Member]) -> Member:
    """The one that serves, if any does at this moment."""
    return (await scene.serving(members) or members)[0]


def _ended(role: str, number: signal.Signals) -> Fault:
    async def fault(scene: Scene, coordinator: Member) -> None:
        member = coordinator if role == "coordinators" else await _one_of(scene, getattr(scene, role))
        member.signal(number)
        await member.start_again()

    return fault


def _frozen(role: str) -> Fault:
    async def fault(scene: Scene, coordinator: Member) -> None:
        member = await _one_of(scene, getattr(scene, role))
        member.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(FROZEN)
        finally:
            member.signal(signal.SIGCONT)

    return fault


def _lying(role: str, lie: Lie) -> Fault:
    """All of the pool are found behind liars, until the first lie is told."""

    async def fault(scene: Scene, coordinator: Member) -> bool:
        clock = asyncio.get_running_loop().time
        scene.deceit.begin(lie)
        until = clock() + LIED
        _lead(scene, role, lambda member: member.liar)
        while not scene.deceit.told and clock() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        scene.deceit.lie = None
        _lead(scene, role, lambda member: member.port)
        return bool(scene.deceit.told)

    return fault


def _lead(scene: Scene, role: str, where: Callable[[Member], int]) -> None:
    for member in getattr(scene, role):
        member.proxy.behind = where(member)
        member.proxy.cut()


async def _redis_fails_over(scene: Scene, coordinator: Member) -> None:
    """The last writes are lost with it."""
    await scene.fail_over(0.05)


async def _verifier_cut(scene: Scene, coordinator: Member) -> None:
    member = await _one_of(scene, scene.verifiers)
    assert member.proxy is not None
    member.proxy.cut()


async def _verifiers_slow(scene: Scene, coordinator: Member) -> None:
    proxies = [m.proxy for m in scene.verifiers if m.proxy is not None]
    for proxy in proxies:
        proxy.delay = 0.05
    await asyncio.sleep(1.0)
    for proxy in proxies:
        proxy.delay = 0.0


async def _redis_cut(scene: Scene, coordinator: Member) -> None:
    scene.redis_proxy.cut()


async def _redis_slow(scene: Scene, coordinator: Member) -> None:
    scene.redis_proxy.delay = 0.1
    await asyncio.sleep(1.0)
    scene.redis_proxy.delay = 0.0


async def _redis_restarted(scene: Scene, coordinator: Member) -> None:
    """Empty: the owner of a session that runs writes its record again."""
    scene.redis.kill()
    await asyncio.sleep(0.2)
    await asyncio.to_thread(scene.redis.start)


async def _redis_frozen(scene: Scene, coordinator: Member) -> None:
    scene.redis.pause()
    await asyncio.sleep(1.0)
    scene.redis.resume()


async def _redis_full(scene: Scene, coordinator: Member) -> None:
    """Refuses every write for a while."""
    await asyncio.to_thread(scene.redis.command, "CONFIG", "SET", "maxmemory", "1mb")
    await asyncio.sleep(0.5)
    await asyncio.to_thread(scene.redis.command, "CONFIG", "SET", "maxmemory", "0")


async def _blocks_evicted(scene: Scene, coordinator: Member) -> None:
    """All KV, and then the verifier that would need it is left."""

    def evict() -> None:
        for key in list(scene.redis.admin.scan_iter("specdec:kv:*")):
            scene.redis.admin.delete(key)

    await asyncio.to_thread(evict)
    await _verifier_cut(scene, coordinator)


async def _blocks_damaged(scene: Scene, coordinator: Member) -> None:
    """Every block loses its last byte and has another bit flipped, and then they are needed."""

    def damage() -> None:
        for key in list(scene.redis.admin.scan_iter("specdec:kv:*")):
            scene.redis.command("SETRANGE", key, 100, "\\x00lie")

    await asyncio.to_thread(damage)
    await _verifier_cut(scene, coordinator)


FAULTS: dict[str, Fault] = {
    "verifier: kill -9": _ended("verifiers", signal.SIGKILL),
    "drafter: kill -9": _ended("drafters", signal.SIGKILL),
    "coordinator: kill -9": _ended("coordinators", signal.SIGKILL),
    "verifier: SIGTERM": _ended("verifiers", signal.SIGTERM),
    "drafter: SIGTERM": _ended("drafters", signal.SIGTERM),
    "coordinator: SIGTERM": _ended("coordinators", signal.SIGTERM),
    "verifier: SIGSTOP": _frozen("verifiers"),
    "drafter: SIGSTOP": _frozen("drafters"),
    "verifier: connections cut": _verifier_cut,
    "verifiers: slow network": _verifiers_slow,
    "redis: connections cut": _redis_cut,
    "redis: slow network": _redis_slow,
    "redis: failover": _redis_fails_over,
    "redis: killed and empty again": _redis_restarted,
    "redis: SIGSTOP": _redis_frozen,
    "redis: memory full": _redis_full,
    "redis: KV evicted": _blocks_evicted,
    "redis: KV damaged": _blocks_damaged,
    **{f"verifier lies: {name}": _lying("verifiers", lie) for name, lie in VERIFIER_LIES.items()},
    **{f"drafter lies: {name}": _lying("drafters", lie) for name, lie in DRAFTER_LIES.items()},
}
# One of each sort for which no model has to be loaded again: those have tests of their own (tests/end_to_end).
SHORT = (
    "coordinator: kill -9",
    "verifier: SIGSTOP",
    "verifier: connections cut",
    "redis: connections cut",
    "redis: failover",
    "drafter lies: draws of another law",  # in this place it meets a request whose drafts have laws
    "redis: killed and empty again",
    "redis: memory full",
    "redis: KV damaged",
    "verifier lies: impossible numbers",
)
