"""`--teacher`: whose tokens it must have, where it comes from, and that a student comes closer to it."""

import json
import shutil
import sys

import masking_teacher
import pytest
import torch
from every_adapter import config_of, train
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast
from whole_runs import rows

from microrl.adapters.attach import attach
from microrl.adapters.folder import read, write
from microrl.algorithm.batch import Row
from microrl.config import resolve
from microrl.data.load import load_questions
from microrl.data.prompts import no_tools
from microrl.errors import UserError
from microrl.models.load import load_tokenizer
from microrl.models.tensors import weight_sharing_copy
from microrl.models.tiny import CHAT_TEMPLATE, END, PAD, START, build_model, build_tokenizer
from microrl.policy.microbatch import pad
from microrl.policy.teacher import Teacher
from microrl.report.findings import findings
from microrl.report.history import History
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.run.teacher import Source, find, refuse_own_start, shares_base
from microrl.train.teacher import RAW, load_teacher, refuse_other_tokens, rendering
from microrl.types import BASE, Prompt


def render(tokenizer):
    text = tokenizer.apply_chat_template([{"role": "user", "content": "What is 1 + 2?"}], tokenize=False)
    return [Prompt("", "", text, tuple(tokenizer(text, add_special_tokens=False)["input_ids"]), row=4)]


def longer(tokenizer):
    tokenizer.add_tokens(["<another>"])


def renumbered(tokenizer):
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(5)


def templated(tokenizer):
    tokenizer.chat_template = tokenizer.chat_template + "1"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (longer, "has a different vocabulary: 1 tokens differ; for example, '<another>' does not exist in the student's and"),
        (renumbered, "has a different end-of-text token"),
        (templated, "has a different chat template: it renders row 4 differently from token"),
    ],
)
def test_other_tokens_are_refused(change, said):
    refuse_other_tokens("T", build_tokenizer(), build_tokenizer(), render)
    other = build_tokenizer()
    change(other)
    with pytest.raises(UserError) as caught:
        refuse_other_tokens("T", other, build_tokenizer(), render)
    assert caught.value.message.startswith("the teacher T ") and said in caught.value.message and caught.value.hint


def edited(change):
    """The tokenizer with what `change` makes of its `tokenizer.json`."""
    tree = json.loads(build_tokenizer().backend_tokenizer.to_str())
    change(tree)
    backend = Tokenizer.from_str(json.dumps(tree))
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=PAD, chat_template=CHAT_TEMPLATE)


def without_a_merge(tree):
    tree["model"]["merges"].pop()


def in_lower_case(tree):
    tree["normalizer"] = {"type": "Lowercase"}


def words_apart(tree):
    tree["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "Punctuation"}, tree["pre_tokenizer"]]}


def in_pieces(tree):
    tree["added_tokens"] = [token for token in tree["added_tokens"] if token["content"] != "\\boxed{"]


def swapped(tree):
    vocabulary = tree["model"]["vocab"]
    vocabulary[START], vocabulary[END] = vocabulary[END], vocabulary[START]


def not_special(tree):
    tree["added_tokens"] = [token for token in tree["added_tokens"] if token["content"] != START]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_a_merge, "splits text differently (merges): it reads ['gues', 's'] instead of ['guess', '\\n']"),
        (in_lower_case, "splits text differently (normalizer): it reads ['a', '\\n'] instead of ['A', '\\n']"),
        (words_apart, "splits text differently (pre_tokenizer): "),
        (in_pieces, "has a different vocabulary: 1 tokens differ"),
        (swapped, "has a different vocabulary: 2 tokens differ; for example, '<|im_end|>' has the id 2 in the student's"),
        (not_special, "has a different tokenizer: it splits row 4 differently from token 0 on"),
    ],
)
def test_a_tokenizer_that_splits_differently_is_refused(change, said):
    with pytest.raises(UserError) as caught:
        refuse_other_tokens("T", edited(change), build_tokenizer(), render)
    assert caught.value.message.startswith("the teacher T ") and said in caught.value.message and caught.value.hint


