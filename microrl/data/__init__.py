"""Read data sets and files, and render their questions as prompts."""
