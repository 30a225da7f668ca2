"""Custom reward functions: loaded and called in processes of their own, tried before the run."""
