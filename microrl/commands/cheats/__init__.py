"""Completions that deserve no reward, by the kind of answer that a question has."""
