"""What `microrl doctor --measure` runs: its stages, each in a process of its own, and the page."""
