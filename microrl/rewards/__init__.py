"""From text to scores: format, accuracy, length. What can hang runs in a child that can be killed.

Nothing is imported here: every such child is a process that imports its own module of this package, and little else.
"""
