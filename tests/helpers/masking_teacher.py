"""A model of finite weights that gives some tokens a logit of -inf, as a teacher."""

import torch
from transformers import Qwen2ForCausalLM

from microrl.models.tiny import build_model, build_tokenizer


def make(folder, tokens, weight=-3e38):
    """Write a random model in which these tokens have a product with the final states that is too large: with -3e38 everywhere,
    and with less only where the states are largest. The first number of every state is positive, and is multiplied by it."""
    tokenizer = build_tokenizer()
    tied = build_model(tokenizer, seed=4)
    tied.config.tie_word_embeddings = False
    model = Qwen2ForCausalLM(tied.config)
    model.load_state_dict({**tied.state_dict(), "lm_head.weight": tied.get_input_embeddings().weight.clone()})
    with torch.no_grad():
        model.get_input_embeddings().weight[:, 0] = 3.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[list(tokens)] = 0.0
        model.lm_head.weight[list(tokens), 0] = weight
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
