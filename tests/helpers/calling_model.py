"""Tiny models that have been shown how to use tools, well or badly. What pays, reinforcement learning has to find out."""

import json
import random

import torch
from tool_templates import BRIEF

from microrl.data import arithmetic
from microrl.data.prompts import render
from microrl.environments.builtin.higher_lower import HigherLower
from microrl.environments.template import Continuation
from microrl.models.tiny import build_model, build_tokenizer

SUMS = arithmetic.problems()
CALL = '<tool_call>{{"name": "add", "arguments": {{"a": {}, "b": {}}}}}</tool_call>'
RUN, END_RUN = '<tool_call>{"name": "run", "arguments": {"code": "', '"}}</tool_call>'
GUESS, END_GUESS = '<tool_call>{"name": "guess", "arguments": {"number": ', "}}</tool_call>"
GAMES = [{"question": f"Game {n}?", "low": 1 + n % 2, "high": 8 + n % 2} for n in range(10, 100)]


def sums(rng):
    """A calculator is called, or the sum is guessed; about half of the completions are calls."""
    question, answer = rng.choice(SUMS)
    boxed = (f"\\boxed{{{answer}}}", [])
    if rng.random() >= 0.6:
        return question, [boxed]
    call = CALL.format(*terms(question))
    assert json.loads(call.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    return question, [(call, [("add", answer)]), boxed]


def sums_to_be_boxed(rng):
    """Asked as `microrl bench` asks them."""
    question, turns = sums(rng)
    return f"{question} Put the final answer in \\boxed{{}}.", turns


def programs(rng):
    """The sum becomes a variable, which the next program shows; or it is guessed, two times in three."""
    question, answer = rng.choice(SUMS)
    boxed = (f"\\boxed{{{answer}}}", [])
    if rng.random() >= 1 / 3:
        return question, [boxed]
    first, second = f"{RUN}x={'+'.join(terms(question))}{END_RUN}", f"{RUN}x{END_RUN}"
    return question, [(first, [("run", "(no output)")]), (second, [("run", answer)]), boxed]


def games(rng):
    """Any numbers of the range are guessed, without looking at the replies; two times in three, only once."""
    game, row = HigherLower(), rng.choice(GAMES)
    numbers = range(row["low"], row["high"] + 1)
    game.reset(row["low"], row["high"], str(rng.choice(numbers)))
    turns, is_keen = [], rng.random() < 1 / 3
    while not game.is_right:
        number = rng.choice(numbers)
        reply = game.guess(number)
        if game.done:
            return row["question"], [*turns, (f"{GUESS}{number}{END_GUESS}", [])]
        turns.append((f"{GUESS}{number}{END_GUESS}", [("guess", reply)]))
        if not is_keen:
            break
    return row["question"], [*turns, (f"\\boxed{{{game.secret if game.is_right else rng.choice(numbers)}}}", [])]


def terms(question):
    return question.removeprefix("What is ").removesuffix("?").split(" + ")


def save(folder, lesson=sums, *, tool="add", markup=(), steps=120, batch=16):
    """Train a model on what the lesson draws, a question and turns with the answers to them, and save it with its tokenizer."""
    tokenizer = build_tokenizer()
    tokenizer.chat_template = BRIEF
    tokenizer.add_tokens(list(markup))
    model = build_model(tokenizer, seed=3).train()
    schema = {"type": "function", "function": {"name": tool, "description": "", "parameters": {}}}
    continuation, rng = Continuation(tokenizer, [schema], None), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two of them, on a busy machine, take ten times as long
    for step in range(steps):
        rows = [shown(*lesson(rng), schema, tokenizer, continuation) for _ in range(batch)]
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids, _ in rows])
        labels = torch.tensor([[*labels, *[-100] * (width - len(labels))] for _, labels in rows])
        model(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 3e-3 * min((step + 1) / 20, 1.0, (steps - step) / steps + 0.1)
        optimizer.step()
        optimizer.zero_grad()
    torch.set_num_threads(threads)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def shown(question, turns, schema, tokenizer, continuation):
    """Tokens, and those of them that the model is to write (else -100)."""
    ids = list(render(question, "", tokenizer, None, tools=[schema]).token_ids)
    labels = [-100] * len(ids)
    for said, answers in turns:
        turn = tokenizer(f"{said}<|im_end|>")["input_ids"]
        heard = continuation.ids(answers) if answers else []
        ids += turn + heard
        labels += turn + [-100] * len(heard)
    return ids, labels
