"""Scripts that loop, take memory, attack the sandbox or return nonsense. After each a good script answers."""

from __future__ import annotations

import asyncio

import pytest

from foqs.hooks.protocol import Kind
from tests.hooks.rig import GOOD, Hooks, hooks, on_enqueue

FOR_EVER = "while true do end"
WITH = f"setmetatable({{{{}}}}, {{{{{{}} = function() {FOR_EVER} end}}}})"
RECURSION = "local function deeper(n) return 1 + deeper(n + 1) end return {weight = deeper(1)}"

SPENT = {
    "endless loop": FOR_EVER,
    "endless loop at the start": None,
    "goto": "::again:: goto again",
    "loop in pcall": f"while true do pcall(function() {FOR_EVER} end) end",
    "nested pcall": f"local function f() pcall(f) {FOR_EVER} end f()",
    "error caught and ignored": f"pcall(function() {FOR_EVER} end) return {{weight = 1}}",
    "metamethod __index": f"return {{weight = {WITH.format('__index')}.x}}",
    "metamethod __tostring": f"return {{fairness_key = tostring({WITH.format('__tostring')})}}",
    "coercion in a loop": f"while true do tostring({WITH.format('__name')}) end",
    "__close": f"local x <close> = {WITH.format('__close')} error('x')",
    "__close after the time": f"local x <close> = {WITH.format('__close')} {FOR_EVER}",
    "gsub with a function": f"(('x'):rep(9)):gsub('x', function() {FOR_EVER} end)",
    "sort": f"table.sort({{3, 2, 1}}, function() {FOR_EVER} end)",
    "iterator": "for _ in function() return 1 end do end",
    "growing text in a loop": "while true do local x = ('x'):rep(1000) end",
}
MEMORY = {
    "1 GiB text": "return {fairness_key = ('x'):rep(1 << 30)}",
    "1 GiB text in pcall": "local ok, why = pcall(string.rep, 'x', 1 << 30) error(why, 0)",
    "huge table": "local t = {} for i = 1, 1e9 do t[i] = i end",
    "huge texts": "local t = 'x' while true do t = t .. t end",
    "deep recursion": RECURSION,
    "table.concat": "local t = {} for i = 1, 5000 do t[i] = ('x'):rep(1000) end return {refuse = table.concat(t)}",
    "a leak over calls": "kept = kept or {} kept[#kept + 1] = ('x'):rep(2000000)",
}
NOTHING = "setmetatable({}, {__index = function() return '' end})"
STUCK = {
    "pattern with lazy stars": "return {weight = string.find(('a'):rep(60), ('.-'):rep(12) .. 'b')}",
    "gsub with a slow pattern": "(('a'):rep(20000)):gsub(('a*'):rep(8) .. 'b', '')",
    "table.move": "table.move({}, 1, 1 << 40, 2)",
    "text of nothing": f"table.concat({NOTHING}, '', 1, 1 << 40)",
}
ERRORS = {
    "raised text": ("error('no customer')", "no customer"),
    "raised table": ("error({code = 1})", "the script raised a table, not a text"),
    "raised function": ("error(function() end)", "the script raised a function, not a text"),
    "raised nil": ("error()", "the script raised a nil, not a text"),
    "raised table with __tostring": (f"error({WITH.format('__tostring')})", "the script raised a table"),
    "raised long text": ("error(('x'):rep(100000))", "xxx"),
    "raised bytes": ("error('\\xff\\xfe', 0)", "??"),
    "__gc": ("setmetatable({}, {__gc = function() end})", "a script has no finalizers"),
    "io": ("io.open('/etc/passwd')", "nil value (global 'io')"),
    "os": ("os.execute('true')", "nil value (global 'os')"),
    "require": ("require('os')", "nil value (global 'require')"),
    "load": ("load('return 1')()", "nil value (global 'load')"),
    "dofile": ("dofile('/etc/passwd')", "nil value (global 'dofile')"),
    "python": ("python.eval('1')", "nil value (global 'python')"),
    "debug": ("debug.sethook()", "nil value (global 'debug')"),
    "coroutine": (f"coroutine.wrap(function() {FOR_EVER} end)()", "nil value (global 'coroutine')"),
    "collectgarbage": ("collectgarbage('stop')", "nil value (global 'collectgarbage')"),
    "xpcall": ("xpcall(error, error)", "nil value (global 'xpcall')"),
    "package": ("return package.loaded", "nil value (global 'package')"),
    "string.dump": ("string.dump(on_enqueue)", "nil value (field 'dump')"),
    "print": ("print('x')", "nil value (global 'print')"),
    "metatable of texts": ("getmetatable('').__index = nil", "index a boolean value"),
    "bytecode": (None, "attempt to load a binary chunk"),
    "syntax": (None, "syntax error near 'on_enqueue'"),
    "endless coercion": (
        "local t = {} setmetatable(t, {__concat = function(a, b) return a .. b end}) return t .. t",
        "overflow",
    ),
    "infinite tostring": ("local t = {} setmetatable(t, {__tostring = tostring}) return tostring(t)", "overflow"),
    "no function": (None, "the script does not define the function on_enqueue"),
}
STARTS = {
    "endless loop at the start": FOR_EVER,
    "bytecode": "\x1bLua",
    "syntax": "funtion on_enqueue(item) end",
    "no function": "on_enqueue = 7",
}
INVALID = {
    "number": ("return 7", "on_enqueue returned a number, not a table of fields"),
    "text": ("return 'x'", "on_enqueue returned a string, not a table of fields"),
    "function": ("return function() end", "on_enqueue returned a function, not a table of fields"),
    "function in a field": ("return {weight = function() end}", "weight is a function"),
    "cyclic table": ("local t = {} t.fairness_key = t return t", "fairness_key is not a list"),
    "table of tables": ("return {throttle_keys = {{}, {}}}", "throttle_keys holds a table, not texts"),
    "list with a hole": ("return {throttle_keys = {nil, 'a'}}", "throttle_keys is not a list"),
    "long list": (
        "local t = {} for i = 1, 99 do t[i] = 'x' end return {throttle_keys = t}",
        "99 entries, more than 64",
    ),
    "name that is a number": ("return {1}", "returned a number as the name of a field"),
    "many fields": ("local t = {} for i = 1, 99 do t['x' .. i] = i end return t", "returned more than 32 fields"),
    "long text": ("return {fairness_key = ('x'):rep(10000)}", "on_enqueue returned more than 8192 bytes"),
    "bytes": ("return {fairness_key = '\\xff'}", "not UTF-8"),
    "name in bytes": ("return {['\\xff'] = 1}", "not UTF-8"),
    "item itself": ("return item", "headers is not a list"),
    "unknown field": ("return {wieght = 1}", "there is no field 'wieght'"),
    "infinity": ("return {weight = 1 / 0}", "weight is inf, not a whole number"),
    "computed throttle keys": ("return {['throttle' .. '_keys'] = {'api'}}", "the source of the script does not have"),
}