def digits_apart(tree):
    tree["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, tree["pre_tokenizer"]],
    }


def normalized(tree):
    tree["normalizer"] = {"type": "NFC"}


def other_special_tokens(tree):
    for token in tree["added_tokens"]:
        token["special"] = token["content"] != START


def padded(tree):
    tree["padding"] = {
        "strategy": {"Fixed": 900}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": PAD,
    }  # fmt: skip
    tree["truncation"] = {"direction": "Right", "max_length": 900, "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize("change", [digits_apart, normalized, other_special_tokens, padded])
def test_settings_without_an_effect_are_no_difference(change):
    """Such as those by which a GGUF file's tokenizer differs from that of the same model: no token has two digits."""
    refuse_other_tokens("T", edited(change), build_tokenizer(), render)


def test_a_tokenizer_without_a_file_is_compared_as_far_as_it_goes():
    refuse_other_tokens("T", ByT5Tokenizer(), ByT5Tokenizer(), lambda tokenizer: [])


def test_prompts_are_compared_however_long_they_are(data_file):
    config = resolve((), {"data.name": str(data_file), "data.max_prompt_tokens": 1, "data.long_prompts": "drop"})
    other, whole = build_tokenizer(), rendering(config, load_questions(config.data), no_tools)
    refuse_other_tokens("T", other, build_tokenizer(), whole)
    templated(other)
    with pytest.raises(UserError, match="has a different chat template: it renders row 1 differently"):
        refuse_other_tokens("T", other, build_tokenizer(), whole)


def test_a_teachers_template_that_fails_is_named(inside, tiny_arguments, other_model, data_file, tmp_path):
    failing = build_tokenizer()
    failing.chat_template = "{{ raise_exception('No users here.\nSorry.') }}"
    failing.save_pretrained(shutil.copytree(other_model, tmp_path / "failing"))
    done = inside("train", *tiny_arguments, "--steps", 1, "--teacher", tmp_path / "failing", "--dry-run")
    said = f"the teacher {tmp_path / 'failing'}: {data_file}, row 3: the chat template fails: No users here."
    assert done.returncode == 2 and said in " ".join(done.stderr.split()), done.stderr


def test_where_a_teacher_comes_from(wares, model_folder, tmp_path):
    done, model = wares / "done", str(model_folder)
    own = RunFolder.open(done).settings()
    assert find(str(done)) == Source(model, done / "final", own) and find(str(done)).is_rl
    assert find(str(done / "best")) == Source(model, done / "best", own)
    assert find(str(wares / "adapter")) == Source(model, wares / "adapter") and not find(str(wares / "adapter")).is_rl
    assert find(model) == Source(model, None)
    assert find("Qwen/Qwen2.5-7B-Instruct") == Source("Qwen/Qwen2.5-7B-Instruct", None)
    for name, said in (
        (str(tmp_path / "gone"), "there is no such run or folder"),
        ("runs/none", "there is no such run or folder"),
        (str(wares / "killed"), "has no trained adapter yet"),
        (str(tmp_path), "is not a model folder"),
        (str(done / "rollouts"), "it is neither an adapter nor a model"),
        ("gone.gguf", "there is no file"),
    ):
        with pytest.raises(UserError) as caught:
            find(name)
        assert caught.value.message.startswith(f"the teacher {name}: ") and said in caught.value.message and caught.value.hint


def test_a_base_is_shared_where_it_is_the_same(model_folder, tmp_path):
    source = Source(str(model_folder), None)

    def config(**flags):
        return resolve((), {"model.name": str(model_folder), "distill.teacher": "quickstart", **flags})

    assert shares_base(source, config()) and shares_base(source, config(**{"model.quant": "nf4"}))
    assert shares_base(source, config(**{"model.quant": "nf4", "distill.quant": "nf4"}))
    assert not shares_base(source, config(**{"distill.quant": "nf4"}))
    assert not shares_base(Source(str(tmp_path), None), config())
    run = Source(str(model_folder), tmp_path, config(**{"model.quant": "nf4"}))
    assert shares_base(run, config(**{"model.quant": "nf4"})) and not shares_base(run, config())


def test_a_teacher_on_the_same_base_is_no_second_model(model, tokenizer, model_folder, wares, monkeypatch, tmp_path):
    """It has the run's update, temperature and type of the head; nothing is loaded."""
    monkeypatch.setattr("microrl.train.teacher.load_checked", None)
    flags = {"model.name": str(model_folder), "distill.teacher": str(wares / "done"), "sampling.temperature": 0.5}
    folder = RunFolder.create(tmp_path / "run", {})
    given = resolve((), flags), model, tokenizer, (), no_tools, folder, RunConsole()
    teacher = load_teacher(*given)
    meant = Teacher(model, read(wares / "done" / "final", model), temperature=0.5)
    batch = pad([Row((5, 6), (7, 8, 9), (), 0.0, True, 0)], (0,), model.device, share_prompts=True)
    assert all(map(torch.equal, teacher.scores(batch), meant.scores(batch)))
    assert not torch.equal(teacher.scores(batch).logprobs_BT, Teacher(model, BASE, temperature=0.5).scores(batch).logprobs_BT)
    event, *_ = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert "shares the weights of the base model" in event
    assert load_teacher(*given) is not None, "as on resuming"
    monkeypatch.setattr("microrl.train.teacher.folder_sha256", lambda folder: "another")
    with pytest.raises(UserError, match="has changed since this run began"):
        load_teacher(*given)


@pytest.mark.parametrize("is_run", [False, True])
def test_a_teacher_whose_model_was_exchanged_is_refused(model, model_folder, other_model, wares, tmp_path, is_run):
    """A model of its own, and the base of a run."""
    name, run = shutil.copytree(other_model, tmp_path / "model"), tmp_path / "teacher"
    if is_run:
        shutil.copytree(wares / "done", run)
        settings = (run / "config.json").read_text().replace(str(model_folder), str(name))
        (run / "config.json").write_text(settings)
    config = resolve((), {"model.name": str(model_folder), "distill.teacher": str(run if is_run else name)})
    tokenizer, folder = load_tokenizer(config.model), RunFolder.create(tmp_path / "run", {})
    given = config, model, tokenizer, (), no_tools, folder, RunConsole()
    assert load_teacher(*given) is not None and load_teacher(*given) is not None, "as on resuming"
    build_model(build_tokenizer(), seed=5).save_pretrained(name)
    with pytest.raises(UserError, match="has changed since this run began"):
        load_teacher(*given)


def test_a_teacher_that_is_the_student_teaches_nothing(model_folder):
    def refused(**flags):
        config = resolve((), {"model.name": str(model_folder), "distill.teacher": str(model_folder), **flags})
        refuse_own_start(find(config.asked_teacher), config)

    with pytest.raises(UserError, match="there is nothing to learn from it"):
        refused()
    refused(**{"distill.reward_weight": 1.0})


@pytest.mark.parametrize("kind", ["lora", "rslora", "adalora", "dora", "full"])
def test_a_teacher_from_which_the_run_starts_teaches_nothing(model, tokenizer, model_folder, tmp_path, kind):
    """What `init` names, as the checkpoint that it is loaded from, is compared with the adapter that its run has exported."""
    adapter = attach(weight_sharing_copy(model), config_of(kind), seed=3)
    train(adapter)
    init, final = tmp_path / "step-000004", tmp_path / "teacher" / "final"
    init.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in adapter.state().items()}, init / "adapter.safetensors")
    shown = {name: value for name, value in config_of(kind).model_dump().items() if value is not None}
    flags = {"model.name": str(model_folder), "distill.teacher": str(final.parent), "init": "runs/t"}
    flags |= {f"adapter.{name}": value for name, value in shown.items()}
    config = resolve((), flags)
    RunFolder.create(final.parent, config.model_dump(mode="json"))
    final.mkdir()
    write(final, adapter)

    def load(name, init=init, **changes):
        taught = resolve((), {**flags, **changes})
        folder = RunFolder.create(tmp_path / name, {})
        return load_teacher(taught, model, tokenizer, (), no_tools, folder, RunConsole(), init)

    with pytest.raises(UserError, match="is the model that this run starts from: there is nothing to learn from it"):
        load("same")
    assert load("rewarded", **{"distill.reward_weight": 1.0}) is not None
    train(adapter, steps=1, lr=1e-4)
    save_file({name: tensor.contiguous() for name, tensor in adapter.state().items()}, init / "adapter.safetensors")
    assert load("trained", init) is not None


