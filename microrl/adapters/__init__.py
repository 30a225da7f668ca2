"""Adapters: on a model, at their starts, and out again as plain LoRA pairs or merged tensors."""
