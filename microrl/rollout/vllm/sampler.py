"""Sampling with vLLM while it is awake: requests in, completions out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from microrl import clock
from microrl.rollout.engine import Sampler
from microrl.rollout.requests import Queue, Request
from microrl.types import Completion, Sampling

if TYPE_CHECKING:
    from microrl.rollout.vllm.engine import VllmEngine


class VllmSampler(Sampler):
    """See `Sampler`. `tokens` and `decode_s` add up over what it has sampled."""

    def __init__(self, engine: VllmEngine, version: int) -> None:
        self._engine, self._driver, self._version = engine, engine.driver, version
        self.tokens, self.decode_s = 0, 0.0

    def complete(self, queue: Queue, sampling: Sampling) -> Iterator[tuple[Request, int, Completion]]:
        """See `Sampler.complete`, but on a GPU's older model runner samples also depend on what else is in the batch."""
        with self._engine.fault_named("sampling"):
            self._driver.settle()
            if not self._driver.seeded:
                torch.cuda.manual_seed_all(_seed(queue.stream))
        in_flight: dict[str, tuple[Request, Sequence[int]]] = {}
        """By vLLM's names: a request, and which of its completions it is."""
        while True:
            self._engine.check_deadline()
            if queue.is_over():
                return
            ready = queue.ready(look=self._engine.check_deadline)
            queue.start(ready)
            with self._engine.fault_named("sampling"):
                for request in ready:
                    names = self._driver.sample(request, sampling, self._engine.stops, _seed(request.key))
                    for at, name in enumerate(names):
                        in_flight[name] = request, range(at, request.count, len(names))
            if not in_flight:
                if queue.hurry():
                    continue
                return  # all is done, or the pace lets nothing start any more
            began = clock.now_s()
            with self._engine.fault_named("sampling"):
                finished = self._driver.step()
            self.decode_s += clock.now_s() - began
            self.decode_steps += 1
            for output in finished:
                request, numbers = in_flight.pop(output.request_id)
                completion = self._completion(output.outputs[0])
                for number in numbers:
                    yield request, number, completion

    def _completion(self, output: Any) -> Completion:
        ids, logprobs = tuple(output.token_ids), tuple(output.logprobs.logprobs)
        assert len(ids) == len(logprobs) and output.finish_reason in ("stop", "length"), (len(ids), len(logprobs), output)
        self.tokens += len(ids)
        text = self._engine.tokenizer.decode(ids, skip_special_tokens=True)
        return Completion(ids, logprobs, output.finish_reason, self._version, text)


def _seed(key: tuple[int, ...]) -> int:
    """A number below 2^62 that follows from the key, far from the neighbouring key's."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]) >> 2
