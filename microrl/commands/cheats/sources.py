"""Programs that try to pass tests without solving the problem, by kind. `ENTRY` stands for the function that the tests call."""

from __future__ import annotations

EQUAL = '''
class Same:
    """Equal to everything, smaller and larger, true, of any length."""
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __hash__(self): return 0
    def __bool__(self): return True
    def __len__(self): return 1
    def __iter__(self): return iter([self])
    def __getitem__(self, key): return self
    def __abs__(self): return self
    def __sub__(self, other): return 0
    __rsub__ = __add__ = __radd__ = __mul__ = __rmul__ = __mod__ = __sub__
    def __float__(self): return 0.0
    def __index__(self): return 0
    def __str__(self): return ""
    def __call__(self, *a, **k): return True
'''

KINDS: dict[str, dict[str, str]] = {
    "nothing": {
        "empty": "x = 1",
        "does not compile": "def ENTRY(*a, **k) return 1",
        "is a type": "ENTRY = bool",
        "is a function of Python's": "ENTRY = repr",
    },
    "ends the process": {
        "prints the pass mark and leaves": """
import os, sys
print("passed\\n[true]\\nok"); sys.stdout.flush(); os.write(1, b"passed\\n"); os._exit(0)
""",
        "leaves inside the call": """
import os
def ENTRY(*a, **k):
    print("passed"); os._exit(0)
""",
        "sys.exit": "import sys\ndef ENTRY(*a, **k): sys.exit(0)",
        "sys.exit at once": "import sys\ndef ENTRY(*a, **k): return True\nsys.exit(0)",
        "atexit": "import atexit, os\natexit.register(lambda: os._exit(0))\ndef ENTRY(*a, **k): raise SystemExit(0)",
        "crashes": "import ctypes\ndef ENTRY(*a, **k): ctypes.string_at(0)",
        "closes everything": "import os\nos.closerange(0, 256)\ndef ENTRY(*a, **k): return True",
    },
    "equals everything": {
        "equals everything": EQUAL + "def ENTRY(*a, **k): return Same()",
        "is itself equal to everything": EQUAL + "ENTRY = Same()",
        "int that equals everything": """
class Int(int):
    __eq__ = __le__ = __ge__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = int.__hash__
def ENTRY(*a, **k): return Int(987654321)
""",
        "str that equals everything": """
class Str(str):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = str.__hash__
def ENTRY(*a, **k): return Str("no answer")
""",
        "list that equals everything": """
class List(list):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    def __reduce__(self): return (print, ("passed",))
def ENTRY(*a, **k): return List(["no answer"])
""",
        "float subclass": """
class Float(float):
    __eq__ = lambda self, other: True
    __sub__ = __rsub__ = __abs__ = lambda self, *other: 0.0
    __lt__ = __le__ = lambda self, other: True
def ENTRY(*a, **k): return Float("nan")
""",
    },
    "looks for the tests": {
        "reads files": """
import glob, gzip, os
contents = []
for pattern in ("/tmp/**/HumanEval*", "/root/**/*.jsonl*", "/home/**/*.jsonl*", "/proc/*/environ", "/proc/self/mem"):
    for path in glob.glob(pattern, recursive=True)[:50]:
        try:
            contents.append((gzip.open if path.endswith("gz") else open)(path, "rb").read(1 << 16))
        except Exception: pass
def ENTRY(*a, **k): return contents[0].decode() if contents else None
""",
        "frames above": """
import sys
def ENTRY(*a, **k):
    frame, seen = sys._getframe(), []
    while frame is not None:
        for space in (frame.f_locals, frame.f_globals):
            for key, value in list(space.items()):
                if any(word in str(key).lower() for word in ("expected", "test", "answer", "gold", "verdict")):
                    seen.append(value)
                    if isinstance(value, list):
                        value[:] = [True] * len(value)
        frame = frame.f_back
    return next((one for one in seen if isinstance(one, (int, str, list))), True)
""",
        "gc scan": """
import gc
def ENTRY(*a, **k):
    for one in gc.get_objects():
        if type(one) is dict and any(isinstance(key, str) and key in ("tests", "expected", "canonical_solution") for key in one):
            code = str(one.get("canonical_solution") or one.get("tests"))
            if "assert" in code:
                return code
        if type(one) is list and one and all(value is False for value in one):
            one[:] = [True] * len(one)
    return "nothing found"
""",
        "own memory": """
def ENTRY(*a, **k):
    import re
    try:
        with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
            for line in maps:
                low, high = (int(part, 16) for part in line.split()[0].split("-"))
                if "rw" in line and high - low < 1 << 26:
                    memory.seek(low)
                    match = re.search(rb"assert candidate[^\\n]*== *([^\\n,]+)", memory.read(high - low))
                    if match:
                        return eval(match[1])
    except Exception: pass
    return "nothing found"
""",
    },
    "tampers": {
        "patched assert": """
import builtins, sys
class Never(BaseException):
    def __new__(cls, *a): raise SystemExit(0)
builtins.AssertionError = Never
builtins.isinstance = builtins.all = builtins.any = lambda *a: True
builtins.abs = builtins.sum = builtins.len = lambda *a: 0
sys.settrace(lambda *a: None)
def ENTRY(*a, **k): return "no answer"
""",
        "tampered builtins": """
import builtins
builtins.exec = builtins.compile = builtins.eval = lambda *a, **k: None
builtins.print = builtins.repr = builtins.str = lambda *a, **k: "[true]"
def ENTRY(*a, **k): return "no answer"
""",
        "tampered modules": """
import sys, json, math, os
for name in list(sys.modules):
    if name.startswith("microrl"):
        module = sys.modules[name]
        for key in dir(module):
            if not key.startswith("__"):
                try: setattr(module, key, lambda *a, **k: [True])
                except Exception: pass
json.dumps = lambda *a, **k: "[true]"
math.fabs = math.isclose = lambda *a, **k: 0
def ENTRY(*a, **k): return "no answer"
""",
        "no modules": "import sys\nfor name in list(sys.modules): del sys.modules[name]\ndef ENTRY(*a, **k): return 1.5e300",
        "deletes": "import builtins\nfor one in list(vars(builtins)):\n    if one[0] != '_': delattr(builtins, one)\nENTRY = 1",
        "signal handlers": """
import signal, sys
for number in range(1, 65):
    try: signal.signal(number, lambda *a: sys.exit(0))
    except (OSError, ValueError): pass
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
def ENTRY(*a, **k): return "no answer"
""",
        "empties its arguments": """
def ENTRY(*a, **k):
    for one in a:
        if hasattr(one, "clear"): one.clear()
    return a[0] if a else None
""",
    },
    "writes to the judge": {
        "writes everywhere": """
import os
def ENTRY(*a, **k):
    for text in (b"00000006[true]", b'\\0\\0\\0\\x06[true]', b"[true]\\n", b'\\0\\0\\0\\x13{"id":1,"value":true}'):
        for number in range(64):
            try: os.write(number, text)
            except OSError: pass
    return "no answer"
""",
        "answers before it is asked": """
import json, os
for n in range(2000):
    for value in (True,):
        data = json.dumps({"id": n, "value": value}).encode()
        for number in range(3, 64):
            try: os.write(number, len(data).to_bytes(4, "big") + data)
            except OSError: pass
def ENTRY(*a, **k): return True
""",
        "threads": """
import os, threading
def work():
    while True:
        for number in range(3, 64):
            try: os.write(number, b"[true]")
            except OSError: pass
def ENTRY(*a, **k):
    for _ in range(50):
        try: threading.Thread(target=work, daemon=True).start()
        except RuntimeError: pass
    return "no answer"
""",
    },
    "harms the machine": {
        "fork bomb": """
import os
def ENTRY(*a, **k):
    while True:
        try: os.fork()
        except OSError: return "no answer"
""",
        "kills": """
import os, signal
def ENTRY(*a, **k):
    for pid in (os.getppid(), -1, 0, os.getpid() + 1, os.getpid() - 1):
        try: os.kill(pid, signal.SIGKILL)
        except OSError: pass
    return "no answer"
""",
    },
    "hangs": {
        "infinite loop": "def ENTRY(*a, **k):\n    while True: pass",
        "infinite loop at once": "def ENTRY(*a, **k): return True\nwhile True: pass",
        "sleeps": "import time\ndef ENTRY(*a, **k): time.sleep(3600)",
        "memory bomb": "def ENTRY(*a, **k):\n    held = []\n    while True: held.append(bytearray(1 << 26))",
        "memory bomb of small things": "def ENTRY(*a, **k):\n    held = [[]]\n    while True: held = [held, held * 1000]",
    },
    "odd values": {
        "huge answer": "def ENTRY(*a, **k): return '9' * (1 << 27)",
        "huge integer": "def ENTRY(*a, **k): return 9 ** 9 ** 7",
        "endless iterator": "import itertools\ndef ENTRY(*a, **k): return itertools.count()",
        "nested for ever": "def ENTRY(*a, **k):\n    x = []\n    x.append(x)\n    return x",
        "nested deeply": "def ENTRY(*a, **k):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
        "colliding keys": "def ENTRY(*a, **k): return {i * (2**61 - 1) for i in range(3000)}",
        "returns its argument's type": "def ENTRY(*a, **k): return type(a[0])() if a else None",
        "NUL": "def ENTRY(*a, **k): return '\0'",
        "lone surrogate": "def ENTRY(*a, **k): return '\ud800'",
        "deeply nested source": "def ENTRY(*a, **k): return " + "-" * 20_000 + "1",
    },
    "raises": {
        "raises": "def ENTRY(*a, **k): raise AssertionError",
        "raises a keyboard interrupt": "def ENTRY(*a, **k): raise KeyboardInterrupt",
        "ends loops": "def ENTRY(*a, **k): raise StopIteration",
        "own exception": "class E(BaseException): pass\ndef ENTRY(*a, **k): raise E",
        "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef ENTRY(*a, **k): return ENTRY(*a, **k)",
    },
}
HANGING = tuple(KINDS["hangs"])
"""Each of them may take all of its time."""
ONLY_CONFINED = ("fork bomb", "kills", "reads files", "threads", "memory bomb", "memory bomb of small things")
"""Those that would harm a machine without the sandbox."""


def calling(source: str, *entries: str) -> str:
    """A program in which `ENTRY` is the first of these names, and the others are the same."""
    first, *others = entries
    return source.replace("ENTRY", first) + "".join(f"\n{other} = {first}" for other in others)
