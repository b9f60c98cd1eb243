-- Asks the HTTP door of Tollgate about each request. Needs HAProxy 2.5 or later, built with Lua.
-- Use: `lua-load tollgate.lua` in `global`, and in a frontend `http-request lua.tollgate 127.0.0.1:8890` with the rules
-- of docs/door-forward-auth.md.
core.register_action("tollgate", { "http-req" }, function(txn, door)
  local headers = {}
  for name, values in pairs(txn.http:req_get_headers()) do
    local lines = {}
    for _, value in pairs(values) do table.insert(lines, value) end
    headers[name] = lines
  end
  headers["content-length"], headers["transfer-encoding"] = nil, nil
  headers["connection"], headers["upgrade"] = nil, nil
  headers["x-forwarded-for"] = { txn.f:src() }
  headers["x-forwarded-method"] = { txn.f:method() }
  headers["x-forwarded-uri"] = { txn.f:pathq() }
  headers["x-forwarded-host"] = headers["host"]
  local answer = core.httpclient():get{ url = "http://" .. door .. "/v1/auth", headers = headers, timeout = 1000 }
  local fields = answer and answer.headers or {}
  -- Every refusal has this field. If the door does not respond, the request is allowed.
  local status, retry_after = fields["x-tollgate-status"], fields["retry-after"]
  txn:set_var("txn.tollgate_status", status and tonumber(status[0]) or 200)
  txn:set_var("txn.tollgate_retry_after", retry_after and retry_after[0] or "1")
end, 1)
