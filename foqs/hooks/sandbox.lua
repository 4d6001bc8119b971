-- The world of one script. The chunk returns the functions that the runner calls. Only texts, numbers, booleans and nil
-- cross to Python, flat: they need no memory of the sandbox, so the bound on it cannot be met outside of a pcall.

local clock, collect, sethook = os.clock, collectgarbage, debug.sethook
local error, load, next, pcall, rawget, rawlen = error, load, next, pcall, rawget, rawlen
local raw_setmetatable, select, tostring, type = setmetatable, select, tostring, type
local format, gsub, rep, sub, utf8_len = string.format, string.gsub, string.rep, string.sub, utf8.len
local unpack, huge = table.unpack, math.huge

local INSTRUCTIONS <const> = 1000
local MOST_FIELDS <const> = 32
local MOST_LISTED <const> = 64
local MOST_BYTES <const> = 8192
local ERROR_BYTES <const> = 300
local NO_MEMORY <const> = "not enough memory"
local SPENT = {} -- the error that ends a call which has used up its time

local ends, last_ends, spent = huge, huge, false
local entries, item = {}, nil

local function check()
  if clock() > ends then
    spent = true
    error(SPENT, 0)
  end
end

-- ------------------------------------------------------------------------------------- the script's globals

local function unless_spent(...)
  if spent then error(SPENT, 0) end
  return ...
end

local function copy(library, without)
  local made = {}
  for name, value in next, library do made[name] = value end
  made[without] = nil
  return made
end

local env = {
  _VERSION = _VERSION,
  assert = assert,
  error = error,
  getmetatable = getmetatable,
  ipairs = ipairs,
  next = next,
  pairs = pairs,
  rawequal = rawequal,
  rawget = rawget,
  rawlen = rawlen,
  rawset = rawset,
  select = select,
  tonumber = tonumber,
  tostring = tostring,
  type = type,
  math = copy(math, ""),
  string = copy(string, "dump"),
  table = copy(table, ""),
  utf8 = copy(utf8, ""),
  foqs = {get = function(key) return key ~= nil and entries[key] or nil end},
}
env._G = env

-- A script that catches the error of its time-out would go on.
function env.pcall(...) return unless_spent(pcall(...)) end

-- Lua calls no instruction hook in a finalizer, so nothing inside the process would end a loop there.
function env.setmetatable(object, metatable)
  if type(metatable) == "table" and rawget(metatable, "__gc") ~= nil then
    error("a script has no finalizers: remove __gc", 2)
  end
  return raw_setmetatable(object, metatable)
end

-- Repeating nothing is a loop in C.
function env.string.rep(text, count, between)
  if text == "" and (between == nil or between == "") then return "" end
  return rep(text, count, between)
end

local of_text = getmetatable("")
of_text.__index = env.string
of_text.__metatable = false
-- lupa looks up the handler of tracebacks at each call. The name stays, so that the look-up takes no memory.
debug = false

-- ------------------------------------------------------------------------------------- what crosses

local function clipped(text)
  text = sub(text, 1, ERROR_BYTES)
  if not utf8_len(text) then text = gsub(text, "[\x80-\xff]", "?") end
  return text
end

local function failure(raised)
  if spent then return "timeout" end
  if raised == NO_MEMORY then return "memory" end
  if type(raised) == "number" then raised = tostring(raised) end
  if type(raised) ~= "string" then return "error", "the script raised a " .. type(raised) .. ", not a text" end
  return "error", clipped(raised)
end

local function guarded(seconds, call, ...)
  spent = false
  last_ends = clock() + seconds
  ends = last_ends
  local ok, returned = pcall(call, ...)
  ends = huge
  return ok and not spent, returned
end

local function invalid(...) return "invalid", clipped(format(...)) end

