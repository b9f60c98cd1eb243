-- All shared rules of one request in one step: every claim is looked at, then all are charged or none.
--
-- The server's clock is the only clock, in microseconds. Nanoseconds since 1970 do not fit the 53 bits of a number here, so a moment
-- is a pair: whole microseconds, and the rest in parts of 1/(1000 * per) of one, where a rate comes back `per` times in so many
-- nanoseconds. Pairs are only added, subtracted and compared, so nothing is ever rounded.
--
-- KEYS[i] and ARGV[i] are a claim. The answer is { seconds, microseconds, outcome, state 1, state 2, ... }: the time of the decision,
-- 1 when the request goes on, 0 when it does not, -i when the i-th value is not ours (then nothing was done), and
-- the states as they were found, from which the caller knows every figure.
local now = time[1] * 1000000 + time[2]

-- The year 2255. Later than that is never.
local NEVER = 9000000000000000
-- How long a value outlives what it has to say.
local KEEP_MS = 1000
local CLAIM = '<c1BBBBdddddddddddd'
local HEAD = '<c2dddd'
local HEAD_LENGTH = 34
-- The longest log, and the most that are at work.
local LOG_MAX = 1024

local DECIDE, CHARGE, REFUND = 0, 1, 2
local ADMIT, PASS, REFUSE = 0, 1, 2
local NOW, FROM, NO_ROOM = 0, 1, 2

local function plus(us, sub, more, more_sub, parts)
  us, sub = us + more, sub + more_sub
  if sub >= parts then us, sub = us + 1, sub - parts end
  if us >= NEVER then return NEVER, 0 end
  return us, sub
end

local function minus(us, sub, less, less_sub, parts)
  if us < less or (us == less and sub <= less_sub) then return 0, 0 end
  us, sub = us - less, sub - less_sub
  if sub < 0 then us, sub = us - 1, sub + parts end
  return us, sub
end

local function whole(number)
  return number >= 0 and number <= NEVER and number % 1 == 0
end

local function divide_up(number, by)
  local rest = (number + by - 1) % by
  return (number + by - 1 - rest) / by
end

-- A log is a string of numbers, oldest first: of moments for a window, of requests and the end of their lives for those at work.
-- It is never taken apart as a whole, since it is long and every request would pay for that.
local function log_width(kind)
  return kind == 'w' and 8 or 16
end

-- The moment of an entry of a log.
local function entry(claim, index)
  local width = log_width(claim.kind)
  return (struct.unpack('<d', claim.log, index * width - 7))
end

local function entries(claim)
  return #claim.log / log_width(claim.kind)
end

-- Drops entries whose moment, and `life` more, has passed.
local function slide(claim, life)
  local low, high = 0, entries(claim)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if now >= entry(claim, middle + 1) + life then low = middle + 1 else high = middle end
  end
  if low > 0 then claim.log = string.sub(claim.log, low * log_width(claim.kind) + 1) end
end

local function read_log(claim, value)
  local log = string.sub(value, HEAD_LENGTH + 1)
  local count = #log / log_width(claim.kind)
  if count % 1 ~= 0 or count > LOG_MAX then return false end
  claim.log = log
  return count == 0 or (whole(entry(claim, 1)) and whole(entry(claim, count)))
end

-- The clock was set back since: every moment goes back with it, so that nobody waits for the step.
local function shift(claim, back)
  claim.shifted = true
  claim.blocked = math.max(claim.blocked - back, 0)
  if not claim.log then
    claim.x = math.max(claim.x - back, 0)
    return
  end
  local width, moved = log_width(claim.kind), {}
  for i = 1, entries(claim) do
    local kept = string.sub(claim.log, (i - 1) * width + 1, i * width - 8)
    moved[i] = kept .. struct.pack('<d', math.max(entry(claim, i) - back, 0))
  end
  claim.log = table.concat(moved)
end

-- Fills in the claim's state; false when the value is not ours.
local function read(claim, value)
  local kind = claim.kind
  local logs = kind == 'w' or kind == 'f'
  claim.blocked, claim.blocked_ns, claim.level = 0, 0, 0
  claim.x, claim.y = 0, 0
  if not value then
    if logs then claim.log = '' end
    return true
  end
  if type(value) ~= 'string' or #value < HEAD_LENGTH then return false end
  local tag, at, blocked, blocked_ns, level = struct.unpack(HEAD, value)
  if tag ~= 't' .. kind then return false end
  if not (whole(at) and whole(blocked) and whole(blocked_ns) and blocked_ns < 1000 and whole(level) and level < 256) then
    return false
  end
  if logs then
    if not read_log(claim, value) then return false end
  else
    if #value ~= HEAD_LENGTH + 16 then return false end
    local x, y = struct.unpack('<dd', value, HEAD_LENGTH + 1)
    if not (whole(x) and whole(y)) then return false end
    if y >= ((kind == 'b') and claim.b or 1000 * claim.a) then return false end
    claim.x, claim.y = x, y
  end
  claim.blocked, claim.blocked_ns, claim.level = blocked, blocked_ns, level
  if at > now then shift(claim, at - now) end
  return true
