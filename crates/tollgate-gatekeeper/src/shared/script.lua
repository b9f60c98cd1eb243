-- The script that decides in the store (Redis). `rule.rs` encodes its input, and `answer.rs` parses its output. It
-- decides on all shared rules of one request in one step: every claim is checked, then all or none are charged. A
-- claim is the question of a request about one rule, for the key of the request. Several requests can be decided in
-- one call, in order, which shares the fixed cost of a call.
--
-- The server's clock is the only clock, in microseconds. Nanoseconds since 1970 do not fit the 53 bits of a
-- number here, so a time is a pair: whole microseconds, and a rest in units of 1/(1000 * per) of one, where
-- `per` units of a rate are returned per whole number of nanoseconds. Pairs are only added, subtracted and
-- compared, so nothing is rounded.
--
-- ARGV[1] is the time in microseconds after which no caller waits for a decision, or empty. A server that was
-- paused, or a connection that was interrupted, may run the call much later; then nothing is decided, because
-- no process would refund the charge.
--
-- KEYS[i], the name of the key's state, and ARGV[i + 1], the parameters, are a claim. An empty or missing ARGV[i + 1]
-- repeats the one before it, and a flag marks the last claim of a request. The answer is { seconds, microseconds },
-- the time of the decisions, followed for each request by an outcome and its states as they were found, from which
-- the caller derives everything else. The outcome is 1 if the request is admitted, 0 if it is refused, 2 if it is too
-- late to decide, and -i if its i-th value is of other software; in the last two cases nothing was changed for it.
--
-- A state is a head (tag, time of writing, end of the block with its nanoseconds, level and wait) and the data of
-- the limit. The wait is the longest time until there was room, of all violations since level 0; it is stored
-- together with the level, as level + 256 * wait.
--     r, c  rate and budget: the time at which all charges are paid back, as a pair
--     b     bucket: the time at which it will be empty, and by how much the last drip is less than a full one
--           These three end with the time until which the server keeps them. The expiry is set to twice the remaining
--           debt, so that most writes need not change it: writing in place costs a third of writing with an expiry.
--           If no rule has ever blocked the key, the head is only tag and time. Most states have this form, and half
--           as many numbers are packed and unpacked in half the time.
--     w     window: a log of the times of admitted requests, oldest first
--     f     in flight: a log of requests and the times until which they count as in flight, the latest last
-- Logs stay strings: they are long, and every request would pay for unpacking them.
--
-- The server creates all functions again for every call, which is expensive if they share variables. There
-- are therefore few functions, all of which use only their arguments, and the main part is one straight
-- sequence.
local now = time[1] * 1000000 + time[2]

-- The sum of two pairs; `parts` is the number of units per microsecond.
local function plus(us, sub, more, more_sub, parts)
  us, sub = us + more, sub + more_sub
  if sub >= parts then us, sub = us + 1, sub - parts end
  -- The year 2255. Later times are never reached.
  if us >= 9000000000000000 then return 9000000000000000, 0 end
  return us, sub
end

-- The difference of two pairs, at least zero.
local function minus(us, sub, less, less_sub, parts)
  if us < less or (us == less and sub <= less_sub) then return 0, 0 end
  us, sub = us - less, sub - less_sub
  if sub < 0 then us, sub = us - 1, sub + parts end
  return us, sub
end

-- Whether a number is a valid time or count.
local function whole(number)
  return number >= 0 and number <= 9000000000000000 and number % 1 == 0
end

-- The quotient, rounded up.
local function divide_up(number, by)
  local up = number + by - 1
  return (up - up % by) / by
end

-- The time of a log entry, the last eight bytes of an entry of `width` bytes.
local function entry(log, width, index)
  return (struct.unpack('<d', log, index * width - 7))
end

-- Looked up once for all requests.
local keys, claims, count_of_claims, take_apart, pack, max, min = KEYS, ARGV, #KEYS, struct.unpack, struct.pack, math.max, math.min
local call = redis.call
local is_late = now > (tonumber(claims[1]) or math.huge)
-- The server would format an integer like a fraction, which takes four times as long.
local format = string.format
-- Fetch all values with one command, because a command costs more than the data. Missing values and other
-- types are fetched again individually.
local values = count_of_claims > 1 and call('MGET', unpack(keys)) or {}
-- Values that earlier requests of this call have written, by name; false for removed ones.
local written = {}

local answer, last = { time[1], time[2], 1 }, 3
-- The states to write, and their expiry in milliseconds where it must change; 0 to remove the state. Some are
-- written always, some only if no rule refuses.
local states, lives, always = {}, {}, {}
-- The current request: the position of its outcome, its first claim, whether it is refused, and the index of
-- a foreign value.
local outcome, first, refused, foreign = 3, 1, false, 0

