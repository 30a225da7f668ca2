"""GSPO (Zheng et al. 2025): one ratio for all tokens of a completion. Its tight clips are its keys' defaults."""

from __future__ import annotations

from microrl.algorithm import grpo


class Algorithm(grpo.Algorithm):
    per_sequence = True