-- The texts of a list: nil and an error where it is none.
local function listed(name, list)
  local count, pairs_in_it, bytes = rawlen(list), 0, 0
  if count > MOST_LISTED then return nil, format("%s has %d entries, more than %d", name, count, MOST_LISTED) end
  for at, text in next, list do
    pairs_in_it = pairs_in_it + 1
    if pairs_in_it > count then return nil, name .. " is not a list" end
    if type(text) ~= "string" then return nil, format("%s holds a %s, not texts", name, type(text)) end
    bytes = bytes + #text
  end
  if pairs_in_it < count then return nil, name .. " is not a list" end
  return count, bytes
end

-- Returns "ok", the number of plain fields, their names and values, then each list: name, count, texts.
local function flat(hook, returned)
  if returned == nil then return "ok", 0 end
  if type(returned) ~= "table" then
    return invalid("%s returned a %s, not a table of fields", hook, type(returned))
  end
  local plain, at, fields, bytes = {"ok", 0}, 2, 0, 0
  local lists
  for name, value in next, returned do
    fields = fields + 1
    if fields > MOST_FIELDS then return invalid("%s returned more than %d fields", hook, MOST_FIELDS) end
    if type(name) ~= "string" then return invalid("%s returned a %s as the name of a field", hook, type(name)) end
    bytes = bytes + #name
    if bytes > MOST_BYTES then return invalid("%s returned more than %d bytes", hook, MOST_BYTES) end
    local kind = type(value)
    if kind == "table" then
      lists = lists or {}
      lists[#lists + 1] = name
    elseif kind == "string" or kind == "number" or kind == "boolean" then
      if kind == "string" then bytes = bytes + #value end
      plain[at + 1], plain[at + 2] = name, value
      at = at + 2
      plain[2] = plain[2] + 1
    else
      return invalid("%s is a %s", name, kind)
    end
  end
  for _, name in next, lists or {} do
    local list = rawget(returned, name)
    local count, more = listed(name, list)
    if not count then return invalid("%s", more) end
    bytes = bytes + more
    plain[at + 1], plain[at + 2] = name, count
    at = at + 2
    for index = 1, count do plain[at + index] = rawget(list, index) end
    at = at + count
  end
  if bytes > MOST_BYTES then return invalid("%s returned more than %d bytes", hook, MOST_BYTES) end
  return unpack(plain, 1, at)
end

-- ------------------------------------------------------------------------------------- what the runner calls

local function start(source, name, seconds)
  local chunk, why = load(source, "=" .. name, "t", env)
  if not chunk then return failure(why) end
  local ok, raised = guarded(seconds, chunk)
  if not ok then return failure(raised) end
  return "ok"
end

local function clear_entries()
  entries = {}
  collect()
end

-- Text pairs: a part of the entries.
local function give_entries(...)
  for at = 1, select("#", ...), 2 do
    local key, value = select(at, ...)
    entries[key] = value
  end
end

-- Number of plain fields, their names and values, then each table: name, number of pairs, pairs.
local function give_item(count, ...)
  local given = {...}
  item = {}
  local at = 1
  for _ = 1, count do
    item[given[at]] = given[at + 1]
    at = at + 2
  end
  while given[at] ~= nil do
    local inner = {}
    for pair = at + 2, at + 2 * given[at + 1], 2 do inner[given[pair]] = given[pair + 1] end
    item[given[at]] = inner
    at = at + 2 + 2 * given[at + 1]
  end
end

-- Memory may end in the conversion of the result, too.
local function call(hook, script, given)
  return {flat(hook, script(given))}
end

-- An empty name calls nothing: the script has been loaded by then.
local function run(hook, seconds)
  local script, given = rawget(env, hook), item
  item = nil
  if hook == "" then
    for name in next, {on_enqueue = 1, on_failure = 1} do
      if type(rawget(env, name)) == "function" then return "ok", 0 end
    end
    return "error", "the script defines neither on_enqueue nor on_failure"
  end
  if type(script) ~= "function" then return "error", "the script does not define the function " .. hook end
  local ok, returned = guarded(seconds, call, hook, script, given)
  if not ok then return failure(returned) end
  return unpack(returned)
end

-- Whether the last call ended after its time, in a function of Lua's library.
local function late() return clock() > last_ends end

sethook(check, "", INSTRUCTIONS)
return start, clear_entries, give_entries, give_item, run, late
