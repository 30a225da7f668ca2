"""`microrl presets from-trl`: a configuration of TRL becomes a preset that loads, and no key of it is lost."""

import tomllib

import pytest
import yaml
from command_line import in_process

from microrl.config import resolve

PLAIN = """
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
dataset_name: openai/gsm8k
dataset_config: main
learning_rate: 1e-6
per_device_train_batch_size: 8
gradient_accumulation_steps: 16
num_generations: 8
max_completion_length: 1024
beta: 0.001
max_steps: 200
warmup_steps: 20
max_grad_norm: 0.2
adam_beta2: 0.99
seed: 7
scale_rewards: group
max_prompt_length: null
report_to: [wandb]
reward_funcs: [my_rewards.maths.correct, accuracy_reward, some/reward-model]
reward_weights: [0.5, 1.0, 2.0]
output_dir: out
bf16: true
top_p: 1.0
num_iterations: 1
frobnicate: 3
"""
DAPO = """
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
dataset_name: open-r1/DAPO-Math-17k-Processed
learning_rate: 1.0e-6
lr_scheduler_type: constant_with_warmup
num_processes: 2
per_device_train_batch_size: 16
gradient_accumulation_steps: 8
steps_per_generation: 16
num_generations: 16
max_steps: 300
epsilon: 0.2
epsilon_high: 0.28
loss_type: dapo
mask_truncated_completions: true
scale_rewards: none
beta: 0.0
use_vllm: true
vllm_mode: colocate
vllm_gpu_memory_utilization: 0.4
"""
QLORA = """
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
dataset_name: trl-lib/DeepMath-103K
loss_type: dr_grpo
importance_sampling_level: token
per_device_train_batch_size: 10
num_generations: 4
num_train_epochs: 1
warmup_ratio: 0.1
optim: adamw_bnb_8bit
use_peft: true
load_in_4bit: true
use_dora: false
lora_r: 32
lora_dropout: 0.05
"""
FILES = {"plain": PLAIN, "dapo": DAPO, "qlora": QLORA}


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Make the preset of this text; returns it resolved, and as text."""
    monkeypatch.chdir(tmp_path)

    def make(text):
        (tmp_path / "grpo.yaml").write_text(text)
        (tmp_path / "grpo.toml").unlink(missing_ok=True)
        done = in_process("presets", "from-trl", "grpo.yaml", "--out", "grpo.toml")
        assert done.returncode == 0, done.stderr
        written = (tmp_path / "grpo.toml").read_text()
        assert in_process("presets", "from-trl", "grpo.yaml").stdout == written
        return resolve(["grpo.toml"], {"budget.hours": 1.0}), written

    return make


@pytest.mark.parametrize("name", FILES)
def test_every_key_is_a_setting_or_a_comment(made, name):
    _, text = made(FILES[name])
    comments = [line.partition("# ")[2].replace(":", ",").split(",") for line in text.splitlines()]
    said = {word.strip() for words in comments for word in words}
    assert not yaml.safe_load(FILES[name]).keys() - said
    assert in_process("plan", "grpo.toml", "--steps", "5", "--gpu", "h100").returncode == 0


def test_a_plain_configuration(made):
    config, text = made(PLAIN)
    assert (config.model.name, config.data.name, config.data.subset) == ("Qwen/Qwen2.5-1.5B-Instruct", "gsm8k", "main")
    assert (config.sampling.prompts_per_step, config.sampling.group_size) == (16, 8)  # 8 x 16 completions
    assert (config.optim.lr, config.optim.max_grad_norm, config.optim.betas) == (1e-6, 0.2, (0.9, 0.99))
    assert (config.optim.schedule.kind, config.optim.schedule.warmup) == ("linear", 0.1)  # of 200 steps
    assert (config.adapter.kind, config.seed, config.track, config.loss.scale_by_std) == ("full", 7, "wandb", True)
    # What TRL does where nothing is said.
    assert (config.loss.kind, config.loss.clip_high, config.loss.dynamic_sampling) == ("dapo", 0.2, False)
    assert not config.data.system and tomllib.loads(text)["budget"]["steps"] == 200
    reward = config.reward
    assert (reward.functions, reward.accuracy_weight, reward.format_weight) == (("my_rewards.maths:correct=0.5",), 1.0, 0.0)
    assert "no counterpart of some/reward-model" in text and "# frobnicate: 3 -- no counterpart\n" in text
    assert "# num_iterations: 1 -- each batch of completions is used once" in text


def test_rounds_of_sampling_with_several_updates(made):
    """2 x 16 x 16 = 512 completions of 16, in two updates; 300 updates are 150 rounds."""
    config, text = made(DAPO)
    assert (config.sampling.prompts_per_step, config.optim.prompts_per_update) == (32, 16)
    assert tomllib.loads(text)["budget"]["steps"] == 150 and config.optim.schedule.kind == "constant"
    assert (config.loss.clip_low, config.loss.clip_high, config.loss.scale_by_std) == (0.2, 0.28, False)
    assert config.loss.mask_truncated and config.engine.kind == "auto" and "# use_vllm: True -- " in text


def test_qlora(made):
    config, text = made(QLORA)
    adapter = config.adapter
    assert (adapter.kind, adapter.rank, adapter.alpha, adapter.targets) == ("lora", 32, 32, ("q_proj", "v_proj"))
    assert (config.model.quant, config.optim.name, config.optim.schedule.warmup) == ("nf4", "adamw_8bit", 0.1)
    assert config.loss.kind == "dr_grpo" and config.sampling.prompts_per_step == 3
    assert config.loss.scale_by_std, "as TRL does unless it is told not to, and `dr_grpo` does not"
    assert "10 completions, not divisible by 4: rounded up" in text and "There is no end yet: pass --steps" in text
    assert "# lora_dropout: 0.05 -- there is no dropout" in text


@pytest.mark.parametrize(("kind", "said"), [("", " and not as `dapo`"), ("loss_type: grpo\n", "importance_sampling_level\n")])
def test_a_ratio_by_sequence_says_whose_average_it_takes(made, kind, said):
    config, text = made(kind + "importance_sampling_level: sequence")
    assert config.loss.kind == "gspo" and said in text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("loss_type: bnpo", "# loss_type: bnpo -- invalid value 'bnpo' for `loss.kind`"),
        ("scale_rewards: batch", "# scale_rewards: batch -- invalid value 'batch' for `loss.scale_by_std`"),
        ("lora_r: 8", "# lora_r: 8 -- `adapter.rank` cannot be set: `full` has no `rank`"),
        ("warmup_steps: 5", "# warmup_steps: 5 -- `optim.schedule.warmup` is a fraction of the run"),
        ("warmup_steps: 5\nmax_steps: 10\nwarmup_ratio: 0.1", "# warmup_ratio: 0.1 -- `optim.schedule.warmup` is set by"),
        ("load_in_4bit: false", "# load_in_4bit: False -- off here too"),
        ("load_in_4bit: 'False'", "# load_in_4bit: False -- off here too"),
        ("use_peft: 'false'\nlora_r: 8", "# lora_r: 8 -- `adapter.rank` cannot be set: `full` has no `rank`"),
        ("hub_token: hf_secret", "# hub_token: *** -- no counterpart"),
        ("datasets: [{path: a/b}]", "# datasets: [{'path': 'a/b'}] -- one data set"),
        ("vllm_importance_sampling_correction: 0", "correction: 0 -- it is on; --set loss.importance_cap=none"),
        ('"two\\nlines": "a\\nb"', "# two lines: a b -- no counterpart"),
        ("beta: {a: [1, {b: 2}]}", "# beta: {'a': [1, {'b': 2}]} -- invalid value '{'a': [1, {'b': 2}]}' for `loss.beta`"),
        ("3: 4", "# 3: 4 -- no counterpart"),
        ("reward_funcs: some/model", "# reward_funcs: some/model -- `some/model` is not a reward function"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_said_with_the_reason(made, text, kept):
    assert kept in made(text)[1]


def test_a_correction_that_is_off_stays_off(made):
    config, text = made("loss_type: grpo\nvllm_importance_sampling_correction: false\nvllm_importance_sampling_clip_max: 3")
    assert config.loss.importance_cap is None
    assert "vllm_importance_sampling_clip_max: 3 -- `loss.importance_cap` is set by vllm_importance_sampling_correction" in text


@pytest.mark.parametrize(
    ("names", "weight", "functions"),
    [("some/model", 1.0, ()), ("[./mine.py:f, accuracy_reward, my.fn]", 1.0, ("my:fn=1.0",)), ("[a.b.c]", 0.0, ("a.b:c=1.0",))],
)
def test_one_reward_without_counterpart_does_not_take_the_others_away(made, names, weight, functions):
    reward = made(f"reward_funcs: {names}")[0].reward
    assert (reward.accuracy_weight, reward.functions) == (weight, functions)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is not valid YAML"),
        ("when: 2024-99-99", "is not valid YAML"),
        ("- " * 5_000, "is not valid YAML"),
        ("[" * 201, "too many brackets"),
        ("- a\n- b", "is not a mapping"),
        ("", "is not a mapping"),
        ("a: &x [1]\nb: [*x, *x]", "refers to its own parts"),
        ("num_generations: many", "invalid value 'many' for `num_generations`"),
        ("per_device_train_batch_size: 0", "invalid value '0' for `per_device_train_batch_size`"),
    ],
)
def test_what_is_no_configuration_is_refused(tmp_path, text, said):
    (tmp_path / "bad.yaml").write_text(text)
    done = in_process("presets", "from-trl", tmp_path / "bad.yaml")
    assert done.returncode == 2 and said in done.stderr and "hint: " in done.stderr and not done.stdout


def test_a_file_that_exists_is_kept(tmp_path):
    (tmp_path / "grpo.yaml").write_text(QLORA)
    (tmp_path / "mine.toml").write_text("seed = 1")
    done = in_process("presets", "from-trl", tmp_path / "grpo.yaml", "--out", tmp_path / "mine.toml")
    assert done.returncode == 2 and "File exists" in done.stderr and (tmp_path / "mine.toml").read_text() == "seed = 1"
    done = in_process("presets", "from-trl", tmp_path / "grpo.yaml", "--out", tmp_path / "mine")
    assert done.returncode == 2 and f"hint: --out {tmp_path}/mine.toml" in done.stderr  # `train mine` would not find it
    done = in_process("presets", "from-trl", tmp_path / "none.yaml")
    assert done.returncode == 2 and "none.yaml cannot be read" in done.stderr
