"""The scripts that run inside Redis, each of them as one step that nobody can come between.

All keys of one deployment carry its name in braces, so a cluster keeps them on one node.
"""

from __future__ import annotations

PUBLISH = """
-- KEYS: parameters, publication. ARGV: document, version, channel, token.
-- Returns {1, version} when the document is in force now, else {0, version in force}.
local version = 0
local held = redis.call('GET', KEYS[1])
if held then
  local readable, document = pcall(cjson.decode, held)
  if readable and type(document) == 'table' and type(document['version']) == 'number' then
    version = document['version']
  end
end
if version >= tonumber(ARGV[2]) then
  -- A connection that broke before the answer came: the same publication, sent a second time.
  if redis.call('GET', KEYS[2]) == ARGV[4] then return {1, version} end
  return {0, version}
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[4], 'EX', 60)
redis.call('PUBLISH', ARGV[3], ARGV[2])
return {1, tonumber(ARGV[2])}
"""

OFFER = """
-- KEYS: parameters, candidate. ARGV: candidate, version, channel.
-- As PUBLISH, for a candidate: it must be newer than what is in force.
local version = 0
local held = redis.call('GET', KEYS[1])
if held then
  local readable, document = pcall(cjson.decode, held)
  if readable and type(document) == 'table' and type(document['version']) == 'number' then
    version = document['version']
  end
end
if version >= tonumber(ARGV[2]) then return {0, version} end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('PUBLISH', ARGV[3], ARGV[2])
return {1, tonumber(ARGV[2])}
"""

REPORT = """
-- KEYS: applied. ARGV: replica, report (a JSON object), milliseconds to live.
-- Redis's own clock decides: those of the pods may differ by an hour.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local expires = string.format('%.3f', (now + tonumber(ARGV[3])) / 1000)
local report = string.sub(ARGV[2], 1, -2) .. ',"expires_at":' .. expires .. '}'
redis.call('HSET', KEYS[1], ARGV[1], report)
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return now
"""
