"""The quickstarts' models and tokenizers, built in code: a third of a million parameters, any text, no download."""

from __future__ import annotations

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
MARKUP = ("<think>", "</think>", "\\boxed{")
"""One token each, and ordinary ones: decoding keeps them."""
WORDS = ("What", " is", " +", "system", "user", "assistant", "guess")
"""Whole words of the arithmetic problems; everything else is spelled in bytes."""
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


CALL, END_CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "', '"}}</tool_call>'
"""What stands around the expression in a call of the calculator."""
TOOL_MARKUP = (CALL, END_CALL)
TOOL_TEMPLATE = "{% for tool in tools or () %}{{ tool.function.name + '\n' }}{% endfor %}" + CHAT_TEMPLATE
"""Tells of the tools by their names alone, so that prompts stay short."""


def build_tokenizer(*, calls: bool = False) -> PreTrainedTokenizerFast:
    """Byte-level BPE over all 256 bytes, so that every text goes in and comes out unchanged. `calls`: with tokens and a chat
    template for a calculator."""
    vocabulary = {token: number for number, token in enumerate((PAD, START, END))}
    for byte in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[byte] = len(vocabulary)
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        spelled = word.replace(" ", "\u0120")  # how byte-level BPE writes a space
        left = spelled[0]
        for letter in spelled[1:]:
            if (left, letter) not in merges:
                merges.append((left, letter))
            left += letter
            vocabulary.setdefault(left, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (PAD, START, END)])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP + TOOL_MARKUP * calls])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False, padding_side="left"
    )
    fast.chat_template = TOOL_TEMPLATE if calls else CHAT_TEMPLATE
    return fast


def build_model(tokenizer: PreTrainedTokenizerFast, *, layers: int = 2, seed: int = 0) -> Qwen2ForCausalLM:
    """Qwen2's architecture with hidden size 128, head size 64 and tied embeddings; random weights from `seed`."""
    config = Qwen2Config(
        vocab_size=-(-len(tokenizer) // 8) * 8,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)
