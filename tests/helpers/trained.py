"""What a run has trained, by the trainer's own forward pass: what an export is compared with."""

import json

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from microrl.adapters.attach import attach
from microrl.config import check


@torch.no_grad()
def logits(model, ids):
    return model(input_ids=ids).logits


def trained_logits(run, model_folder, ids):
    """The base's, and the trainer's own forward: the adapter as PEFT computes it, with the state of the last checkpoint."""
    config = check(json.loads((run / "config.json").read_text()))
    model = AutoModelForCausalLM.from_pretrained(model_folder).requires_grad_(False).eval()
    before = logits(model, ids)
    attached = attach(model, config.adapter, seed=config.seed)
    attached.load(load_file(sorted((run / "checkpoints").glob("step-*"))[-1] / "adapter.safetensors"), run)
    return before, logits(model, ids)
