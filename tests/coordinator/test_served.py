"""What the drafters of the pool can do, as every cycle of every session asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coordinator.replica import Replica
from coordinator.served import UNLIMITED, ServedDrafter, ServedDrafters, drafters_on_a_targets_cpu
from specdec.core.errors import ReplicaFault
from tests.fakes.replicas import ScriptedDrafter
from tests.fakes.stack import scripted_drafter, scripted_target, stack, until
from tests.fakes.tables import counter, letters_folder

SIZE = 1000
COUNTER = counter(SIZE)


def drafter(folder: Path, name: str, *drafters: str, **info: Any) -> ScriptedDrafter:
    return scripted_drafter(COUNTER, folder, replica_id=name, info_overrides={"drafters": drafters, **info})


async def test_who_is_set_aside_serves_nothing(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", SIZE)
    drafters = [drafter(folder, "first", "lm", "suffix"), drafter(folder, "second", "lm", "eagle")]
    async with stack(folder, [scripted_target(COUNTER, folder)], drafters) as s:
        await until(lambda: len(s.drafters.ready()) == 2)
        served = ServedDrafters(s.drafters, s.targets)
        assert set(served.now()) == {"lm", "suffix", "eagle"}
        gone = next(replica for replica in s.drafters.ready() if "eagle" in replica.drafters)
        s.drafters.report(gone, ReplicaFault("it said nothing"))
        assert set(served.now()) == {"lm", "suffix"}


async def test_it_is_worked_out_once_for_all_cycles_until_somebody_tells_of_himself(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", SIZE)
    async with stack(folder, [scripted_target(COUNTER, folder)], [drafter(folder, "one", "lm")]) as s:
        await until(lambda: len(s.drafters.ready()) == 1)
        served, replica = ServedDrafters(s.drafters, s.targets), s.drafters.ready()[0]
        before = served.now()
        assert served.now() is before
        await s.drafters._refresh_one(replica)
        assert served.now() is not before
        assert served.now() == before


async def test_the_widest_window_and_the_largest_answer_bound_a_drafter(tmp_path: Path) -> None:
    folder = letters_folder(tmp_path / "m", SIZE)
    small, large = {"max_nodes": 4, "max_context": 100}, {"max_nodes": 9, "max_context": 300}
    drafters = [drafter(folder, "small", "lm", **small), drafter(folder, "large", "lm", **large)]
    async with stack(folder, [scripted_target(COUNTER, folder)], drafters) as s:
        await until(lambda: len(s.drafters.ready()) == 2)
        infos = [replica.info for replica in s.drafters.ready()]
    lm = ServedDrafter.of("lm", infos, shares=False)
    assert (lm.nodes, lm.window, lm.tree, lm.blind) == (9, 300, False, True)
    assert ServedDrafter.of("lm", infos[:1], shares=False).window < UNLIMITED


async def test_a_drafter_on_a_verifiers_processor_is_told_from_one_elsewhere(tmp_path: Path) -> None:
    """By address and device: a GPU in the same machine takes nothing from its processor."""
    folder = letters_folder(tmp_path / "m", SIZE)
    on_cpu, on_gpu = {"config": {"device": "cpu"}}, {"config": {"device": "cuda"}}
    drafters = [drafter(folder, name, name, **device) for name, device in (("near", on_cpu), ("gpu", on_gpu))]
    async with stack(folder, [scripted_target(COUNTER, folder, info_overrides=on_cpu)], drafters) as s:
        await until(lambda: len(s.drafters.ready()) == 2)
        ready = s.drafters.ready()
        assert drafters_on_a_targets_cpu(ready, s.targets.ready()) == {"near"}
        assert not drafters_on_a_targets_cpu(ready, [replica for replica in ready if "gpu" in replica.drafters])
        elsewhere = Replica("192.0.2.1:1", "target")
        elsewhere._info = s.targets.ready()[0].info
        assert not drafters_on_a_targets_cpu(ready, [elsewhere])
        await elsewhere.close()