def test_a_run_ends_before_it_starts_from_its_teacher(inside, wares, tmp_path):
    flags = ["--init", wares / "done", "--set", "sft.steps=none", "--steps", 1, "--out", tmp_path / "run"]
    done = inside("train", wares / "preset.toml", "--teacher", wares / "done", *flags)
    assert done.returncode == 2 and "there is nothing to learn from it" in " ".join(done.stderr.split()), done.stderr
    assert not (tmp_path / "run").exists()


def test_other_prompts_of_a_teachers_run_are_named():
    def config(**flags):
        return resolve((), {"distill.teacher": "quickstart", **flags})

    source = Source("m", None, config(**{"data.system": "Be brief.", "env.target": "calculator"}))
    assert source.other_prompts(config()) == "data.system, env.target"
    assert source.other_prompts(source.config) == "" and Source("m", None).other_prompts(config()) == ""


def test_a_teacher_with_other_tokens_ends_the_run_before_its_first_step(inside, tiny_arguments, other_model, tmp_path):
    strange, out = tmp_path / "strange", tmp_path / "run"
    shutil.copytree(other_model, strange)
    tokenizer = build_tokenizer()
    longer(tokenizer)
    tokenizer.save_pretrained(strange)
    done = inside("train", *tiny_arguments, "--steps", 1, "--teacher", strange, "--out", out)
    assert done.returncode == 2 and "has a different vocabulary" in " ".join(done.stderr.split()), done.stderr
    assert not out.exists()
    dry = inside("train", *tiny_arguments, "--steps", 1, "--teacher", strange, "--dry-run")
    assert dry.returncode == 2 and "has a different vocabulary" in " ".join(dry.stderr.split()), dry.stderr
    gone = inside("train", *tiny_arguments, "--steps", 1, "--teacher", tmp_path / "gone", "--out", out)
    assert gone.returncode == 2 and f"the teacher {tmp_path / 'gone'}: " in " ".join(gone.stderr.split()), gone.stderr


