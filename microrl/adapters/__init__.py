"""Adapters: attach, and export as plain LoRA pairs."""
