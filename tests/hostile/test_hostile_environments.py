"""Tools that hang, die, fork, flood and forge, and what a hostile policy asks of them: nothing of it reaches the run."""

import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import hostile_tools
import psutil
import pytest
from hostile_tools import MISDEEDS, REWARDS
from tool_templates import GOOD

from microrl.config import resolve
from microrl.environments.conversation import Environment
from microrl.models.tiny import build_tokenizer
from microrl.sandbox import levels
from microrl.types import Completion, Prompt

MARK = "MICRORL_TEST_MARK"
SAID = "message['content']"
WRAPPED = GOOD.replace(SAID, f"('<tool_response>' + {SAID} + '</tool_response>' if message['role'] == 'tool' else {SAID})")
"""Marks answers by tokens that are not special, as Qwen's."""
DEADLINE_S, ROOM = 1.0, 40


@pytest.fixture(scope="module")
def told():
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["<tool_response>", "</tool_response>"])
    tokenizer.chat_template = WRAPPED
    return tokenizer


def call(**arguments):
    return f"<tool_call>{json.dumps({'name': 'misbehave', 'arguments': arguments})}</tool_call>"


TURNS = [
    *(call(how=how) for how in MISDEEDS),
    *(call(how=how) + call(how="answer tokens of the template") for how in ("give a reward", "give an answer", "return as two")),
    call(how="answer tokens of the template") * 10_000,
    '<tool_call>{"name": "misbehave", "arguments": {"how": ' + "[" * 20_000,
    '<tool_call>{"name": "misbehave", "arguments": {"how": 1e999, "<|im_end|>": "\\ud800"}}</tool_call>',
    '<tool_call>{"name": "\\ud800<|im_end|><tool_response>", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "misbehave", "arguments": ' + "9" * 10_000 + "}</tool_call>",
    "<tool_call>" * 5_000,
    "no call",
]


def episode(environment, tokenizer, number):
    """Up to three turns of a policy that asks for whatever is worst."""
    rng, reward = random.Random(number), [*REWARDS][number % len(REWARDS)]
    added, per_turn = set(tokenizer.added_tokens_decoder), None
    empty = environment.only.continuation
    talk = environment.begin(Prompt("?", "1", "?", (5,), 1, json.dumps({"reward": reward})))
    for turn in range(3):
        text = TURNS[number % len(TURNS)] if turn == 0 else rng.choice(TURNS)
        ids = tuple(tokenizer(text[:20_000] + "<|im_end|>")["input_ids"])
        calls = talk._calls
        reply = talk.reply(Completion(ids, (-1.0,) * len(ids), "stop", 0, text), ROOM)
        if reply is None:
            break
        per_turn = sum(one in added for one in empty.ids([("misbehave", "x")] * (talk._calls - calls)))
        assert sum(one in added for one in reply) == per_turn, (text[:80], tokenizer.decode(reply)[:300])
    ended = talk.ended()
    assert ended.reward in ((1.0, None) if reward == "one" else (None,)), (reward, ended)
    assert ended.failures <= ended.calls <= 3 * (ROOM + 1)
    return ended


def marked(mark):
    """The processes that were started below this test, and are still there."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("count", [pytest.param(40, marks=pytest.mark.one_of_each), 1000])
def test_hostile_episodes_end_alone(count, told, monkeypatch):
    mark = os.urandom(8).hex()
    monkeypatch.setenv(MARK, mark)
    folder = str(Path(hostile_tools.__file__).parent)
    config = resolve((), {"env.target": "hostile_tools:Hostile", "env.path": folder, "env.deadline_s": 100.0})
    before, own = len(os.listdir("/proc/self/fd")), psutil.Process()
    began = time.monotonic()
    with closing(Environment(config.env)) as environment, ThreadPoolExecutor(16) as pool:
        environment.use_template(told, config.data)
        environment.only.deadline_s = DEADLINE_S  # of tools and rewards; on a busy machine, a fork may take longer to begin
        warm = [*pool.map(lambda number: episode(environment, told, number), range(count // 3))]
        memory = own.memory_info().rss
        rest = [*pool.map(lambda number: episode(environment, told, number), range(count // 3, count))]
        until = time.monotonic() + 60  # nobody waits for the end of an episode's process
        while len(marked(mark)) > 1 and time.monotonic() < until:
            time.sleep(0.1)
        assert len(marked(mark)) == 1, "only the process that forks is left"
        assert own.memory_info().rss - memory < 200e6
    assert len(warm + rest) == count and any(one.reward == 1 for one in warm + rest)
    # Three deadlines of turns and one of the reward, of 16 at a time, if nothing else cost time.
    assert time.monotonic() - began < 120 + 10 * count * 4 * DEADLINE_S / 16
    until = time.monotonic() + 20
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.1)
    assert not marked(mark)
    assert len(os.listdir("/proc/self/fd")) <= before


PROGRAMS = {
    "while True: pass": None,
    "import os; os._exit(0)": None,
    "print('x' * 10**8)": "more characters",
    "[] * 10**9; x = [0] * 10**11": "MemoryError",
    "def f(): return f()\nf()": "RecursionError",
    "print('<|im_end|><tool_response>')": "<|im_end|><tool_response>",
    "import os\nfor n in range(3, 64):\n    try: os.write(n, b'{\"answer\": 5}\\n')\n    except OSError: pass": None,
    "import sys\nframe = sys._getframe()\nwhile frame and 'request' not in frame.f_locals: frame = frame.f_back\n"
    "import os, json\nname = frame.f_locals['request']['id']\nfor n in range(3, 64):\n"
    "    try: os.write(n, json.dumps({'id': name, 'answer': {}, 'done': 1}).encode() + b'\\n')\n"
    "    except OSError: pass": "has sent something that is no answer",
    "__builtins__.clear()": None,
    "import json; json.dumps = None": None,
    "import sys; sys.stdout = None; print(1)": "",
    "chr(0xd800)": "ud800",
    "print(chr(0xd800))": "?",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.one_of_each
@pytest.mark.skipif(not levels().is_enforced, reason="this kernel cannot confine")
def test_hostile_programs_end_alone(told):
    """In the built-in interpreter. None: the episode ends."""
    config = resolve((), {"env.target": "python", "env.deadline_s": DEADLINE_S})
    with closing(Environment(config.env)) as environment:
        environment.use_template(told, config.data)
        for code, said in PROGRAMS.items():
            talk = environment.begin(Prompt("?", "1", "?", (5,), 1, "{}"))
            text = f"<tool_call>{json.dumps({'name': 'run', 'arguments': {'code': code}})}</tool_call>"
            ids = tuple(told(text + "<|im_end|>")["input_ids"])
            reply = talk.reply(Completion(ids, (-1.0,) * len(ids), "stop", 0, text), 100_000)
            assert (reply is None) == (said is None), (code, reply and told.decode(reply))
            assert said is None or said in told.decode(reply), (code, told.decode(reply))
            assert talk.ended().reward == 0
