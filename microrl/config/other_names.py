"""What TRL, transformers, PEFT, Unsloth and verl call the keys of the configuration, for hints; and what has no key."""

from __future__ import annotations

from typing import Any

_LIMIT, _RANK, _RATE = "sampling.max_completion_tokens", "adapter.rank", "optim.lr"
OURS = {
    "model_name_or_path": "model.name", "model_name": "model.name", "base_model": "model.name",
    "dtype": "model.dtype", "torch_dtype": "model.dtype", "load_in_4bit": "model.quant=nf4", "qlora": "model.quant=nf4",
    "use_gradient_checkpointing": "model.gradient_checkpointing", "gradient_checkpointing": "model.gradient_checkpointing",
    "dataset": "data.name", "dataset_name": "data.name", "train_files": "data.name",
    "max_prompt_length": "data.max_prompt_tokens",
    "r": _RANK, "lora_r": _RANK, "lora_rank": _RANK, "lora_alpha": "adapter.alpha", "alpha": "adapter.alpha",
    "target_modules": "adapter.targets", "lora_target_modules": "adapter.targets",
    "use_rslora": "adapter.kind=rslora", "use_dora": "adapter.kind=dora",
    "learning_rate": _RATE, "lr": _RATE, "optim": "optim.name", "max_grad_norm": "optim.max_grad_norm",
    "grad_clip": "optim.max_grad_norm", "weight_decay": "optim.weight_decay", "adam_epsilon": "optim.eps",
    "lr_scheduler_type": "optim.schedule.kind", "warmup_ratio": "optim.schedule.warmup", "warmup_steps": "optim.schedule.warmup",
    "batch_size": "sampling.prompts_per_step", "train_batch_size": "sampling.prompts_per_step",
    "per_device_train_batch_size": "sampling.prompts_per_step", "generation_batch_size": "sampling.prompts_per_step",
    "ppo_mini_batch_size": "optim.prompts_per_update", "ppo_max_token_len_per_gpu": "optim.tokens_per_microbatch",
    "num_generations": "sampling.group_size", "group_size": "sampling.group_size", "rollout.n": "sampling.group_size",
    "max_completion_length": _LIMIT, "max_response_length": _LIMIT, "max_new_tokens": _LIMIT, "max_tokens": _LIMIT,
    "temperature": "sampling.temperature", "top_p": "evaluation.top_p",
    "loss_type": "loss.kind", "beta": "loss.beta", "kl_coef": "loss.beta", "kl_loss_coef": "loss.beta",
    "epsilon": "loss.clip_low", "clip_ratio": "loss.clip_low", "clip_ratio_low": "loss.clip_low",
    "epsilon_high": "loss.clip_high", "clip_ratio_high": "loss.clip_high", "clip_ratio_c": "loss.dual_clip",
    "delta": "loss.dual_clip", "scale_rewards": "loss.scale_by_std", "norm_adv_by_std_in_grpo": "loss.scale_by_std",
    "mask_truncated_completions": "loss.mask_truncated", "vllm_importance_sampling_clip_max": "loss.importance_cap",
    "vllm_importance_sampling_cap": "loss.importance_cap", "vllm_importance_sampling_mode": "loss.importance_mode",
    "reward_funcs": "reward.functions", "multi_objective_aggregation": "reward.normalise",
    "use_vllm": "engine.kind=vllm", "vllm_enable_sleep_mode": "engine.sleep", "free_cache_engine": "engine.sleep",
    "vllm_gpu_memory_utilization": "engine.max_kv_gb", "gpu_memory_utilization": "engine.max_kv_gb",
    "enforce_eager": "engine.cuda_graphs", "max_steps": "budget.steps", "total_training_steps": "budget.steps",
    "save_steps": "checkpoints.keep_every", "save_freq": "checkpoints.keep_every", "eval_steps": "validation.fraction",
    "test_freq": "validation.fraction", "report_to": "track", "logger": "track",
}  # fmt: skip
"""Our key, or key and value, by their name."""
INSTEAD = {
    "gpu": "the first visible GPU is used, `microrl doctor` shows it; CUDA_VISIBLE_DEVICES=1 before `microrl` takes another",
    "epochs": "a run ends by --steps N or --hours H: an epoch is the number of questions / sampling.prompts_per_step steps",
    "output_dir": "--out DIR names the run folder",
    "resume_from_checkpoint": "--resume RUN resumes a run",
}
"""What to do instead, by the names of options without a key."""
INSTEAD |= {
    "gpus": INSTEAD["gpu"],
    "device": INSTEAD["gpu"],
    "gpu_id": INSTEAD["gpu"],
    "default_local_dir": INSTEAD["output_dir"],
}
INSTEAD |= dict.fromkeys(("num_train_epochs", "num_epochs", "total_epochs"), INSTEAD["epochs"])


def ours(name: str) -> str | None:
    """Our key for another trainer's name, `key=value` where that is what it means; None: not known. Of a dotted name, as verl's,
    the last parts count."""
    parts = name.lower().replace("-", "_").strip("_").split(".")
    return OURS.get(".".join(parts[-2:])) or OURS.get(parts[-1])


def hint(name: str, given: Any = None) -> str | None:
    """A hint for what is no key or value of ours; None: it is not known. `given`: its value, where it may be a section."""
    while isinstance(given, dict) and len(given) == 1:
        ((part, given),) = given.items()
        name = f"{name}.{part}"
    if (found := ours(name)) is None:
        return INSTEAD.get(name.lower())
    return f"did you mean `--set {found}`?" if "=" in found else f"did you mean `{found}`?"
