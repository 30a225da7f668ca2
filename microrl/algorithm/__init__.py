"""Advantages, losses, filters: pure functions of tensors."""
