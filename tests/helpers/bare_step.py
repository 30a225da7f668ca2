"""What the torch calls of one training step of a small model take by themselves: about the least that a step made of them takes.

    OMP_NUM_THREADS=1 python tests/helpers/bare_step.py

The quickstart's shape, 4 prompts x 8 completions of 64 tokens, LoRA of rank 64, float32: the work of
`microrl bench peer --pairs 5 --steps 5`. Left out are positions, padding, entropies, clipping, the checks of answers, and all
Python but these lines.
"""

from __future__ import annotations

import time

import torch
from torch.nn import functional

WIDTH, INNER, HEADS, KV_HEADS, HEAD_WIDTH, LAYERS, VOCABULARY = 128, 256, 2, 1, 64, 2, 288
ROWS, PROMPTS, PROMPT_TOKENS, TOKENS, RANK = 32, 4, 25, 64, 64
SHAPES = {
    "q": (HEADS * HEAD_WIDTH, WIDTH), "k": (KV_HEADS * HEAD_WIDTH, WIDTH), "v": (KV_HEADS * HEAD_WIDTH, WIDTH),
    "o": (WIDTH, HEADS * HEAD_WIDTH), "gate": (INNER, WIDTH), "up": (INNER, WIDTH), "down": (WIDTH, INNER),
}  # fmt: skip


def norm(x):
    return functional.rms_norm(x, (WIDTH,))


@torch.no_grad()
def sample(layers, head):
    """Decode the completions, one token a row at a time."""
    shape = (ROWS, KV_HEADS, PROMPT_TOKENS + TOKENS, HEAD_WIDTH)
    caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in layers]
    tokens = torch.zeros(ROWS, dtype=torch.long)
    for place in range(PROMPT_TOKENS, PROMPT_TOKENS + TOKENS):
        x = head[tokens]
        for weights, (keys, values) in zip(layers, caches):
            normed = norm(x)
            keys[:, :, place] = (normed @ weights["k"].t()).view(ROWS, KV_HEADS, HEAD_WIDTH)
            values[:, :, place] = (normed @ weights["v"].t()).view(ROWS, KV_HEADS, HEAD_WIDTH)
            query, seen = (normed @ weights["q"].t()).view(ROWS, HEADS, 1, HEAD_WIDTH), slice(0, place + 1)
            out = functional.scaled_dot_product_attention(query, keys[:, :, seen], values[:, :, seen], enable_gqa=True)
            x = x + out.reshape(ROWS, -1) @ weights["o"].t()
            normed = norm(x)
            x = x + (functional.silu(normed @ weights["gate"].t()) * (normed @ weights["up"].t())) @ weights["down"].t()
        cumulative = (norm(x) @ head.t()).softmax(-1).cumsum(-1)
        tokens = torch.searchsorted(cumulative, torch.rand(ROWS, 1)).clamp(max=VOCABULARY - 1).squeeze(1)


def update(layers, adapters, head, optimizer):
    """Forward and backward pass of the completions, and of each prompt once; one step of the optimizer."""
    x, rows = torch.randn(ROWS * TOKENS + PROMPTS * PROMPT_TOKENS, WIDTH), ROWS * TOKENS
    length = PROMPT_TOKENS + TOKENS
    mask = torch.full((TOKENS, length), float("-inf")).triu_(PROMPT_TOKENS + 1)
    for weights, pairs in zip(layers, adapters):

        def linear(rows, name, weights=weights, pairs=pairs):
            A, B = pairs[name]
            return rows @ torch.addmm(weights[name], B, A).t()  # merged: at this rank the fewest multiplications

        def seen(states):
            """Of each completion: its prompt's, then its own."""
            prompts = states[rows:].view(PROMPTS, PROMPT_TOKENS, KV_HEADS, HEAD_WIDTH).repeat_interleave(ROWS // PROMPTS, dim=0)
            return torch.cat([prompts, states[:rows].view(ROWS, TOKENS, KV_HEADS, HEAD_WIDTH)], dim=1).transpose(1, 2)

        normed = norm(x)
        query, keys, values = (linear(normed, name) for name in "qkv")
        own = query[:rows].view(ROWS, TOKENS, HEADS, HEAD_WIDTH).transpose(1, 2)
        out = functional.scaled_dot_product_attention(own, seen(keys), seen(values), attn_mask=mask, enable_gqa=True)
        # The prompts' own attention, a twentieth of the rows, is left out.
        x = x + linear(torch.cat([out.transpose(1, 2).reshape(rows, -1), query[rows:]]), "o")
        normed = norm(x)
        x = x + linear(functional.silu(linear(normed, "gate")) * linear(normed, "up"), "down")
    (norm(x[:rows]) @ head.t()).log_softmax(-1)[:, 0].sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def least_ms(call, *arguments, times=20):
    """Milliseconds of the fastest of several calls."""
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        call(*arguments)
        spent.append(time.perf_counter() - began)
    return min(spent) * 1e3


def main():
    torch.manual_seed(0)
    layers = [{name: torch.randn(shape) * 0.05 for name, shape in SHAPES.items()} for _ in range(LAYERS)]
    adapters = [
        {
            name: (torch.randn(RANK, width, requires_grad=True), torch.zeros(height, RANK, requires_grad=True))
            for name, (height, width) in SHAPES.items()
        }
        for _ in range(LAYERS)
    ]
    head = torch.randn(VOCABULARY, WIDTH) * 0.05
    optimizer = torch.optim.AdamW([factor for pairs in adapters for pair in pairs.values() for factor in pair], fused=True)
    sampling, updating = least_ms(sample, layers, head), least_ms(update, layers, adapters, head, optimizer)
    print(f"sampling {sampling:.0f} ms, update {updating:.0f} ms, together {sampling + updating:.0f} ms")


if __name__ == "__main__":
    main()
