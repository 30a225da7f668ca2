"""A tiny model that has been shown how to call a calculator for sums, and how to answer without."""

import json
import random

import torch
from tool_templates import BRIEF

from microrl.data import arithmetic
from microrl.data.prompts import render
from microrl.environments.template import Continuation
from microrl.models.tiny import build_model, build_tokenizer

SCHEMA = {"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}
CALL = '<tool_call>{{"name": "add", "arguments": {{"a": {}, "b": {}}}}}</tool_call>'


def save(folder, *, steps=120, batch=16):
    """Train it and save it with its tokenizer; about half of its completions are calls."""
    tokenizer = build_tokenizer()
    tokenizer.chat_template = BRIEF
    model = build_model(tokenizer, seed=3).train()
    continuation, problems, rng = Continuation(tokenizer, [SCHEMA], None), arithmetic.problems(), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two of them, on a busy machine, take ten times as long
    for step in range(steps):
        rows = [shown(*rng.choice(problems), tokenizer, continuation, calls=rng.random() < 0.6) for _ in range(batch)]
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


def shown(question, answer, tokenizer, continuation, *, calls):
    """Tokens, and those of them that the model is to write (else -100)."""
    prompt = list(render(question, answer, tokenizer, None, tools=[SCHEMA]).token_ids)
    boxed = tokenizer(f"\\boxed{{{answer}}}<|im_end|>")["input_ids"]
    if not calls:
        return prompt + boxed, [-100] * len(prompt) + boxed
    call = tokenizer(CALL.format(*question.removeprefix("What is ").removesuffix("?").split(" + ")) + "<|im_end|>")["input_ids"]
    tool = continuation.ids([("add", answer)])
    ids, labels = prompt + call + tool + boxed, [-100] * len(prompt) + call + [-100] * len(tool) + boxed
    assert len(ids) == len(labels) and json.loads(tokenizer.decode(call)[11:-22])
    return ids, labels