end

local function pack(claim)
  local head = struct.pack(HEAD, 't' .. claim.kind, now, claim.blocked, claim.blocked_ns, claim.level)
  return head .. (claim.log or struct.pack('<dd', claim.x, claim.y))
end

-- From when on the state says nothing any more.
local function clear_at(claim)
  local kind, clear = claim.kind, claim.x
  if claim.log then
    local count = entries(claim)
    if count > 0 then clear = entry(claim, count) + (kind == 'w' and claim.c or 0) end
  elseif kind ~= 'b' and claim.y > 0 then
    clear = clear + 1
  end
  if claim.levels == 0 then return clear end
  return math.max(clear, claim.blocked + 1 + claim.level * claim.release)
end

local function write(key, claim)
  local left = clear_at(claim) - now
  if left > 0 then
    redis.call('SET', key, pack(claim), 'PX', math.ceil(left / 1000) + KEEP_MS)
  elseif claim.found then
    redis.call('DEL', key)
  end
end

-- Drips still to come, and what is in the bucket.
local function fill(claim)
  local drips = claim.x > now and divide_up(claim.x - now, claim.c) or 0
  return drips, math.max(drips * claim.b - claim.y, 0)
end

-- Writes a count into a bucket that was going to be empty at `empty`, after `drips` drips.
local function pour(claim, count, empty, drips)
  local drips_new = divide_up(count, claim.b)
  claim.x = math.min(math.max(empty + (drips_new - drips) * claim.c, 0), NEVER)
  claim.y = drips_new * claim.b - count
end

local function room_in_window(claim, most)
  if claim.count > most then return NO_ROOM end
  local over = entries(claim) + claim.count - most
  if over <= 0 then return NOW end
  return FROM, entry(claim, over) + claim.c, 0
end

-- The request that the claim names is not at work any more.
local function leave(claim)
  local name, from = struct.pack('<d', claim.b), 1
  while true do
    local at = string.find(claim.log, name, from, true)
    if not at then return end
    if at % 16 == 1 then
      claim.log = string.sub(claim.log, 1, at - 1) .. string.sub(claim.log, at + 16)
      return
    end
    from = at + 1
  end
end

-- The request that the claim names is at work, as of now. The latest is last, so what is over is in front.
local function work(claim)
  leave(claim)
  if claim.count > 0 and entries(claim) < LOG_MAX then
    claim.log = claim.log .. struct.pack('<dd', claim.b, now + claim.c)
  end
end

-- NOW, FROM and since when, or NO_ROOM. Changes nothing that is kept.
local function room(claim)
  local kind = claim.kind
  if kind == 'r' or kind == 'c' then
    local parts = 1000 * claim.a
    local us, sub = claim.x, claim.y
    if kind == 'r' then
      if claim.count > claim.f then return NO_ROOM end
      if us < now then us, sub = now, 0 end
      us, sub = plus(us, sub, claim.d, claim.e, parts)
    end
    local most, most_sub = plus(now, 0, claim.b, claim.c, parts)
    if us < most or (us == most and sub <= most_sub) then return NOW end
    return FROM, minus(us, sub, claim.b, claim.c, parts)
  elseif kind == 'b' then
    if claim.count > claim.a then return NO_ROOM end
    local drips, count = fill(claim)
    local over = count + claim.count - claim.a
    if over <= 0 then return NOW end
    return FROM, claim.x - math.max(drips - divide_up(over, claim.b), 0) * claim.c, 0
  elseif kind == 'w' then
    slide(claim, claim.c)
    return room_in_window(claim, claim.a)
  end
  -- Not those whose gate has been silent about them for too long.
  slide(claim, 0)
  return entries(claim) < claim.a and NOW or NO_ROOM
end

local function room_under_ceiling(claim)
  if claim.kind == 'w' and claim.b > 0 then return room_in_window(claim, claim.b) end
  return NOW
end

-- The moment in whole nanoseconds, rounded up.
local function nanos_up(claim, us, sub)
  if sub == 0 then return us, 0 end
  local ns = divide_up(sub, claim.a)
  if ns == 1000 then return us + 1, 0 end
  return us, ns
end

