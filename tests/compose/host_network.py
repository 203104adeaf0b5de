"""The host's packet filter, links and forwarding, left as they were found: an engine changes them and does not put them
back when it ends."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("iptables", "ip6tables")
SWITCHES = (
    Path("/proc/sys/net/ipv4/ip_forward"),
    Path("/proc/sys/net/ipv6/conf/all/forwarding"),
    Path("/proc/sys/net/bridge/bridge-nf-call-iptables"),
    Path("/proc/sys/net/bridge/bridge-nf-call-ip6tables"),
)
_CHAIN = re.compile(r":(\S+) (\S+)")


@dataclass(frozen=True, slots=True)
class Table:
    """Of a packet filter. chains: the policy of each, "-" for those that somebody made."""

    chains: dict[str, str]
    rules: tuple[str, ...]

    @property
    def bare(self) -> bool:
        """As good as absent: where a table was never used there is none, and once used it stays."""
        return not self.rules and set(self.chains.values()) <= {"ACCEPT"}


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """filters: program -> table -> what is in it, bare ones left out."""

    filters: dict[str, dict[str, Table]]
    links: frozenset[str]
    switches: dict[Path, str]

    @classmethod
    def found(cls) -> HostNetwork:
        filters = {program: parsed(_run(f"{program}-save")) for program in PROGRAMS}
        links = frozenset(link["ifname"] for link in json.loads(_run("ip", "-json", "link")))
        return cls(filters, links, {file: file.read_text().strip() for file in SWITCHES if file.exists()})

    def restore(self) -> None:
        """Raises RuntimeError where something stays changed."""
        now = HostNetwork.found()
        for program, tables in self.filters.items():
            if tables != now.filters[program]:
                _run(f"{program}-restore", given=restoring(tables, now.filters[program]))
        for link in _made(self, now):
            _run("ip", "link", "delete", link)
        for file, value in self.switches.items():
            if now.switches[file] != value:
                file.write_text(value)
        after = HostNetwork.found()
        if (after.filters, after.links) != (self.filters, self.links):
            raise RuntimeError(f"the host's network is not as it was:\n{self}\n{after}")


@contextmanager
def left_as_found() -> Iterator[None]:
    before = HostNetwork.found()
    try:
        yield
    finally:
        before.restore()


def parsed(saved: str) -> dict[str, Table]:
    """What `iptables-save` printed, without its comments and counters; bare tables left out."""
    tables = dict[str, Table]()
    for block in ("\n" + saved).split("\n*")[1:]:
        name, *lines = block.splitlines()
        chains = {match[1]: match[2] for line in lines if (match := _CHAIN.match(line))}
        table = Table(chains, tuple(line for line in lines if line.startswith("-")))
        if not table.bare:
            tables[name] = table
    return tables


def restoring(then: dict[str, Table], now: dict[str, Table]) -> str:
    """What to tell `iptables-restore` to get from one to the other. A table that was bare gets its policies back and
    nothing else; whatever is not named in a table goes."""
    text = ""
    for name in sorted({*then, *now}):
        if name in then:
            chains, rules = then[name].chains, then[name].rules
        else:
            chains, rules = {chain: "ACCEPT" for chain, policy in now[name].chains.items() if policy != "-"}, ()
        lines = [f"*{name}", *(f":{chain} {policy}" for chain, policy in chains.items()), *rules, "COMMIT"]
        text += "\n".join(lines) + "\n"
    return text


def _made(before: HostNetwork, now: HostNetwork) -> list[str]:
    """Bridges of an engine's that were not there; their ends in containers go with these."""
    return [link for link in sorted(now.links - before.links) if link == "docker0" or link.startswith("br-")]


def _run(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
