"""Training: setup, the supervised phase, the loop and its step, validation, the guard, saving."""
