"""Judges of what is more than an answer to compare: programs against their tests, procedural tasks by their own scorers."""
