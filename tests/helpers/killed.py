"""`python killed.py PLACE COUNT ARGUMENTS...`: microrl, killed (-9) when it comes to a place for the COUNT-th time."""

import os
import signal
import sys

from microrl import files
from microrl.commands import teach
from microrl.evaluation import record
from microrl.policy import policy, sft
from microrl.rollout import decoding, transformers
from microrl.run import checkpoint
from microrl.run.folder import RunFolder
from microrl.train import held_out, saving, screening, validation

PLACES = {
    "generation": (decoding.DecodingBatch, "step"),
    "update": (policy.Policy, "_microbatch"),
    "optimizer": (policy.Policy, "optimizer_step"),
    "sft_step": (sft, "sft_step"),
    "behind the warm-up": (policy.Policy, "forget_moments"),
    "first pass": (screening, "_screen"),
    "behind the first pass": (screening, "_train_on_the_rest"),
    "row": (RunFolder, "log_rollouts"),
    "export of a checkpoint": (checkpoint, "write"),
    "tensors of a checkpoint": (checkpoint, "save_file"),
    "sums of a checkpoint": (files, "sha256"),
    "name of a checkpoint": (checkpoint, "prune"),
    "best": (checkpoint, "publish"),
    "behind best": (saving, "publish_best"),
    "validation": (validation, "_validate"),
    "evaluation": (held_out, "_evaluate"),
    "final": (saving, "save_final"),
    "answers": (transformers._Sampler, "groups"),
    "journal": (record.FileJournal, "add"),
    "a teacher's file": (teach, "_written"),
    "a teacher's record": (teach, "_write_record"),
}


AT = "MICRORL_TEST_KILLED_AT"
IS_APART = __name__ == "__mp_main__"


def kill_at(place: str, count: int) -> None:
    """Wrap the place's function: the call with this number runs, and behind it the process dies, locks, threads and all.

    With one that evaluates apart, the process that started it dies first.
    """
    owner, name = PLACES[place]
    original, calls = getattr(owner, name), [0]

    def wrapped(*arguments, **named):
        result = original(*arguments, **named)
        calls[0] += 1
        if calls[0] == count:
            for process in ([os.getppid()] if IS_APART else []) + [os.getpid()]:
                os.kill(process, signal.SIGKILL)
        return result

    setattr(owner, name, wrapped)


if IS_APART:
    place, at = os.environ[AT].rsplit(" ", 1)
    kill_at(place, int(at))

if __name__ == "__main__":
    os.environ[AT] = f"{sys.argv[1]} {sys.argv[2]}"
    kill_at(sys.argv[1], int(sys.argv[2]))
    sys.argv[1:3] = []
    from microrl.cli import main

    main()
