"""Runs: setup, step, loop, warm-up."""
