"""The vLLM engine: in this process, asleep while the trainer works, awake with the trainer's newest adapter, and proved so.

vLLM never reads weights from disk: it starts on dummies, and the trainer's own tensors are pushed into it. Everything that
depends on vLLM's version is in this file, found out by looking at what is there (0.26 to 0.33).
"""

from __future__ import annotations

import copy
import gc
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from microrl.errors import SwapNotProved, UserError
from microrl.rollout import gpu, proof
from microrl.rollout.base_model import adapted, sequence_logprobs, stop_tokens, twin, weights
from microrl.rollout.engine import SyncReport
from microrl.rollout.sync import Mode, SyncChoice, Trial
from microrl.types import BASE, AdapterSnapshot, Completion, Group, LowRank, Prompt, Sampling

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The sizes of adapter buffers that vLLM has kernels for."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process: the weights are handed over as tensors
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer wants its cores back
    "VLLM_HOST_IP": "127.0.0.1",  # one process: nothing needs to be reached from outside
    "VLLM_NO_USAGE_STATS": "1",
}
LESS_THAN_PROMISED = 0.9


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """What the engine is built for. `targets` are the adapted layers' names, `rank` the most they get."""

    targets: tuple[str, ...]
    rank: int
    max_model_len: int
    max_sequences: int
    kv_bytes: int
    sync: str
    sleep: str | int
    """kv, 1, 2 or off."""
    memory_share: float = 0.0
    """Of the card, for vLLM's own bookkeeping; a CPU has none."""
    cuda_graphs: bool = True
    fp32_head: bool = False