-- The parameters of the claim. An empty claim repeats the previous one.
local kind, operation, enforce, warm, levels, count, hold, hold_sub, backoff, backoff_max, release, a, b, c, d, e, f, multiplier
local ends, gives_back, paced, parts, tag_of_kind

for i = 1, count_of_claims do
  -- The operation is 0 to decide, 1 to charge unconditionally, 2 to refund, 3 to read, 4 to remove, 5 to
  -- refund the unused part; plus 8 for the last claim of a request. For refunds, hold and hold_sub are the
  -- time from which the charge is paid back, in microseconds and nanoseconds, and backoff and backoff_max are
  -- those of the charge's mark.
  -- The meaning of a to f depends on the kind:
  --   r, c  per, depth (a pair), toll (a pair), burst
  --   b     size, drip, time between drips
  --   w     maximum, ceiling (0 for none), length
  --   f     maximum, request, lifetime
  -- multiplier is that of the band, in thousandths.
  local claim = claims[i + 1]
  if claim and claim ~= '' then
    kind, operation, enforce, warm, levels, count, hold, hold_sub, backoff, backoff_max, release, a, b, c, d, e, f,
      multiplier = take_apart('<c1BBBBddddddddddddd', claim)
    ends = operation >= 8
    if ends then operation = operation - 8 end
    gives_back = operation == 2 or operation == 5
    paced = kind == 'r' or kind == 'c'
    parts = paced and 1000 * a or 1000
    tag_of_kind = 116 + 256 * string.byte(kind)
  end
  last = last + 1
  answer[last] = false
  -- Left early for a foreign value, and if it is too late to decide.
  repeat
    if foreign > 0 or (is_late and operation == 0) then break end

    -- Read.
    local value = written[keys[i]]
    if value == nil then
      value = values[i]
      if not value then
        value = redis.pcall('GET', keys[i])
        -- A list or another type without a string value.
        if type(value) == 'table' then value = '' end
      end
    end
    local blocked, blocked_ns, level_and_wait, x, y, kept = 0, 0, 0, 0, 0, 0
    local has_block = false
    local log, width
    if kind == 'w' then log, width = '', 8 elseif kind == 'f' then log, width = '', 16 end
    if value then
      local tag, at
      local ours, length = false, #value
      if log and length >= 34 then
        has_block = true
        tag, at, blocked, blocked_ns, level_and_wait = take_apart('<Hdddd', value)
        log = string.sub(value, 35)
        local entries = #log / width
        ours = entries % 1 == 0 and entries <= 1024
          and (entries == 0 or (whole(entry(log, width, 1)) and whole(entry(log, width, entries))))
      elseif not log and (length == 34 or length == 58) then
        if length == 34 then
          tag, at, x, y, kept = take_apart('<Hdddd', value)
        else
          has_block = true
          tag, at, blocked, blocked_ns, level_and_wait, x, y, kept = take_apart('<Hddddddd', value)
        end
        -- The check of `whole`, inlined, because every request runs this and a call is expensive.
        ours = x >= 0 and x <= 9000000000000000 and x % 1 == 0 and y >= 0 and y < (paced and parts or b) and y % 1 == 0
          and kept >= 0 and kept <= 9000000000000000
      end
      if ours and has_block then
        ours = blocked >= 0 and blocked <= 9000000000000000 and blocked % 1 == 0
          and blocked_ns >= 0 and blocked_ns < 1000 and blocked_ns % 1 == 0
          and level_and_wait >= 0 and level_and_wait <= 9000000000000000 and level_and_wait % 1 == 0
      end
      if not (ours and tag == tag_of_kind and at >= 0 and at <= 9000000000000000 and at % 1 == 0) then
        foreign = i - first + 1
        break
      end
      if at > now then
        -- The clock was set back: shift all times back, so that no client waits for the difference.
        local back = at - now
        blocked, x = max(blocked - back, 0), max(x - back, 0)
        if log then
          local moved = {}
          for j = 1, #log / width do
            local name = string.sub(log, (j - 1) * width + 1, j * width - 8)
            moved[j] = name .. pack('<d', max(entry(log, width, j) - back, 0))
          end
          log = table.concat(moved)
        end
        if log then
          value = pack('<Hdddd', tag_of_kind, now, blocked, blocked_ns, level_and_wait) .. log
        elseif not has_block then
          value = pack('<Hdddd', tag_of_kind, now, x, y, kept)
        else
          value = pack('<Hddddddd', tag_of_kind, now, blocked, blocked_ns, level_and_wait, x, y, kept)
        end
      end
      answer[last] = value
    end

    -- The current meaning of the state: a log without expired entries, the remaining drips and the content of
    -- the bucket.
    local length, drips, filled = 0, 0, 0
    if log then
      local life = kind == 'w' and c or 0
      local low, high = 0, #log / width
      while low < high do
        local middle = math.floor((low + high) / 2)
        if now >= entry(log, width, middle + 1) + life then low = middle + 1 else high = middle end
      end
      if low > 0 then log = string.sub(log, low * width + 1) end
      length = #log / width
    elseif kind == 'b' then
      if x > now then
        -- `divide_up`, inlined.
        local up = x - now + c - 1
        drips = (up - up % c) / c
      end
      filled = drips * b - y
      if filled < 0 then filled = 0 end
    end

    -- Check: is there room now, from some time on, or at no known time?
    local takes, punished = operation == 1, false
    local room, from, from_sub = 'now', 0, 0
    if operation == 0 then
      if paced then
        local us, sub = x, y
        if kind == 'r' then
          if us < now then us, sub = now, 0 end
          us, sub = plus(us, sub, d, e, parts)
        end
        local most, most_sub = plus(now, 0, b, c, parts)
        if kind == 'r' and count > f then
          room = 'no'
        elseif us > most or (us == most and sub > most_sub) then
          room = 'from'
          from, from_sub = minus(us, sub, b, c, parts)
        end
      elseif kind == 'b' then
        local over = filled + count - a
        if count > a then
          room = 'no'
        elseif over > 0 then
          -- `divide_up`, inlined.
          local up = over + b - 1
          local left = drips - (up - up % b) / b
          room, from = 'from', x
          if left > 0 then from = x - left * c end
        end
      elseif kind == 'w' then
        local over = length + count - a
        if count > a then
          room = 'no'
        elseif over > 0 then
          room, from = 'from', entry(log, width, over) + c
        end
      elseif length >= a then
        room = 'no'
      end

      takes = true
      if warm == 1 and room ~= 'now' then
        -- Only a ceiling applies. A log records the requests that it admits; other limits run up no debt
        -- while they are not enforced.
        room = 'now'
        takes = log ~= nil
        if kind == 'w' and b > 0 then
          local over = length + count - b
          if count > b then
            room = 'no'
          elseif over > 0 then
            room, from = 'from', entry(log, width, over) + c
          end
        end
      end
      local refuses = room ~= 'now'
      if room == 'from' and warm == 0 then
        if hold == 0 and hold_sub == 0 then
          refuses = from > now or (from == now and from_sub > 0)
        else
          local wait, wait_sub = minus(from, from_sub, now, 0, parts)
          refuses = wait > hold or (wait == hold and wait_sub > hold_sub)
        end
      end

      if levels > 0 then
        if now < blocked or (now == blocked and blocked_ns > 0) then
          refuses = true
        elseif refuses and room == 'from' and count > 0 then
          -- Recovery is counted in whole microseconds: a block that ends within one ends with the next.
          local calm = now - blocked - (blocked_ns > 0 and 1 or 0)
          local level = level_and_wait % 256
          local wait = (level_and_wait - level) / 256
          level = min(max(level - (calm - calm % release) / release, 0), levels)
          if level == 0 then wait = 0 end
          -- Each level is a multiple of the longest time until there was room, and at least of the backoff.
          wait = min(max(wait, from - now + (from_sub > 0 and 1 or 0)), 17592186044415)
          level = min(level + 1, levels)
          level_and_wait = level + 256 * wait
          local block = max(backoff, wait) * 2 ^ min(level - 1, 63) * multiplier
          blocked, blocked_ns = now + min((block - block % 1000) / 1000, backoff_max), 0
          -- The block lasts at least until there is room, in whole nanoseconds.
          local from_ns = from_sub > 0 and divide_up(from_sub, a) or 0
          if from_ns == 1000 then from, from_ns = from + 1, 0 end
          if from > blocked or (from == blocked and from_ns > 0) then blocked, blocked_ns = from, from_ns end
          punished = true
        end
      end
      takes = takes and not refuses
      refused = refused or (refuses and enforce == 1)
    end

    -- Apply.
    if takes then
      if paced then
        if x < now then x, y = now, 0 end
        x, y = plus(x, y, d, e, parts)
      elseif kind == 'b' then
        local up = filled + count + b - 1
        local drips_new = (up - up % b) / b
        -- The period of an empty bucket starts with its first request.
        if drips == 0 then x = now end
        x, y = x + (drips_new - drips) * c, drips_new * b - filled - count
        if x > 9000000000000000 then x = 9000000000000000 end
      elseif kind == 'w' then
        local most = max(a, b)
        local more = min(count, most)
        -- A held request counts at the time at which it is forwarded.
        local at = room == 'from' and from or now
        local newest = length > 0 and max(at, entry(log, width, length)) or at
        log = string.sub(log, max(length + more - most, 0) * 8 + 1) .. string.rep(pack('<d', newest), more)
      end
    elseif gives_back then
      -- The amount paid back since the charge is not refunded. While requests are held, only the newest
      -- charge is refunded.
      if paced then
        local most, most_sub = plus(now, 0, b, c, parts)
        local holds = x > most or (x == most and y > most_sub)
        local newest = x == backoff and (y - y % a) / a == backoff_max
        local us, sub = d, e
        if not newest or (operation == 2 and not holds) then
          local paid, paid_sub = minus(now, 0, hold, hold_sub * a, parts)
          us, sub = minus(us, sub, paid, paid_sub, parts)
        end
        if newest or not holds or operation == 5 then x, y = minus(x, y, us, sub, parts) end
      elseif kind == 'b' and b == 1 and filled <= a then
        x = max(x - max(c * count - max(now - hold, 0), 0), 0)
      elseif kind == 'b' and drips > 0 then
        local less = 0
        if filled <= a then
          less = max(count - max(divide_up(max(x - hold, 0), c) - drips, 0) * b, 0)
        elseif (x - backoff) * 1000 - y == backoff_max then
          less = count
        end
        local left = max(filled - less, 0)
        local drips_new = divide_up(left, b)
        x, y = max(x + (drips_new - drips) * c, 0), drips_new * b - left
      elseif kind == 'w' and backoff <= now then
        local low, high = 0, length
        while low < high do
          local middle = math.floor((low + high) / 2)
          if entry(log, width, middle + 1) < backoff then low = middle + 1 else high = middle end
        end
        local own = low
        while own < length and own - low < count and entry(log, width, own + 1) == backoff do own = own + 1 end
        log = string.sub(log, 1, low * 8) .. string.sub(log, own * 8 + 1)
      end
    end
    if kind == 'f' and (takes or operation == 2) then
      -- The request is no longer in flight, or is as of now.
      local name, at = pack('<d', b), 0
      repeat at = string.find(log, name, at + 1, true) until not at or at % 16 == 1
      if at then log = string.sub(log, 1, at - 1) .. string.sub(log, at + 16) end
      if takes and count > 0 and #log < 1024 * 16 then log = log .. pack('<dd', b, now + c) end
    end

    if takes or punished or gives_back then
      -- The time from which the state is clear. It is kept longer than that.
      local clear = x
      if log and #log > 0 then
        clear = entry(log, width, #log / width) + (kind == 'w' and c or 0)
      elseif paced and y > 0 then
        clear = x + 1
      end
      if levels > 0 then clear = max(clear, blocked + 1 + level_and_wait % 256 * release) end
      if operation ~= 0 or punished then always[i] = true end
      if clear <= now then
        lives[i], states[i] = 0, ''
      elseif log then
        lives[i] = math.ceil((clear - now) / 1000) + 1000
        states[i] = pack('<Hdddd', tag_of_kind, now, blocked, blocked_ns, level_and_wait) .. log
      else
        if kept < clear + 500000 then
          lives[i] = 2 * math.ceil((clear - now) / 1000) + 1000
          kept = min(now + 1000 * lives[i], 9000000000000000)
        end
        if has_block or punished then
          states[i] = pack('<Hddddddd', tag_of_kind, now, blocked, blocked_ns, level_and_wait, x, y, kept)
        else
          states[i] = pack('<Hdddd', tag_of_kind, now, x, y, kept)
        end
      end
    elseif operation == 4 and kind ~= 'f' then
      always[i], lives[i], states[i] = true, 0, ''
    end
  until true

  if ends then
    if foreign > 0 then
      answer[outcome] = -foreign
    elseif is_late and operation == 0 then
      answer[outcome] = 2
    else
      if refused then answer[outcome] = 0 end
      for j = first, i do
        if states[j] and (always[j] or not refused) then
          local life = lives[j]
          if not life then
            call('SETRANGE', keys[j], '0', states[j])
            written[keys[j]] = states[j]
          elseif life > 0 then
            call('SET', keys[j], states[j], 'PX', format('%d', life))
            written[keys[j]] = states[j]
          elseif answer[outcome + j - first + 1] then
            call('DEL', keys[j])
            written[keys[j]] = false
          end
        end
      end
    end
    first, refused, foreign = i + 1, false, 0
    if i < count_of_claims then
      last = last + 1
      answer[last] = 1
      outcome = last
    end
  end
end
return answer
