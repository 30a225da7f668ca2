"""The checker's child process: one JSON request a line in, one answer a line out. Run as `python -m`, never imported.

Mathematics on untrusted text can take forever or crash the interpreter, so it happens here, where the parent can kill it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import sys

MEMORY_BYTES = 4 * 1024**3


def main() -> None:
    from math_verify import parse, verify

    # The protocol owns standard output; whatever a library prints goes to standard error.
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    def parsed(text: str) -> list:
        return parse(f"\\boxed{{{text}}}", parsing_timeout=None, raise_on_error=False)

    def symbolic(text: str) -> bool:
        """Whether there is mathematics in it, and not only characters (math-verify returns those as a string)."""
        return any(not isinstance(part, str) for part in parsed(text))

    verify(parsed("\\frac{1}{2}"), parsed("x^2"), timeout_seconds=None)  # what is imported at first use is imported now
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "answer" in request:
                gold, answer = parsed(request["gold"]), parsed(request["answer"])
                result = bool(verify(gold, answer, timeout_seconds=None))
            else:
                result = symbolic(request["gold"])
        except (Exception, RecursionError):
            # Whatever goes wrong inside the mathematics of one answer means "not shown to be right".
            result = False
        print(json.dumps(result), file=replies, flush=True)


if __name__ == "__main__":
    main()
