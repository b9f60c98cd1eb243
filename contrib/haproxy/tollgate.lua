-- Asks the HTTP door of Tollgate about each request. Needs HAProxy 2.5 or later, built with Lua.
-- Use: `lua-load tollgate.lua` in `global`, and in a frontend `http-request lua.tollgate 127.0.0.1:8890` with the rules
-- of docs/door-forward-auth.md.

-- Maximum number of header lines of a request. HAProxy itself accepts 101 (tune.http.maxhdr), but version 2.6 crashes
-- if its HTTP client sends more than that, and four are added here.
local LINES_MAX = 96

-- Statuses of the door for a request that it cannot parse. They are refusals: a client could otherwise avoid its limits
-- with a request that the backend accepts and the door does not.
local UNREADABLE = { [400] = true, [414] = true, [431] = true, [501] = true, [505] = true }

core.register_action("tollgate", { "http-req" }, function(txn, door)
  local headers, count = {}, 0
  for name, values in pairs(txn.http:req_get_headers()) do
    local lines = {}
    for _, value in pairs(values) do table.insert(lines, value) end
    headers[name] = lines
    count = count + #lines
  end
  txn:set_var("txn.tollgate_retry_after", "1")
  if count > LINES_MAX then
    txn:set_var("txn.tollgate_status", 400)
    return
  end
  headers["content-length"], headers["transfer-encoding"] = nil, nil
  headers["connection"], headers["upgrade"] = nil, nil
  headers["x-forwarded-for"] = { txn.f:src() }
  headers["x-forwarded-method"] = { txn.f:method() }
  headers["x-forwarded-uri"] = { txn.f:pathq() }
  headers["x-forwarded-host"] = headers["host"]
  local answer = core.httpclient():get{ url = "http://" .. door .. "/v1/auth", headers = headers, timeout = 1000 }
  local fields = answer and answer.headers or {}
  -- Every decision to refuse has this field. If the door does not respond, the request is allowed.
  local refusal, retry_after = fields["x-tollgate-status"], fields["retry-after"]
  local is_unreadable = answer and UNREADABLE[answer.status]
  txn:set_var("txn.tollgate_status", refusal and tonumber(refusal[0]) or is_unreadable and 400 or 200)
  if retry_after then txn:set_var("txn.tollgate_retry_after", retry_after[0]) end
end, 1)
