"""The vLLM engine: asleep while the trainer works, awake with the trainer's newest adapter, and verified to have it.

An adapter goes over from memory, as a pair of factors (swap) or folded into the engine's weights (merge). After each
transfer engine and trainer score the same tokens, and the engine's own buffers are compared with what they should hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from transformers import PreTrainedModel

from microrl import clock
from microrl.config.engine_rules import Mode
from microrl.errors import BrokenTrainer, Doing, EngineFault, Explained, MachineFailure, SyncNotProved, first_line, in_a_new_run
from microrl.limits import TWO_BLOCKS_TOKENS
from microrl.models import gpu
from microrl.models.forward import adapted, kv_bytes_per_token, sequence_logprobs, stop_tokens
from microrl.models.tensors import weight_sharing_copy
from microrl.rollout import sync_check
from microrl.rollout.engine import SyncReport
from microrl.rollout.sync import SyncChoice, Trial
from microrl.rollout.vllm.dense import PRODUCTS
from microrl.rollout.vllm.driver import VllmDriver
from microrl.rollout.vllm.launch import VllmSettings, process_state_kept
from microrl.rollout.vllm.sampler import VllmSampler
from microrl.types import BASE, AdapterSnapshot, LowRank

LESS_THAN_PROMISED = 0.9


class VllmEngine:
    """See `Engine`. One a process: vLLM's sleeping memory allows no second one.

    All that it does with vLLM goes through `driver`: faults are injected there in tests.
    """

    name = "vllm"

    def __init__(
        self, model: PreTrainedModel, tokenizer: Any, settings: VllmSettings, choice: SyncChoice, on_event: Callable[..., None]
    ) -> None:
        self.report = SyncReport(mode="swap")
        self.check_deadline: Callable[[], None] = lambda: None
        self.base = weight_sharing_copy(model)
        self.settings, self.choice, self._on_event = settings, choice, on_event
        self.tokenizer, self.stops = tokenizer, sorted(stop_tokens(model, tokenizer))
        self._sequences = sync_check.sequences(tokenizer)
        self._probe: sync_check.Probe | None = None
        self._is_merged: bool | None = None
        """Whether an update is folded into the engine's weights; None: that is not known, and the next push loads all."""
        self._loaded = False
        """Whether the last push loaded weights, which then are to be compared."""
        self._said: set[bool] = set()
        with self.fault_named("starting"):
            with process_state_kept():
                self.driver = VllmDriver(self.base, self.settings)
            self._sleep()

    @contextmanager
    def awake(self, snapshot: AdapterSnapshot, *, is_training: bool = False) -> Iterator[VllmSampler]:
        """See `Engine.awake`. The process's random generators are on exit what they were on entry."""
        self.report = SyncReport(mode="swap")
        is_proved = False
        with process_state_kept():
            try:
                with self.fault_named("receiving weights"):
                    self._take_over(snapshot, self.choice.next() if is_training else self.choice.decided or "swap")
                is_proved = True
                sampler = VllmSampler(self, snapshot.version)
                yield sampler
            except BaseException:
                if not is_proved:
                    self._is_merged = None  # the next push is of everything
                with suppress(Exception):  # what went wrong first is what matters
                    self.driver.settle()
                    self._sleep()
                raise
            if is_training and not snapshot.is_base:
                report = self.report
                cost = Trial(report.push_s, sampler.tokens, sampler.decode_s, report.gap or 0.0, report.slope)
                self.choice.record("merge" if report.mode == "merge" else "swap", cost)
            with self.fault_named("going to sleep"):
                self.driver.settle()
                self._sleep()

    def score(self, sequences: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        """While awake: how likely the engine finds these sequences. See `AdapterSnapshot.score`."""
        return self.driver.score(sequences)

    def shrink(self) -> float:
        """See `Engine.shrink`. On a GPU a process cannot build vLLM twice: the run goes on in a new one, with less memory."""
        raise self._out_of_memory("sampling", "the caller has no room for what it computes from the samples")

    def close(self) -> None:
        """See `Engine.close`. On a GPU vLLM is left as it is: closing wakes memory first, which fails in its turn where the card
        is full, and the pools of sleeping memory may call a freed allocator ("pure virtual method called" in cumem.py)."""
        if not gpu.is_on_card(self.base):
            self.driver.close()

    @contextmanager
    def fault_named(self, doing: Doing) -> Iterator[None]:
        """Have every error raised inside say that the engine failed, and where (`Explained.fault`).

        Raises MachineFailure for errors of vLLM's own, and for a lack of memory.
        """
        try:
            yield
        except BrokenTrainer:
            raise
        except Explained as error:
            error.fault = self._fault(doing)
            raise
        except Exception as error:
            if gpu.is_out_of_memory(error):
                raise self._out_of_memory(doing, first_line(error)) from error
            failure = MachineFailure(
                f"vLLM failed while {doing}: {type(error).__name__}: {first_line(error)}",
                "run `microrl doctor`, or use --engine auto, which then changes the engine's settings, or --engine transformers",
            )
            failure.fault = self._fault(doing)
            raise failure from error

    def _out_of_memory(self, doing: Doing, reason: str) -> MachineFailure:
        """The error for a lack of memory, with what the run's next process needs to know to take less."""
        failure = MachineFailure(
            f"vLLM ran out of memory while {doing}, with a KV cache of {self.settings.kv_bytes / 1e9:.3g} GB: {reason}",
            in_a_new_run(
                "--set engine.cuda_graphs=false, --engine transformers or a lower --set sampling.max_completion_tokens=N"
            ),
        )
        failure.fault = self._fault(doing, out_of_memory=True)
        return failure

    def _fault(self, doing: Doing, *, out_of_memory: bool = False) -> EngineFault:
        settings = self.settings
        longest = (settings.max_model_len + TWO_BLOCKS_TOKENS) * kv_bytes_per_token(self.base)
        return EngineFault(
            doing,
            cuda_graphs=settings.cuda_graphs and gpu.is_on_card(self.base),
            out_of_memory=out_of_memory,
            kv_gb=settings.kv_bytes / 1e9,
            fits=settings.kv_bytes / longest,
            batch=settings.max_sequences,
        )

    # ---- waking up: weights, push, cache, proof

    def _take_over(self, snapshot: AdapterSnapshot, mode: Mode) -> None:
        with self._timed("wake_s"):
            self._wake("weights")
            if self._probe is None:  # the canary comes first: it says how well the two sides can agree
                self.push(BASE, mode)
                self._wake("kv_cache")
                self._probe = self._calibrate(mode="merge" if self.settings.sync == "merge" else "swap")
        self.push(snapshot, mode)
        with self._timed("wake_s"):
            self._wake("kv_cache")
        reading, failure = self._prove(snapshot, mode)
        if refusal := self.choice.refusal(mode, reading, failure):
            self._on_event("merge put off", refusal, version=snapshot.version, gap=reading.gap, slope=reading.slope)
            mode = "swap"
            self.push(snapshot, mode)
            reading, failure = self._prove(snapshot, mode)
        if failure is not None:
            self._on_event("swap retried", failure, version=snapshot.version, mode=mode, gap=reading.gap, slope=reading.slope)
            self._is_merged = None  # push everything
            self.push(snapshot, mode)
            reading, failure = self._prove(snapshot, mode)
        self.report.mode, self.report.gap, self.report.slope = mode, reading.gap, reading.slope
        if failure is not None:
            slope = "not measurable" if reading.slope is None else f"{reading.slope:.3f}"
            kind = SyncNotProved if math.isfinite(reading.change) else BrokenTrainer
            raise kind(
                f"version {snapshot.version} of the adapter did not reach vLLM in two attempts: {failure}",
                f"probe gap {reading.gap:.3g} nats per token, slope {slope}; nothing was sampled from it. Run `microrl doctor`, "
                f"or {in_a_new_run(self._other_settings(mode, snapshot))}",
            )
        if not snapshot.is_base:
            self._say_what_was_shown(snapshot.version, reading)

    def _say_what_was_shown(self, version: int, reading: sync_check.Reading) -> None:
        """Log once that an update is too small to measure, and once that one is measurable."""
        shown = reading.slope is not None
        if shown in self._said:
            return
        self._said.add(shown)
        change = f"{reading.change:.2g} nats per token"
        if reading.slope is None:
            text = (
                f"the update is still too small to see in log-probabilities ({change}); the bit-by-bit comparison alone decides"
            )
        else:
            text = f"the update is now visible in log-probabilities ({change}); the engine's slope on it is {reading.slope:.3f}"
        self._on_event("probe", text, version=version)

    def push(self, snapshot: AdapterSnapshot, mode: Mode) -> None:
        """Make the engine's weights and adapter those of the snapshot, and forget what was cached under the old ones.

        Only while it is awake. Proves nothing; its seconds are `report.push_s`.
        """
        self.report.push_s = 0.0
        with self._timed("push_s"):
            self.driver.settle()
            merged = not snapshot.is_base and mode == "merge"
            self._loaded = merged or self._is_merged is not False
            if self._loaded:
                self.driver.load(snapshot if merged else BASE)
                self._is_merged = merged
            if snapshot.pairs and mode == "swap":
                self.driver.swap(snapshot.pairs)
            else:
                self.driver.drop_adapters()
            self.driver.reset_cache()

    def _other_settings(self, mode: Mode, snapshot: AdapterSnapshot) -> str:
        """What may help where an update does not arrive; one that has no LoRA pair can only be merged."""
        sync = [] if snapshot.merged else [f"--set engine.sync={'swap' if mode == 'merge' else 'merge'}"]
        sleep = self.settings.sleep
        level = [] if sleep == "off" else [f"--set engine.sleep={'off' if sleep == 1 else 1}"]
        return " or ".join([*sync, *level]) or "--engine transformers"

    # ---- the proof

    def _prove(self, snapshot: AdapterSnapshot, mode: Mode) -> tuple[sync_check.Reading, str | None]:
        """What the probe shows of the engine's present state, and what is wrong with it.

        It is proved against the weights as they were handed over, and read against the trainer's own: the rounding of a merge is
        no fault of the hand-over.
        """
        assert self._probe is not None
        with self._timed("proof_s"):
            engine_N, handed_over_N = self._engine_scores(), self._trainer_scores(snapshot, mode)
            reading = proof = self._probe.read(engine_N, handed_over_N)
            if self._rounds(mode) and snapshot.seed is not None and snapshot.score is not None:
                reading = self._probe.read(engine_N, sync_check.flat(snapshot.score(self._sequences)))
            return reading, self._difference(snapshot, mode) or proof.failure()

    def _calibrate(self, mode: Mode) -> sync_check.Probe:
        """Push a canary, see it in the scores, take it away, see it gone; the floor follows from how close the sides were."""
        base_N = self._trainer_scores(BASE, mode)
        probe = sync_check.Probe(self._engine_scores(), base_N)
        different = self.driver.weights_difference(BASE)
        if different or not probe.base_gap < sync_check.BASE_LIMIT:
            raise SyncNotProved(
                f"vLLM's base model is not the trainer's: {different + ', and' if different else 'the weights are equal, but'} "
                f"the scores differ by {probe.base_gap:.3g} nats per token",
                "check the versions of transformers and vLLM with `microrl doctor`, or use --engine transformers",
            )

        def change_of(pairs: Mapping[str, LowRank]) -> float:
            return float((self._trainer_scores(AdapterSnapshot(0, pairs), "swap") - base_N).abs().mean())

        try:
            pairs = sync_check.canary(self.base, self.settings.targets, self.settings.rank, change_of, probe.canary_change)
        except ArithmeticError as error:
            raise SyncNotProved(
                f"engine and trainer are too far apart on the base model ({probe.base_gap:.3g} nats per token): {error}",
                in_a_new_run("--set model.head_dtype=float32, --set model.dtype=float16 or --engine transformers"),
            ) from error
        canary = AdapterSnapshot(0, pairs)
        self.push(canary, mode)
        seen = probe.read(self._engine_scores(), self._trainer_scores(canary, mode))
        different = self._difference(canary, mode) or seen.slope_failure()
        if different:
            raise SyncNotProved(f"a random test adapter did not reach vLLM: {different}", _other_way(mode))
        probe.calibrate(seen)
        self.push(BASE, mode)
        gone = probe.read(self._engine_scores(), base_N)
        if failure := gone.failure():
            raise SyncNotProved(
                f"a random test adapter was removed from vLLM but still affects the scores: {failure}", _other_way(mode)
            )
        products = self.driver.lora_products
        with_lora = f"; vLLM multiplies by the adapter with {PRODUCTS[products]}" if products else ""
        self._on_event(
            "probe calibrated",
            f"a random test adapter was detected and removed; allowed gap {gone.floor:.3g} nats per token{with_lora}", mode=mode,
            base_gap=probe.base_gap, canary_change=seen.change, canary_gap=seen.gap, canary_slope=seen.slope,
            lora_products=products,
        )  # fmt: skip
        return probe

    def _difference(self, snapshot: AdapterSnapshot, mode: Mode) -> str | None:
        """Compare the engine's own buffers with the snapshot, bit by bit. None: equal, or nothing to compare."""
        merged = mode == "merge"
        if merged or self._loaded:  # otherwise the base is as it was when it was last compared
            different = self.driver.weights_difference(snapshot if merged else BASE)
            if different:
                return different
        return self.driver.adapter_difference(snapshot.pairs) if snapshot.pairs and not merged else None

    def _engine_scores(self) -> torch.Tensor:
        return sync_check.flat(self.driver.score(self._sequences))

    def _trainer_scores(self, snapshot: AdapterSnapshot, mode: Mode) -> torch.Tensor:
        """What this snapshot scores as it is handed over: by the trainer's own forward pass where it has one for these weights,
        and where they are merged and rounded with the rounded ones, bit by bit."""
        if snapshot.score is not None and not self._rounds(mode):
            return sync_check.flat(snapshot.score(self._sequences))
        with adapted(self.base, snapshot, merges=self._rounds(mode)) as model:
            return sync_check.flat(sequence_logprobs(model, self._sequences, fp32_head=self.settings.fp32_head))

    def _rounds(self, mode: Mode) -> bool:
        """Whether what is handed over is rounded to 16 bits."""
        return mode == "merge" and self.base.dtype.itemsize < 4

    # ---- memory

    def _wake(self, what: str) -> None:
        self.report.retaken_bytes += self.driver.wake(what)
        if what == "weights" and self.settings.sleep == 2:
            self._is_merged = None  # what was in them is gone

    def _sleep(self) -> None:
        """Give the memory to the trainer, and see that it was given."""
        with self._timed("sleep_s"):
            self.driver.drop_adapters()
            freed = self.report.freed_bytes = self.driver.sleep()
        level = self.settings.sleep
        promised = self.settings.kv_bytes + (0 if level == "kv" else gpu.weight_bytes(self.base))
        if level != "off" and freed < LESS_THAN_PROMISED * promised:
            self._on_event(
                "warning", f"sleep {level} freed only {freed / 1e9:.1f} of {promised / 1e9:.1f} GB: {gpu.why_memory_stays()}",
                freed_bytes=freed, promised_bytes=promised,
            )  # fmt: skip

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Add the seconds inside to this part of the report, the card's work included."""
        began = clock.now_s()
        yield
        setattr(self.report, part, getattr(self.report, part) + gpu.done_s() - began)


def _other_way(mode: Mode) -> str:
    other = "swap" if mode == "merge" else "merge"
    return f"run `microrl doctor`, or {in_a_new_run(f'--set engine.sync={other}')}"
