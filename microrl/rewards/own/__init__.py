"""Reward functions of your own: loaded and called in processes of their own, tried before the run."""