def test_a_dry_run_compares_the_tokenizers(inside, tiny_arguments, other_model, model_folder, wares):
    """Without the teacher's weights."""
    for teacher, said in (
        (other_model, "a second model, with the same tokens"),
        (wares / "done", "shares the weights of the base"),
    ):
        done = inside("train", *tiny_arguments, "--steps", 1, "--teacher", teacher, "--dry-run")
        assert done.returncode == 0 and said in " ".join(done.stdout.split()), done.stderr
    same = inside("train", *tiny_arguments, "--steps", 1, "--teacher", model_folder, "--dry-run")
    assert same.returncode == 2 and "there is nothing to learn from it" in " ".join(same.stderr.split()), same.stderr


def test_a_teacher_that_cannot_be_loaded_is_named(
    inside, tiny_arguments, other_model, wares, model, model_folder, monkeypatch, tmp_path
):
    """Its files are cut short, there is no bitsandbytes, or no room on the card."""

    def refused(teacher, **flags):
        config = resolve((), {"model.name": str(model_folder), "distill.teacher": str(teacher), **flags})
        with pytest.raises(UserError) as caught:
            load_teacher(config, model, load_tokenizer(config.model), (), no_tools, None, RunConsole())
        assert caught.value.message.startswith(f"the teacher {teacher}: ")
        return caught.value.message, caught.value.hint

    cut = shutil.copytree(other_model, tmp_path / "cut")
    weights = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(weights[:-1000])
    assert f"{cut} cannot be loaded: " in refused(cut)[0]
    adapter = shutil.copytree(wares / "adapter", tmp_path / "adapter")
    (adapter / "adapter_model.safetensors").write_bytes(b"cut")
    assert "adapter_model.safetensors" in refused(adapter)[0]
    (cut / "tokenizer.json").write_text("{}")
    assert f"{cut} cannot be loaded: " in refused(cut)[0]
    done = inside("train", *tiny_arguments, "--steps", 1, "--teacher", cut, "--dry-run")
    assert done.returncode == 2 and f"the teacher {cut}: {cut} cannot be loaded: " in " ".join(done.stderr.split()), done.stderr
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "microrl.models.nf4", None)
        patch.delattr("microrl.models.nf4", raising=False)
        assert "distill.quant=nf4: bitsandbytes is not installed" in refused(other_model, **{"distill.quant": "nf4"})[0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (1000, 1000))
    monkeypatch.setattr("microrl.models.gpu.others_on_card", lambda: ())
    message, hint = refused(other_model)
    assert "of the GPU's 0.0 GB are free" in message and hint.endswith("load it in 4 bits: --set distill.quant=nf4")


