"""The store's operations as Redis scripts: each one is atomic, whichever of its keys are there.

A session is three keys of one hash slot: `meta`, a hash (epoch, written, running, length, finish, held, body,
nonce); `tokens`, a string of uint32; `owner`, there while an owner's lease lives. Every script that writes
sets every TTL. A record is there when both its keys are and agree on the length: half a record is none.

ARGV starts with the TTL and the lease in ms where the script writes. A reply is {status, number or record}.
Only commands of Redis 6.2."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1

# `write` hands the server's refusal (READONLY, OOM, NOREPLICAS) back under its own error code, before which
# Redis 6.2 puts the script's line. Only the first write of a script can be refused.
_PRELUDE = """
local meta, tokens, owner = KEYS[1], KEYS[2], KEYS[3]
local refused
local function write(...)
  if refused then return end
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    refused = {err = string.match(reply.err, '^@user_script: %d+: %-(.*)') or reply.err}
  end
end
local function field(name) return redis.call('HGET', meta, name) end
local function held()
  local length = tonumber(field('length'))
  if length and redis.call('STRLEN', tokens) == 4 * length then return length end
end
local function refresh(running)
  write('PEXPIRE', meta, ARGV[1])
  write('PEXPIRE', tokens, ARGV[1])
  if running then write('SET', owner, field('epoch'), 'PX', ARGV[2]) else write('DEL', owner) end
end
local function reply(status, value) return refused or {status, value} end
local function record() return {redis.call('HGETALL', meta), redis.call('GET', tokens)} end
local function put(first)
  write('SET', tokens, ARGV[first + 6])
  write('HSET', meta, 'epoch', ARGV[first], 'written', ARGV[first], 'running', ARGV[first + 1], 'length',
        ARGV[first + 2], 'finish', ARGV[first + 3], 'held', ARGV[first + 4], 'body', ARGV[first + 5])
  refresh(ARGV[first + 1] == '1')
end
"""


@dataclass(frozen=True)
class Script:
    """writes: whether a reply may wait for replicas."""

    body: str
    writes: bool = True

    @cached_property
    def text(self) -> str:
        return _PRELUDE + self.body

    @cached_property
    def sha(self) -> str:
        return sha1(self.text.encode(), usedforsecurity=False).hexdigest()


# The nonce makes a create or a take that is repeated after an ambiguous failure find its own doing.
CREATE = Script("""
if held() then
  if field('nonce') == ARGV[3] then return reply('OK', 0) end
  return reply('EXISTS', 0)
end
put(4)
write('HSET', meta, 'nonce', ARGV[3])
return reply('OK', 0)
""")

LOAD = Script(
    """
if not held() then return reply('MISSING', 0) end
return reply('OK', record())
""",
    writes=False,
)

# The new epoch is the server's clock in us, where that is higher: two owners whose takes a failover kept
# apart, each on the same older epoch, still get different ones, and the later one wins.
TAKE = Script("""
if not held() then return reply('MISSING', 0) end
if field('nonce') ~= ARGV[3] then
  if ARGV[4] == '0' and redis.call('EXISTS', owner) == 1 then return reply('BUSY', 0) end
  local now = redis.call('TIME')
  local epoch = math.max(field('epoch') + 1, now[1] * 1000000 + now[2])
  write('HSET', meta, 'epoch', string.format('%.0f', epoch), 'running', 1, 'nonce', ARGV[3])
end
refresh(field('running') == '1')
return reply('OK', record())
""")

APPEND = Script("""
local length, epoch, expected, new, finish = held(), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]
if not length then return reply('BEHIND', 0) end
local stored = tonumber(field('epoch'))
if stored > epoch then return reply('STALE', field('epoch')) end
if stored < epoch or length < expected then return reply('BEHIND', length) end
local running, total = field('running') == '1', expected + #new / 4
local same = length == total and redis.call('GETRANGE', tokens, 4 * expected, -1) == new
if not (same and field('finish') == finish) then
  if length ~= expected or not running then return reply('CONFLICT', length) end
  write('APPEND', tokens, new)
end
running = running and finish == ''
write('HSET', meta, 'written', ARGV[3], 'length', total, 'finish', finish, 'held', ARGV[7],
      'running', running and 1 or 0)
refresh(running)
return reply('OK', 0)
""")

REPLACE = Script("""
local length, epoch = held(), tonumber(ARGV[3])
if length then
  local stored = tonumber(field('epoch'))
  if stored > epoch then return reply('STALE', field('epoch')) end
  local shorter = tonumber(field('written')) == epoch and tonumber(ARGV[5]) < length
  local ended = stored == epoch and ARGV[4] == '1' and field('running') == '0'
  if shorter or ended then return reply('CONFLICT', length) end
end
put(3)
return reply('OK', 0)
""")

RELEASE = Script("""
if held() and tonumber(field('epoch')) == tonumber(ARGV[3]) then
  write('HSET', meta, 'running', 0)
  refresh(false)
end
return reply('OK', 0)
""")

HEARTBEAT = Script("""
local length, epoch = held(), tonumber(ARGV[3])
if not length then return reply('BEHIND', 0) end
local stored = tonumber(field('epoch'))
if stored > epoch then return reply('STALE', field('epoch')) end
if stored < epoch then return reply('BEHIND', length) end
refresh(field('running') == '1')
return reply('OK', 0)
""")