class VllmEngine:
    """See `Engine`. One a process: vLLM's sleeping memory allows no second one."""

    name = "vllm"

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        settings: VllmSettings,
        choice: SyncChoice,
        on_event: Callable[..., None],
    ) -> None:
        self.report = SyncReport(mode="swap")
        self._base = twin(model)
        self._settings, self._choice, self._on_event = settings, choice, on_event
        self._cuda = model.device.type == "cuda"
        self._tokenizer, self._stops = tokenizer, sorted(stop_tokens(model, tokenizer))
        self._sequences = proof.sequences(tokenizer)
        self._probe: proof.Probe | None = None
        self._folded: bool | None = None
        """Whether an update is folded into the engine's weights; None: they are not the trainer's at all."""
        self._request: Any = None
        self._adapters = self._requests = 0
        self._unfinished: set[str] = set()
        with _process_state_kept():
            self._folder, self._llm = _start(self._base, settings, cuda=self._cuda)
        self._engine = self._llm.llm_engine
        self._runner = self._engine.model_executor.driver_worker.model_runner
        self._seeded = not self._cuda or bool(getattr(self._engine.vllm_config, "use_v2_model_runner", False))
        """Whether a seed of its own costs a request nothing: the older runner draws such rows one by one."""
        self._sleep()

    @contextmanager
    def awake(self, snapshot: AdapterSnapshot, *, trial: bool = False) -> Iterator[_Sampler]:
        """See `Engine.awake`. The process's random generators are on exit what they were on entry."""
        self.report = SyncReport(mode=self._choice.decided or "swap")
        with _process_state_kept():
            try:
                self._take_over(snapshot, self._choice.next() if trial else self._choice.decided or "swap")
                sampler = _Sampler(self, snapshot.version)
                yield sampler
                if trial and snapshot.pairs:
                    report = self.report
                    cost = Trial(report.push_s, sampler.tokens, sampler.decode_s, report.gap or 0.0, report.slope)
                    self._choice.record("merge" if report.mode == "merge" else "swap", cost)
            finally:
                self._abort()
                began = time.perf_counter()
                self._sleep()
                self.report.sleep_s = time.perf_counter() - began

    def close(self) -> None:
        """Take the engine down and free its memory, on the card too."""
        from vllm.distributed import cleanup_dist_env_and_memory

        self._engine.model_executor.shutdown()
        del self._llm, self._engine, self._runner
        gc.collect()
        cleanup_dist_env_and_memory()
        self._folder.cleanup()

    # ---- waking up: weights, push, cache, proof

    def _take_over(self, snapshot: AdapterSnapshot, mode: Mode) -> None:
        began = time.perf_counter()
        self._wake("weights")
        if self._probe is None:  # the canary comes first: it says how well the two sides can agree
            self._push(BASE, mode)
            self._wake("kv_cache")
            self._calibrate()
        self.report.wake_s = time.perf_counter() - began
        self._time_push(snapshot, mode)
        began = time.perf_counter()
        self._wake("kv_cache")
        self.report.wake_s += time.perf_counter() - began
        reading, fault = self._prove(snapshot, mode)
        if not self._choice.admit(mode, reading):
            mode = "swap"
            self._time_push(snapshot, mode)
            reading, fault = self._prove(snapshot, mode)
        if fault is not None:
            self._on_event("swap retried", fault, version=snapshot.version, mode=mode, gap=reading.gap, slope=reading.slope)
            self._folded = None
            self._time_push(snapshot, mode)
            reading, fault = self._prove(snapshot, mode)
        self.report.mode, self.report.gap, self.report.slope = mode, reading.gap, reading.slope
        if fault is not None:
            raise SwapNotProved(
                f"version {snapshot.version} of the adapter did not reach vLLM, twice: {fault}",
                f"probe gap {reading.gap:.3g} (floor {reading.floor:.3g}), slope {reading.slope}; nothing was sampled from it. "
                "Try the other way (--set sync.mode=merge or swap) or another sleep level, and see `microrl doctor`",
            )

    def _time_push(self, snapshot: AdapterSnapshot, mode: Mode) -> None:
        began = time.perf_counter()
        self._push(snapshot, mode)
        self._synchronize()
        self.report.push_s = time.perf_counter() - began

    def _push(self, snapshot: AdapterSnapshot, mode: Mode) -> None:
        """Make the engine's weights and adapter those of the snapshot, and forget what was cached under the old ones."""
        self._request = None
        merged = bool(snapshot.pairs) and mode == "merge"
        if merged or self._folded is not False:
            self._load(snapshot.pairs if merged else {})
            self._folded = merged
        if snapshot.pairs and mode == "swap":
            self._request = self._swap(snapshot)
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM would not reset its prompt cache: requests of an earlier step are still in it")

    def _load(self, pairs: Any) -> None:
        """Every weight of the trainer's base, with these updates folded, into the engine's own memory."""
        with torch.no_grad():
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights(self._base, pairs)})
            head: Any = getattr(self._runner.model, "lm_head", None)
            if hasattr(head, "cpu_linear"):  # a CPU keeps a packed copy, which a tied head is not told to renew
                head.quant_method.process_weights_after_loading(head)

    def _swap(self, snapshot: AdapterSnapshot) -> Any:
        """The pairs as a new adapter of the engine's, from memory. Under a new number and name, so that nothing cached fits."""
        from vllm.lora.lora_weights import LoRALayerWeights
        from vllm.lora.request import LoRARequest

        manager, model_class = self._manager(), _lora_model_class()
        for old in list(manager.list_adapters()):
            manager.remove_adapter(old)
        self._adapters += 1
        layers = {}
        for name, pair in snapshot.pairs.items():
            A_RI, B_OR = self._served(pair)
            # The scale is in B already. Told of a scale, vLLM would multiply it into the tensor it is given, in place.
            layers[name] = LoRALayerWeights(name, A_RI.shape[0], A_RI.shape[0], A_RI, B_OR)
        manager.add_adapter(model_class(self._adapters, self._settings.rank, layers))
        manager.activate_adapter(self._adapters)
        return LoRARequest(f"version-{snapshot.version}-{self._adapters}", self._adapters, lora_path="in-memory")

    def _served(self, pair: LowRank) -> tuple[torch.Tensor, torch.Tensor]:
        """The factors as the engine holds them, in tensors of their own: its type, its device, the scale in B."""
        dtype, device = self._manager().lora_config.lora_dtype, self._base.device
        A_RI = pair.A_RI.detach().to(device, dtype, copy=True)
        return A_RI, (pair.B_OR.detach().float() * pair.scale).to(device, dtype)

    def _manager(self) -> Any:
        return self._runner.lora_manager._adapter_manager

    # ---- the proof

    def _calibrate(self) -> None:
        """Push a canary, see it in the scores, take it away, see it gone; the floor follows from how close the sides were."""
        mode: Mode = "merge" if self._settings.sync == "merge" else "swap"
        base_N = proof.flat(self._reference(BASE))
        probe = proof.Probe(proof.flat(self.score(self._sequences)), base_N)
        different = self._first_difference(BASE, "merge")
        if different or not probe.base_gap < proof.BASE_LIMIT:
            raise SwapNotProved(
                f"vLLM's base model is not the trainer's: {different or 'the weights are equal, but'} the scores differ by "
                f"{probe.base_gap:.3g} nats a token",
                "is the architecture one that both support? `microrl doctor` shows the versions",
            )

        def change_of(pairs: Any) -> float:
            return float((proof.flat(self._reference(AdapterSnapshot(0, pairs))) - base_N).abs().mean())

        pairs = proof.canary(self._base, self._settings.targets, self._settings.rank, change_of, probe.canary_change)
        canary = AdapterSnapshot(0, pairs)
        self._push(canary, mode)
        reading = probe.read(proof.flat(self.score(self._sequences)), proof.flat(self._reference(canary)))
        different = self._first_difference(canary, mode)
        probe.calibrate(reading)
        seen = reading.slope is not None and proof.LOWEST_SLOPE <= reading.slope <= proof.HIGHEST_SLOPE
        self._push(BASE, mode)
        left = probe.read(proof.flat(self.score(self._sequences)), base_N)
        if different or not seen or left.fault() is not None:
            raise SwapNotProved(
                "the canary adapter " + (f"did not arrive: {different or reading.fault()}" if different or not seen else
                                         f"was taken away and is still in the scores (gap {left.gap:.3g})"),
                f"mode {mode}, slope {reading.slope}; try the other one: --set sync.mode=merge or swap",
            )  # fmt: skip
        self._probe = probe
        self._on_event(
            "probe calibrated", f"canary seen and gone; the floor is {reading.floor:.3g} nats a token", mode=mode,
            base_gap=probe.base_gap, canary_change=reading.change, canary_gap=reading.gap, canary_slope=reading.slope,
        )  # fmt: skip

    def _prove(self, snapshot: AdapterSnapshot, mode: Mode) -> tuple[proof.Reading, str | None]:
        """What the probe shows of the engine's present state, and what is wrong with it."""
        began = time.perf_counter()
        assert self._probe is not None
        reading = self._probe.read(proof.flat(self.score(self._sequences)), proof.flat(self._reference(snapshot)))
        different = self._first_difference(snapshot, mode)
        self.report.proof_s += time.perf_counter() - began
        return reading, different or reading.fault()

    def _reference(self, snapshot: AdapterSnapshot) -> list[torch.Tensor]:
        """The trainer's scores: its own forward pass where it has one for these weights."""
        if snapshot.score is not None:
            return snapshot.score(self._sequences)
        with adapted(self._base, snapshot.pairs) as model:
            return sequence_logprobs(model, self._sequences, fp32_head=self._settings.fp32_head)

    def score(self, sequences: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        """Log-probabilities of each sequence's second token to its last under the weights in force, while awake.

        As `AdapterSnapshot.score`, by the path that prompts take.
        """
        from vllm import SamplingParams

        settings = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        names = [self._add(ids, settings) for ids in sequences]
        found: dict[str, torch.Tensor] = {}
        for output in self._finished():
            ids, scores = output.prompt_token_ids, output.prompt_logprobs
            found[output.request_id] = torch.tensor([scores[i][ids[i]].logprob for i in range(1, len(ids))])
        return [found[name] for name in names]

    def _first_difference(self, snapshot: AdapterSnapshot, mode: Mode) -> str | None:
        """Compare the engine's own buffers with the snapshot, bit by bit. None: equal, or nothing to compare."""
        if mode == "merge":
            for name, expected in weights(self._base, snapshot.pairs):
                if not torch.equal(self._stored(name, len(expected)), expected):
                    return f"`{name}` in vLLM's memory is not the trainer's"
            return None
        if not snapshot.pairs:
            return None
        manager = self._manager()
        if self._request is None or self._request.lora_int_id not in manager.lora_index_to_id:
            return "no adapter of this version is active in vLLM"
        slot = manager.lora_index_to_id.index(self._request.lora_int_id)
        parts = {part: (name, i) for name, names in manager.packed_modules.items() for i, part in enumerate(names)}
        for name, pair in snapshot.pairs.items():
            whole, i = parts.get(name, (name, 0))
            if whole not in manager.modules:
                return f"`{name}` has no adapter in vLLM"
            A_RI, B_OR = self._served(pair)
            R = len(A_RI)
            A_LI, B_OL = manager.modules[whole].lora_a_stacked[i][slot, 0], manager.modules[whole].lora_b_stacked[i][slot, 0]
            if not (torch.equal(A_LI[:R], A_RI) and torch.equal(B_OL[:, :R], B_OR)) or A_LI[R:].any() or B_OL[:, R:].any():
                return f"the adapter of `{name}` in vLLM's memory is not the trainer's"
        return None

    def _stored(self, name: str, rows: int) -> torch.Tensor:
        """A parameter as the engine holds it, by the name that the trainer has for it: its rows of what vLLM keeps in one."""
        model = self._runner.model
        module, _, leaf = name.rpartition(".")
        parent, _, last = module.rpartition(".")
        packed = next((key for key, parts in getattr(model, "packed_modules_mapping", {}).items() if last in parts), None)
        holder = model.get_submodule(f"{parent}.{packed}" if packed else module)
        holder = getattr(holder, "base_layer", holder)
        tensor = getattr(holder, leaf).data
        if tensor.numel() == 0:  # a CPU keeps it packed only: ask for the products with the unit vectors
            eye = torch.eye(holder.input_size, dtype=self._base.dtype)
            tensor = holder.quant_method.apply(holder, eye, None).t()
        if packed is None:
            return tensor[:rows]  # vocabularies are padded
        position = model.packed_modules_mapping[packed].index(last)
        start = sum(holder.output_sizes[:position])
        return tensor[start : start + holder.output_sizes[position]]

    # ---- memory

    def _wake(self, what: str) -> None:
        """Take memory back: `weights` or `kv_cache`. Without sleep, or where it was not freed, nothing happens."""
        level = self._settings.sleep
        if level == "off" or not self._engine.is_sleeping() or (what == "weights" and level == "kv"):
            return
        free = torch.cuda.mem_get_info()[0]
        self._engine.wake_up([what])
        if what == "weights" and level == 2:
            self._folded = None  # what was in them is gone
        self.report.retaken_bytes += free - torch.cuda.mem_get_info()[0]

    def _sleep(self) -> None:
        """Give the memory to the trainer, and see that it was given."""
        level = self._settings.sleep
        self._request = None
        if self._settings.sync != "merge":
            for adapter in list(self._manager().list_adapters()):
                self._manager().remove_adapter(adapter)
        if level == "off":
            return
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        if level == "kv":
            self._engine.sleep(0)
            self._engine.release_kv_cache_memory()
        else:
            self._engine.sleep(level)
        torch.cuda.empty_cache()
        freed = self.report.freed_bytes = torch.cuda.mem_get_info()[0] - free
        promised = self._settings.kv_bytes + (0 if level == "kv" else gpu.weight_bytes(self._base))
        if freed < LESS_THAN_PROMISED * promised:
            self._on_event(
                "warning", f"sleep {level} freed {freed / 1e9:.1f} GB of {promised / 1e9:.1f}: {gpu.why_memory_stays()}",
                freed_bytes=freed, promised_bytes=promised,
            )  # fmt: skip

    def _synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()

    # ---- requests

    def _add(self, ids: Sequence[int], settings: Any) -> str:
        """Queue a request under a name of its own, with the adapter in force."""
        self._requests += 1
        name = str(self._requests)
        self._engine.add_request(name, {"prompt_token_ids": list(ids)}, settings, lora_request=self._request)
        self._unfinished.add(name)
        return name

    def _finished(self) -> Iterator[Any]:
        """Drive vLLM step by step until nothing is left, and pass each request on as soon as it is finished."""
        while self._unfinished:
            for output in self._engine.step():
                if output.finished:
                    self._unfinished.discard(output.request_id)
                    yield output

    def _abort(self) -> None:
        """Take back what is still being decoded."""
        if self._unfinished:
            self._engine.abort_request(list(self._unfinished))
            self._unfinished.clear()


class _Sampler:
    """See `Sampler`. `tokens` and `decode_s` add up over what it has sampled."""

    def __init__(self, owner: VllmEngine, version: int) -> None:
        self._owner, self._version = owner, version
        self.tokens, self.decode_s = 0, 0.0

    def groups(self, prompts: Sequence[Prompt], sampling: Sampling, *, stream: tuple[int, ...]) -> Iterator[tuple[int, Group]]:
        """See `Sampler.groups`. On a GPU's older model runner the randomness follows from the stream and the whole batch."""
        owner = self._owner
        owner._abort()
        if not owner._seeded:
            torch.cuda.manual_seed_all(_seed(stream))
        waiting = {
            owner._add(prompt.token_ids, self._settings(sampling, _seed((*stream, position)))): position
            for position, prompt in enumerate(prompts)
        }
        began = time.perf_counter()
        for output in owner._finished():
            self.decode_s += time.perf_counter() - began
            position = waiting.pop(output.request_id)
            yield position, Group(prompts[position], tuple(self._completion(one) for one in output.outputs))
            began = time.perf_counter()

    def _settings(self, sampling: Sampling, seed: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            n=sampling.group_size,
            seed=seed if self._owner._seeded else None,  # the n-th completion gets the seed plus n
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            stop_token_ids=self._owner._stops,
            logprobs=0,  # the sampled token's own, at the sampling temperature
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _completion(self, output: Any) -> Completion:
        ids = tuple(output.token_ids)
        self.tokens += len(ids)
        logprobs = tuple(output.logprobs.logprobs)
        assert len(ids) == len(logprobs) and output.finish_reason in ("stop", "length"), (len(ids), len(logprobs), output)
        text = self._owner._tokenizer.decode(ids, skip_special_tokens=True)
        return Completion(ids, logprobs, output.finish_reason, self._version, text)


def _import() -> Any:
    """vLLM, with the environment that it must find. Raises UserError where it cannot be imported."""
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        import vllm
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise UserError(
            f"vLLM is installed but cannot be imported: {str(error).strip().splitlines()[0]}",
            "its torch and yours may not go together: see `microrl doctor`, or take --engine transformers",
        ) from error
    return vllm


def _start(model: PreTrainedModel, settings: VllmSettings, *, cuda: bool) -> tuple[Any, Any]:
    """A running engine on dummy weights, and the folder with its configuration. Raises UserError where vLLM refuses."""
    vllm = _import()
    folder = tempfile.TemporaryDirectory(prefix="microrl-vllm-")
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder.name)
    options: dict[str, Any] = {
        "model": folder.name,
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "dtype": str(model.dtype).removeprefix("torch."),
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_sequences,
        "kv_cache_memory_bytes": settings.kv_bytes,
        "enforce_eager": not (cuda and settings.cuda_graphs),
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "generation_config": "vllm",
        "disable_log_stats": True,
        "seed": 0,
    }
    if settings.sync != "merge":
        options |= {
            "enable_lora": True,
            "max_loras": 1,
            "max_cpu_loras": 1,
            "max_lora_rank": next(size for size in LORA_RANKS if size >= settings.rank),
            "lora_target_modules": sorted({name.rsplit(".", 1)[-1] for name in settings.targets}),
        }
    if settings.fp32_head:
        options["hf_overrides"] = {"head_dtype": "float32"}
    if cuda:
        options |= {"enable_sleep_mode": settings.sleep != "off", "gpu_memory_utilization": settings.memory_share}
    try:
        return folder, vllm.LLM(**options)
    except ValueError as error:  # pydantic's errors are ValueErrors too
        folder.cleanup()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError(
            f"vLLM refuses to start: {' '.join(lines[:3])[:400]}",
            "a smaller engine.max_kv_gb or sampling.max_completion_tokens may fit; --engine transformers always does",
        ) from error


def can_release_cache() -> bool:
    """Whether this vLLM can free its cache alone (0.31 and later)."""
    _import()
    from vllm.v1.engine.llm_engine import LLMEngine

    return hasattr(LLMEngine, "release_kv_cache_memory")


def _lora_model_class() -> Any:
    try:
        from vllm.lora.lora_model import LoRAModel
    except ImportError:  # its place in older versions
        from vllm.lora.models import LoRAModel
    return LoRAModel


@contextmanager
def _process_state_kept() -> Iterator[None]:
    """vLLM seeds every generator of the process and, on a CPU, takes `torch.set_num_threads` away: both are put back."""
    cuda = torch.cuda.is_available()
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    card = torch.cuda.get_rng_state_all() if cuda else []
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(card)
        if torch.set_num_threads is not set_threads:
            torch.set_num_threads = set_threads
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def _seed(key: tuple[int, ...]) -> int:
    """A number below 2^62 that follows from the key, far from the neighbouring key's."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]) >> 2
