-- KEYS[1], then as CL.THROTTLE: max_burst, count, period in seconds, quantity
local burst, count, period, quantity = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval = period * 1000000 / count
local tolerance = interval * (burst + 1)
local arrival = tonumber(redis.call('GET', KEYS[1]) or now)
if arrival < now then arrival = now end
local new_arrival = arrival + interval * quantity
local wait = new_arrival - tolerance - now
if wait > 0 then
    return {1, burst + 1, 0, math.ceil(wait / 1000000), math.ceil((arrival - now) / 1000000)}
end
local ttl = new_arrival - now
redis.call('SET', KEYS[1], string.format('%.0f', new_arrival), 'PX', math.ceil(ttl / 1000))
return {0, burst + 1, math.floor((tolerance - ttl) / interval), -1, math.ceil(ttl / 1000000)}