def test_tokens_that_a_teacher_calls_impossible_are_told(inside, tiny_arguments, tmp_path):
    """60 of 288, from a model whose entropy is known nevertheless."""
    teacher, out = masking_teacher.make(tmp_path / "teacher", range(97, 157)), tmp_path / "run"
    done = inside("train", *tiny_arguments, "--steps", 2, "--teacher", teacher, "--out", out)
    said = "the teacher's log-probability is not finite for "
    assert done.returncode == 0 and " ".join(done.stderr.split()).count(f"impossible tokens: {said}") == 1, done.stderr
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    told = [event for event in events if event["kind"] == "impossible tokens"]
    counts = [line["distill/impossible_tokens"] for line in rows(out)]
    assert [event["count"] for event in told] == counts and 0 not in counts
    assert all(line["distill/teacher_entropy"] > 1 and line["update/skipped"] == 0 for line in rows(out))
    drawn = round(rows(out)[0]["tokens/generated"])
    assert told[0]["message"].startswith(f"{said}{counts[0]} of {drawn} drawn tokens ({counts[0] / drawn:.1%})")
    (finding,) = (one for one in findings(History.load(out)) if one.kind == "impossible tokens")
    assert finding.count == 2 and finding.message.startswith(f"the first time, {said}{counts[0]} of") and finding.advice


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_student_comes_closer_to_another_model(inside, tiny_arguments, other_model, tmp_path):
    """With rewards that are all equal, so that the teacher alone teaches. A random model's divergence from another is large."""
    out = tmp_path / "run"
    done = inside("train", *tiny_arguments, "--steps", 12, "--teacher", other_model, "--lr", 1e-2, "--out", out)
    assert done.returncode == 0, done.stderr
    lines = rows(out)
    divergences = [line["distill/kl"] for line in lines]
    assert sum(divergences[-3:]) < 0.7 * sum(divergences[:3]), divergences
    assert {line["groups/useful"] for line in lines} == {0.0} and {line["update/skipped"] for line in lines} == {0}
    assert f"KL to teacher {divergences[0]:.3f}" in done.stderr
    assert inside("export", out, "--out", tmp_path / "merged").returncode == 0
    card = " ".join((tmp_path / "merged" / "README.md").read_text().split())
    assert "Trained by on-policy distillation from `other" in card and "verifiable rewards" not in card
    assert "- distillation" in card and "- rlvr" not in card
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert RAW in [event["message"] for event in events] and "a second model of" in " ".join(done.stderr.split())
