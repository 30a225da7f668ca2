"""A script: a tiny model that has learnt to write one of two programs by heart, saved beside its questions.

    python writes_programs.py FOLDER

One program is right; the other one leaves 1,100 folders in each other.
"""

import json
import sys
from pathlib import Path

import torch

from microrl.config.data import DataConfig
from microrl.data.load import load_questions
from microrl.models.tiny import build_model, build_tokenizer

RIGHT = "def more(x): return x + 1"
DEEP = "import os\nfor _ in range(1100): os.mkdir('d'); os.chdir('d')"
LOSS = 0.017
"""It knows them by heart: log 2 for the choice, spread over the bytes of both, is 0.013 a byte."""


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [{"text": f"Add one, please. {number}", "test_list": ["assert more(1) == 2"]} for number in range(100, 140)]
    data = folder / "problems.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed=3)
    questions = [
        tokenizer.apply_chat_template([{"role": "user", "content": question.text}], add_generation_prompt=True)["input_ids"]
        for question in load_questions(DataConfig(name=str(data), answer_kind="code"))
    ]
    answers = [tokenizer(f"```python\n{program}\n```{tokenizer.eos_token}")["input_ids"] for program in (RIGHT, DEEP)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    loss = torch.tensor(1.0)
    for step in range(1000):
        question, losses = questions[step % len(questions)], []
        for answer in answers:
            ids, labels = torch.tensor([question + answer]), torch.tensor([[-100] * len(question) + answer])
            losses.append(model(input_ids=ids, labels=labels).loss)
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if loss < LOSS:
            break
    assert loss < LOSS
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