local function check(claim)
  local found, us, sub = room(claim)
  local effective = found
  if claim.warm == 1 and found ~= NOW then
    effective, us, sub = room_under_ceiling(claim)
  end
  local refused_from
  if effective == NOW then
    claim.verdict = ADMIT
    if found ~= NOW and claim.kind ~= 'w' and claim.kind ~= 'f' then claim.verdict = PASS end
  elseif effective == NO_ROOM then
    claim.verdict = REFUSE
  else
    local parts = (claim.kind == 'r' or claim.kind == 'c') and 1000 * claim.a or 1000
    local wait, wait_sub = minus(us, sub, now, 0, parts)
    if claim.warm == 0 and (wait < claim.hold or (wait == claim.hold and wait_sub <= claim.hold_sub)) then
      claim.verdict = ADMIT
    else
      claim.verdict, refused_from = REFUSE, true
    end
  end
  if claim.levels == 0 then return end
  if now < claim.blocked or (now == claim.blocked and claim.blocked_ns > 0) then
    claim.verdict = REFUSE
  elseif refused_from and claim.count > 0 then
    -- Calm is counted in whole microseconds: a block that ends within one ends with the next.
    local calm = now - claim.blocked - (claim.blocked_ns > 0 and 1 or 0)
    local level = claim.level - (calm - calm % claim.release) / claim.release
    level = math.min(math.max(level, 0) + 1, claim.levels)
    local until_us, until_ns = now + math.min(claim.backoff * 2 ^ math.min(level - 1, 63), claim.backoff_max), 0
    local from_us, from_ns = nanos_up(claim, us, sub)
    if from_us > until_us or (from_us == until_us and from_ns > until_ns) then until_us, until_ns = from_us, from_ns end
    claim.penalty = { until_us, until_ns, level }
  end
end

local function charge(claim)
  local kind = claim.kind
  if kind == 'r' or kind == 'c' then
    local us, sub = claim.x, claim.y
    if us < now then us, sub = now, 0 end
    claim.x, claim.y = plus(us, sub, claim.d, claim.e, 1000 * claim.a)
  elseif kind == 'b' then
    local drips, count = fill(claim)
    -- The period of an empty bucket starts with the first request that is put into it.
    pour(claim, count + claim.count, drips == 0 and now or claim.x, drips)
  elseif kind == 'w' then
    slide(claim, claim.c)
    local count, most = entries(claim), math.max(claim.a, claim.b)
    local newest = count > 0 and math.max(now, entry(claim, count)) or now
    local more = math.min(claim.count, most)
    local over = math.max(count + more - most, 0)
    claim.log = string.sub(claim.log, over * 8 + 1) .. string.rep(struct.pack('<d', newest), more)
  else
    work(claim)
  end
end

local function refund(claim)
  local kind = claim.kind
  if kind == 'r' or kind == 'c' then
    claim.x, claim.y = minus(claim.x, claim.y, claim.d, claim.e, 1000 * claim.a)
  elseif kind == 'b' then
    local drips, count = fill(claim)
    pour(claim, math.max(count - claim.count, 0), claim.x, drips)
  elseif kind == 'w' then
    claim.log = string.sub(claim.log, 1, math.max(entries(claim) - claim.count, 0) * 8)
  else
    leave(claim)
  end
end

local answer = { time[1], time[2], 1 }
local claims = {}
local refused = false
for i = 1, #KEYS do
  local claim = {}
  claim.kind, claim.op, claim.enforce, claim.warm, claim.levels, claim.count, claim.hold, claim.hold_sub,
    claim.backoff, claim.backoff_max, claim.release, claim.a, claim.b, claim.c, claim.d, claim.e, claim.f =
    struct.unpack(CLAIM, ARGV[i])
  local value = redis.pcall('GET', KEYS[i])
  if not read(claim, value) then return { time[1], time[2], -i } end
  claim.found = value
  answer[i + 3] = claim.shifted and pack(claim) or value
  if claim.op == DECIDE then
    check(claim)
    refused = refused or (claim.verdict == REFUSE and claim.enforce == 1)
  end
  claims[i] = claim
end
if refused then answer[3] = 0 end
for i = 1, #KEYS do
  local claim = claims[i]
  if claim.op == CHARGE then
    charge(claim)
    write(KEYS[i], claim)
  elseif claim.op == REFUND then
    refund(claim)
    write(KEYS[i], claim)
  elseif claim.verdict == REFUSE then
    if claim.penalty then
      claim.blocked, claim.blocked_ns, claim.level = claim.penalty[1], claim.penalty[2], claim.penalty[3]
      write(KEYS[i], claim)
    end
  elseif not refused and claim.verdict == ADMIT then
    charge(claim)
    write(KEYS[i], claim)
  end
end
return answer
