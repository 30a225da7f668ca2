"""Data sets and files to prompts."""
