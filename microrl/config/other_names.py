"""What TRL, transformers, PEFT, Unsloth and verl call the keys of the configuration, for hints; and what has no key."""

from __future__ import annotations

from typing import Any

from microrl.config.catalogue import DATASETS

_LIMIT, _RANK, _RATE = "sampling.max_completion_tokens", "adapter.rank", "optim.lr"
OURS = {
    "model_name_or_path": "model.name", "model_name": "model.name", "base_model": "model.name", "model.path": "model.name",
    "dtype": "model.dtype", "torch_dtype": "model.dtype", "rank": _RANK, "steps": "budget.steps", "hours": "budget.hours",
    "teacher": "distill.teacher",
    "load_in_4bit": "model.quant=nf4", "qlora": "model.quant=nf4",
    "use_gradient_checkpointing": "model.gradient_checkpointing", "gradient_checkpointing": "model.gradient_checkpointing",
    "dataset": "data.name", "dataset_name": "data.name", "train_files": "data.name",
    "dataset_config": "data.subset", "dataset_train_split": "data.split", "max_prompt_length": "data.max_prompt_tokens",
    "r": _RANK, "max_lora_rank": _RANK, "lora_r": _RANK, "lora_rank": _RANK,
    "lora_alpha": "adapter.alpha", "alpha": "adapter.alpha",
    "target_modules": "adapter.targets", "lora_target_modules": "adapter.targets",
    "use_rslora": "adapter.kind=rslora", "use_dora": "adapter.kind=dora",
    "learning_rate": _RATE, "lr": _RATE, "optim": "optim.name", "max_grad_norm": "optim.max_grad_norm",
    "grad_clip": "optim.max_grad_norm", "weight_decay": "optim.weight_decay", "adam_epsilon": "optim.eps",
    "lr_scheduler_type": "optim.schedule.kind", "warmup_ratio": "optim.schedule.warmup",
    "batch_size": "sampling.prompts_per_step", "train_batch_size": "sampling.prompts_per_step",
   
    "ppo_mini_batch_size": "optim.prompts_per_update", "ppo_max_token_len_per_gpu": "optim.tokens_per_microbatch",
    "num_generations": "sampling.group_size", "group_size": "sampling.group_size", "rollout.n": "sampling.group_size",
    "max_completion_length": _LIMIT, "max_response_length": _LIMIT, "max_new_tokens": _LIMIT, "max_tokens": _LIMIT,
    "temperature": "sampling.temperature",
    "loss_type": "loss.kind", "beta": "loss.beta", "kl_coef": "loss.beta", "kl_loss_coef": "loss.beta",
    "epsilon": "loss.clip_low", "clip_ratio": "loss.clip_low", "clip_ratio_low": "loss.clip_low",
    "epsilon_high": "loss.clip_high", "clip_ratio_high": "loss.clip_high", "clip_ratio_c": "loss.dual_clip",
    "delta": "loss.dual_clip", "scale_rewards": "loss.scale_by_std", "norm_adv_by_std_in_grpo": "loss.scale_by_std",
    "mask_truncated_completions": "loss.mask_truncated", "vllm_importance_sampling_clip_max": "loss.importance_cap",
    "vllm_importance_sampling_cap": "loss.importance_cap", "vllm_importance_sampling_mode": "loss.importance_mode",
    "reward_funcs": "reward.functions", "multi_objective_aggregation": "reward.normalise",
    "vllm_enable_sleep_mode": "engine.sleep", "free_cache_engine": "engine.sleep",
   
    "max_steps": "budget.steps", "total_training_steps": "budget.steps",
    "save_steps": "checkpoints.keep_every", "save_freq": "checkpoints.keep_every",
    "report_to": "track", "logger": "track", "seed": "seed",
    "sapo_temperature_pos": "loss.temperature_positive", "sapo_temperature_neg": "loss.temperature_negative",
}  # fmt: skip
"""Our key, or key and value, by their name."""
VALUES: dict[str, dict[str | bool, Any]] = {
    "data.name": {known.hub_id: name for name, known in DATASETS.items()},
    "loss.scale_by_std": {"group": True, "none": False},
    "optim.name": {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_bnb_8bit": "adamw_8bit"},
    "optim.schedule.kind": {"constant_with_warmup": "constant"},
    "reward.normalise": {"sum_then_normalize": "together", "normalize_then_sum": "apart"},
    "engine.sleep": {True: "auto", False: "off"},
    "track": {"none": None},
}
"""Our value by theirs, where they differ, by our key."""
TRL_DEFAULTS: dict[str, Any] = {
    "learning_rate": 1e-6, "per_device_train_batch_size": 8, "num_generations": 8, "max_completion_length": 512,
    "loss_type": "dapo", "epsilon": 0.2, "lr_scheduler_type": "linear", "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3, "lora_r": 16, "lora_alpha": 32, "lora_target_modules": ["q_proj", "v_proj"],
    "scale_rewards": "group",
}  # fmt: skip
"""Of TRL 1.16, where ours differ; the layers are those that PEFT takes of Llama, Qwen and most others."""
TRL_REWARDS = {"accuracy_reward": "reward.accuracy_weight", "think_format_reward": "reward.format_weight"}
"""Our weights of what TRL's functions reward."""
INSTEAD = {
    "gpu": "the first visible GPU is used (see `microrl doctor`); to use another, put CUDA_VISIBLE_DEVICES=1 before `microrl`",
    "epochs": "a run ends by --steps N or --hours H; an epoch has (questions / sampling.prompts_per_step) steps",
    "use_vllm": "by default vLLM is used on a GPU where it is installed; --engine vllm, or --engine transformers for none",
    "enforce_eager": "the opposite is `engine.cuda_graphs`: --set engine.cuda_graphs=false",
    "gpu_memory_utilization": "the share follows from the plan; `engine.max_kv_gb` limits the KV cache, in GB",
    "per_device_train_batch_size": "`sampling.prompts_per_step` counts prompts: TRL's completions per step / num_generations",
    "warmup_steps": "`optim.schedule.warmup` is a fraction of the run, such as 0.05",
    "eval_steps": "`validation.fraction` is the fraction of the run that validation may take, such as 0.1",
    "top_p": "training samples from the whole distribution; `evaluation.top_p` is for evaluations alone",
    "num_iterations": "each batch of completions is used once; `optim.prompts_per_update` makes several optimizer steps of it",
    "reward_weights": "--reward MODULE:FUNCTION=WEIGHT, once for each function",
    "importance_sampling_level": "for TRL's `sequence`: --loss gspo",
    "use_peft": "there is always an adapter; --adapter full trains all weights",
    "chat_template_kwargs": "only its switch `enable_thinking`: --set data.thinking=false",
    "adam_beta1": "both are in `optim.betas`: --set 'optim.betas=[0.9, 0.999]'",
    "max_seq_length": "two limits: `data.max_prompt_tokens` and `sampling.max_completion_tokens`",
    "output_dir": "--out DIR names the run folder",
    "resume_from_checkpoint": "--resume RUN resumes a run",
    "bf16": "`model.dtype`, by default bfloat16 on a GPU that has it",
    "lora_dropout": "there is no dropout",
    "logging_steps": "every step is recorded, with samples of its completions",
    "vllm_importance_sampling_correction": "it is on; --set loss.importance_cap=none switches it off",
    "datasets": "one data set is trained on: --data NAME",
    "sync_ref_model": "the KL is to the untouched model throughout",
}
"""What to do instead, by the names of options without a key."""
INSTEAD |= {
    "gpus": INSTEAD["gpu"],
    "device": INSTEAD["gpu"],
    "gpu_id": INSTEAD["gpu"],
    "default_local_dir": INSTEAD["output_dir"],
}
for same, names in {
    "epochs": ("num_train_epochs", "num_epochs", "total_epochs"),
    "use_vllm": ("vllm_mode", "fast_inference"),
    "gpu_memory_utilization": ("vllm_gpu_memory_utilization",),
    "per_device_train_batch_size": ("generation_batch_size", "gradient_accumulation_steps"),
    "num_iterations": ("steps_per_generation",),
    "eval_steps": ("test_freq",),
    "top_p": ("top_k", "min_p"),
    "adam_beta1": ("adam_beta2",),
    "gpu": ("n_gpus_per_node",),
    "bf16": ("fp16", "tf32"),
    "logging_steps": ("log_completions", "logging_strategy"),
}.items():
    INSTEAD |= dict.fromkeys(names, INSTEAD[same])


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
    if (suggestion := ours(name)) is None:
        return INSTEAD.get(name.lower().rpartition(".")[2])
    return f"did you mean `--set {suggestion}`?" if "=" in suggestion else f"did you mean `{suggestion}`?"