def source_of(name: str, body: str | None) -> str:
    return STARTS[name] if body is None else on_enqueue(body)


async def the_good_goes_on(of: Hooks) -> None:
    """In the processes of suspects and of proven scripts."""
    for _ in range(10):
        await of.still_good()


@pytest.mark.parametrize("name", SPENT)
def test_a_loop_ends_in_time(name: str) -> None:
    async def main() -> None:
        async with hooks() as of:
            failed = await of.failed(source_of(name, SPENT[name]))
            assert (failed.kind, failed.text) == (Kind.TIMEOUT, "the script took more than 10 ms of processor time")
            await the_good_goes_on(of)
            assert of.pool.kills == 0

    asyncio.run(main())


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_bounded(name: str) -> None:
    async def main() -> None:
        async with hooks(timeout_ms=1_000) as of:
            failed = await of.failed(source_of(name, MEMORY[name]))
            assert failed.kind is Kind.MEMORY
            assert failed.text == "the script took more than 1048576 bytes of memory"
            await the_good_goes_on(of)

    asyncio.run(main())


@pytest.mark.parametrize("name", STUCK)
def test_a_call_stuck_in_c_is_killed(name: str) -> None:
    async def main() -> None:
        async with hooks() as of:
            failed = await of.failed(source_of(name, STUCK[name]))
            assert failed.kind in (Kind.KILLED, Kind.TIMEOUT), failed
            assert of.pool.kills == (failed.kind is Kind.KILLED)
            await the_good_goes_on(of)

    asyncio.run(main())


@pytest.mark.parametrize("name", ERRORS)
def test_errors_have_a_text(name: str) -> None:
    body, text = ERRORS[name]

    async def main() -> None:
        async with hooks() as of:
            failed = await of.failed(source_of(name, body))
            assert failed.kind is Kind.ERROR
            assert text in failed.text
            assert len(failed.text) <= 300
            await the_good_goes_on(of)

    asyncio.run(main())


@pytest.mark.parametrize("name", INVALID)
def test_results_are_checked(name: str) -> None:
    body, text = INVALID[name]

    async def main() -> None:
        async with hooks() as of:
            failed = await of.failed(on_enqueue(body))
            assert failed.kind is Kind.INVALID
            assert text in failed.text
            await the_good_goes_on(of)

    asyncio.run(main())


def test_a_redefined_library_is_the_scripts_own() -> None:
    thief = on_enqueue(
        """
        string.upper = function() return "stolen" end
        table.concat, math.floor, next, rawget, type, pcall, error, unpack = nil
        foqs.get = function() return "stolen" end
        getmetatable = nil
        return {fairness_key = ("x"):upper()}
        """
    )
    reader = on_enqueue('return {fairness_key = ("x"):upper() .. foqs.get("plans/acme")}')

    async def main() -> None:
        async with hooks() as of:
            for _ in range(3):
                assert (await of.answered(thief)).fairness_key == "stolen"
                assert (await of.answered(reader, topic="other")).fairness_key == "Xgold"
                await of.still_good()
            assert (await of.failed(thief + " error('x')")).kind is Kind.ERROR
            await of.still_good()

    asyncio.run(main())


def test_a_broken_state_is_not_used_again() -> None:
    once = "count = 0\n" + on_enqueue(f"count = count + 1 if count == 2 then {FOR_EVER} end return {{weight = count}}")

    async def main() -> None:
        async with hooks() as of:
            assert (await of.answered(once)).weight == 1
            assert (await of.failed(once)).kind is Kind.TIMEOUT
            assert (await of.answered(once)).weight == 1

    asyncio.run(main())


def test_the_good_script_reads_settings_and_headers() -> None:
    async def main() -> None:
        async with hooks() as of:
            result = await of.answered(GOOD)
            assert (result.fairness_key, result.weight) == ("acme", 4)

    asyncio.run(main())
