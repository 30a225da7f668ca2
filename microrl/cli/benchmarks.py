"""What `microrl eval` evaluates on: the held-out part, a file, benchmarks by name, or those of a paper, with their settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from microrl.cli import options
from microrl.cli.output import say
from microrl.cli.target import ResolvedTarget
from microrl.cli.value_lists import values
from microrl.config import RunConfig, catalogue, known_models, protocols
from microrl.config.catalogue import KnownDataset
from microrl.config.paths import is_data_file
from microrl.config.protocols import Protocol
from microrl.config.resolve import override
from microrl.errors import UserError
from microrl.evaluation.benchmark import Benchmark

ALL = 10**9


def resolve_benchmarks(
    resolved_target: ResolvedTarget,
    *,
    bench: str | None,
    protocol: str | None,
    data: str | None,
    base: str | None = None,
    flags: dict[str, Any],
    sets: list[str],
    limits: Sequence[int] = (),
) -> list[Benchmark]:
    """The benchmarks with their settings: those of the run, of the protocol, of the flags, of `--set`; the last one counts.

    `base`: the name of the weights that they are compared with, a part of the files' names. `limits`: token limits; with several,
    each benchmark is evaluated at each, as an evaluation of its own whose name ends with the limit. Raises UserError.
    """
    flags = {key: value for key, value in flags.items() if value is not None}
    names = values("--bench", bench) or None
    paper = None if protocol is None else protocols.find(protocol)
    if paper is not None:
        if paper.assumed:
            say(f"note: {paper.assumed}")
        names = names or list(paper.benchmarks)
    if names is None and data is not None:
        if (known := catalogue.find(data)) is not None:
            _refuse_training_data(resolved_target, known)
        flags = {"data.name": data, "data.held_out": 1.0, "evaluation.problems": ALL} | flags
    versions = [flags | {"evaluation.max_completion_tokens": limit} for limit in dict.fromkeys(limits)] or [flags]
    if names is None:
        benchmarks = [_benchmark(resolved_target, None, resolved_target.config, one, sets, base) for one in versions]
        if data is None and resolved_target.run is None and resolved_target.config.model.name not in known_models.TINY:
            asked = f"these weights are evaluated on problems held out of {benchmarks[0].config.data.name}"
            say(f"note: only a run names its data; {asked}; for others, pass --data FILE or --bench NAME")
    else:
        known_ones = {catalogue.benchmark(name).name: name for name in names}  # MATH-500 is math500
        benchmarks = [_by_name(resolved_target, name, paper, one, sets, base) for name in known_ones.values() for one in versions]
    if len(versions) == 1:
        return benchmarks
    stems = {one.stem for one in benchmarks}
    if any(one.sampling().max_tokens not in limits for one in benchmarks) or len(stems) < len(benchmarks):
        raise UserError("--max-tokens and --set evaluation.max_completion_tokens contradict each other", "pass one of them")
    return [replace(one, name=f"{one.name}-m{one.sampling().max_tokens}") for one in benchmarks]


def label(resolved_target: ResolvedTarget, target: str | None) -> str:
    """The name of the weights in messages and folders."""
    if resolved_target.run is not None:
        return resolved_target.run.path.name + (f"/{resolved_target.part}" if resolved_target.part else "")
    return options.run_name(None, target or resolved_target.config.model.name)


def benchmark_name(data: str) -> str:
    """The name of an evaluation: the file or data set without folders and suffix (the `.5` of `1.5` is not a suffix)."""
    path = Path(data)
    return path.stem if is_data_file(data) else path.name


def _refuse_training_data(resolved_target: ResolvedTarget, known: KnownDataset) -> None:
    """Raises UserError where the run was trained on what this data set measures with, by GRPO or in its supervised phase."""
    if resolved_target.run is None:
        return
    own, sft = resolved_target.config.data, resolved_target.config.sft
    trained_on = [(own.name, own.split)] if own.held_out < 1 else []
    trained_on += [(sft.data, own.split)] if sft.is_on and sft.data is not None else []
    for name, split in trained_on:
        other = catalogue.find(name)
        if other is None:
            is_same = name.lower() == known.hub_id.lower()
        else:
            is_same = (other.hub_id, other.only) == (known.hub_id, known.only)
        if is_same and (other or known).split(split) == known.splits.get("test"):
            raise UserError(
                f"{resolved_target.run.path} was trained on {known.name}: its score there would mean nothing",
                "leave --bench and --data out to evaluate on the held-out part, or choose another benchmark",
            )


def _by_name(
    resolved_target: ResolvedTarget, name: str, paper: Protocol | None, flags: dict[str, Any], sets: list[str], base: str | None
) -> Benchmark:
    known = catalogue.benchmark(name)
    own = resolved_target.config.data
    _refuse_training_data(resolved_target, known)
    changes: dict[str, Any] = {"evaluation.problems": ALL}
    if paper is not None:
        if known.name not in paper.benchmarks:
            raise UserError(
                f"this protocol ({paper.paper}) has no settings for {known.name}",
                f"its benchmarks: {', '.join(paper.benchmarks)}; or leave --protocol out",
            )
        settings = paper.benchmarks[known.name]
        changes |= {
            "evaluation.samples": settings.samples, "evaluation.pass_k": settings.pass_k,
            "evaluation.temperature": settings.temperature, "evaluation.top_p": settings.top_p,
            "evaluation.max_completion_tokens": settings.max_tokens, "evaluation.seed": paper.seed,
            "evaluation.question_seed": paper.seed, "data.max_prompt_tokens": settings.max_prompt_tokens,
        }  # fmt: skip
    tree = resolved_target.config.model_copy(update={"data": own.for_benchmark(name)})
    if "evaluation.pass_k" in flags and "evaluation.samples" not in flags and "evaluation.samples" in changes:
        changes["evaluation.samples"] = max(changes["evaluation.samples"], *flags["evaluation.pass_k"])
    if "evaluation.samples" in flags and "evaluation.pass_k" not in flags:
        changes.pop("evaluation.pass_k", None)  # the paper's k goes with its samples
    return _benchmark(resolved_target, known.name, tree, changes | flags, sets, base)


def _benchmark(
    resolved_target: ResolvedTarget, name: str | None, tree: RunConfig, changes: dict[str, Any], sets: list[str], base: str | None
) -> Benchmark:
    changes = changes | _samples_and_k(tree, changes)
    config = override(tree.model_dump(), changes, sets)
    shown = name or ("held-out" if config.data.held_out < 1 else benchmark_name(config.data.name))
    return Benchmark(shown, _stem(shown, config, resolved_target.part, base), config)


def _samples_and_k(tree: RunConfig, changes: dict[str, Any]) -> dict[str, Any]:
    """The number of samples and the k of pass@k, of which either may follow from the other."""
    samples, ks = changes.get("evaluation.samples"), changes.get("evaluation.pass_k")
    if samples is None and ks is None and changes.get("evaluation.temperature") == 0:
        samples, ks = 1, (1,)  # the others would be equal
    elif samples is None and ks is not None:
        samples = max(*ks, tree.evaluation.samples)
    elif samples is not None and ks is None:
        ks = tuple(k for k in tree.evaluation.pass_k if k <= samples) or (samples,)
    return {} if samples is None else {"evaluation.samples": samples, "evaluation.pass_k": ks}


def _stem(name: str, config: RunConfig, part: str | None, base: str | None) -> str:
    """NAME-SETTINGS of an evaluation's files."""
    settings = config.evaluation
    limit = settings.max_completion_tokens or config.sampling.max_completion_tokens
    parts = [
        _short(name, options.NAME_BYTES), f"n{settings.samples}", f"t{settings.temperature:g}", f"p{settings.top_p:g}",
        f"m{limit}", f"s{settings.seed}", *([f"qs{settings.question_seed}"] if settings.question_seed else []),
        *([f"q{settings.problems}"] if settings.problems < ALL else []), *([part] if part else []),
        *([f"vs-{_short(base, options.NAME_BYTES // 2)}"] if base else []),
    ]  # fmt: skip
    return "-".join(parts)


def _short(name: str, most: int) -> str:
    """What fits into the name of a file: at most so many bytes, without slashes."""
    return name.encode(errors="replace")[:most].decode(errors="ignore").replace("/", "-")
