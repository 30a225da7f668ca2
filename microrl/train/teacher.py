"""`--teacher`: load the teacher of a distillation, and refuse one whose tokenizer differs from the student's."""

from __future__ import annotations

import hashlib
import json
import sys
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from microrl.adapters.folder import read
from microrl.adapters.starts import norm
from microrl.config import RunConfig
from microrl.config.schema import ModelConfig
from microrl.data.load import Question
from microrl.data.prompts import ToolsOf, render_all
from microrl.errors import UserError
from microrl.evaluation.record import folder_sha256
from microrl.models.fingerprint import weights_sha256
from microrl.models.load import load_tokenizer
from microrl.models.tensors import updated
from microrl.models.threads import threads
from microrl.policy.architecture import load_checked
from microrl.policy.teacher import Teacher
from microrl.quickstart import model as quickstart
from microrl.run import checkpoint, names
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.run.teacher import RAW, find, naming, own_start, shares_base, teaches_alone
from microrl.types import BASE, AdapterSnapshot, LowRank, Prompt

COMPARED = 8
"""Questions whose prompts are compared."""
AT_ONCE = 64
"""Tokens whose texts are joined, where two tokenizers read them."""
SAME = 1e-6
"""Relative difference up to which two updates are the same. Rounding makes 1e-8 of it."""
OF_FAMILY = "choose a teacher with the student's tokenizer, usually one of the same model family"


def load_teacher(
    config: RunConfig,
    student: PreTrainedModel,
    tokenizer: Any,
    questions: Sequence[Question],
    tools: ToolsOf,
    folder: RunFolder,
    console: RunConsole,
    init: Path | None = None,
) -> Teacher | None:
    """The teacher that `distill.teacher` names; None: none is asked. Call it before the student's adapter is attached.

    One on the student's own base shares its weights; any other is a second model. `init`: the checkpoint that the student starts
    from. Raises UserError for what `find`, `load` and `folder.read` refuse, for other tokens (`refuse_other_tokens`), and for a
    teacher that is the student's start, or no longer the one that this run began with.
    """
    if (name := config.asked_teacher) is None:
        return None
    source = find(name)
    console.status(f"loading the teacher {name}")
    base, how, settings = student, "it shares the weights of the base model", config.model
    if not shares_base(source, config):
        changes = {"name": source.model, "quant": config.distill.quant or source.quant}
        settings = quickstart.located(config.model.model_copy(update=changes), console)
        with naming(name):
            theirs = load_tokenizer(settings)
        refuse_other_tokens(name, theirs, tokenizer, rendering(config, questions, tools))
        with naming(name), threads(torch.get_num_threads()):  # loading sets those that suit the teacher
            base = load_checked(settings, console.progress).model
        how = f"a second model of {base.num_parameters():,} parameters"
    with naming(name):
        update = BASE if source.update is None else read(source.update, base)
    if init is not None and base is student and teaches_alone(config):
        _refuse_equal(update, checkpoint.update_of(init, config, student), student, config)
    _record_or_verify(name, teacher_sha256(settings, source.update, console), folder)
    if update.merged and base is student:
        how += f", except the {len(update.merged)} tensors that it has changed"
    folder.event("teacher", f"{name}: {how}")
    console.note(f"teacher {name}: {how}")
    others = source.other_prompts(config)
    for said in (
        RAW if not source.is_rl else "",
        f"the teacher was trained on other prompts (different: {others})" if others else "",
    ):
        if said:
            folder.event("warning", said)
            console.note(f"warning: {said}")
    return Teacher(base, update, temperature=config.sampling.temperature, fp32_head=config.model.head_dtype == "float32")


def teacher_sha256(model: ModelConfig, update: Path | None, console: RunConsole) -> str:
    """A hash of a teacher's weights: of its model, which must have been loaded and of which little is read (`weights_sha256`),
    and of every byte of its update."""
    base = weights_sha256(quickstart.located(model, console).name)
    return base if update is None else hashlib.sha256(f"{base} {folder_sha256(update)}".encode()).hexdigest()


def _refuse_equal(teacher: AdapterSnapshot, start: AdapterSnapshot, model: PreTrainedModel, config: RunConfig) -> None:
    """Raise UserError where both updates make the same network of this model, up to float32's rounding: an exported LoRA pair may
    be scaled in another place."""
    pairs, merged = teacher.pairs, teacher.merged
    if pairs.keys() != start.pairs.keys() or merged.keys() != start.merged.keys():
        return
    if all(_is_same(pair, start.pairs[name]) for name, pair in pairs.items()) and all(
        torch.equal(*(updated(name, model.get_parameter(name), update) for update in (teacher, start))) for name in merged
    ):
        raise own_start(config)


def _is_same(one: LowRank, other: LowRank) -> bool:
    """Whether two pairs have the same product, by the norm of the difference."""
    A_RI = torch.cat([one.A_RI, other.A_RI])
    B_OR = torch.cat([one.scale * one.B_OR, -other.scale * other.B_OR], dim=1)
    return norm(A_RI, B_OR) <= SAME * norm(one.A_RI, one.scale * one.B_OR)


def _record_or_verify(name: str, sha256: str, folder: RunFolder) -> None:
    """Record the teacher's weights. Raises UserError where they are not those that this run began with."""
    recorded = folder.read_if_there(names.TEACHER, dict[str, str])
    if recorded is None:
        folder.write_json(names.TEACHER, {"teacher": name, "sha256": sha256})
    elif recorded.get("sha256") != sha256:
        raise UserError(f"the teacher {name} has changed since this run began", "restore it, or start a new run")


def rendering(config: RunConfig, questions: Sequence[Question], tools: ToolsOf) -> Callable[[Any], list[Prompt]]:
    """From a tokenizer to the first prompts of a run, as long as they are: both tokenizers then make as many."""
    data = config.data.model_copy(update={"max_prompt_tokens": sys.maxsize})
    return lambda tokenizer: render_all(questions[:COMPARED], tokenizer, data, tools=tools)


def refuse_other_tokens(name: str, teacher: Any, student: Any, render: Callable[[Any], list[Prompt]]) -> None:
    """Raise UserError unless both tokenizers have the same vocabulary, end a text alike, split it alike, and `render` the same
    prompts, or if the teacher's chat template fails."""
    theirs, ours = teacher.get_vocab(), student.get_vocab()
    differing = sorted(token for token in {**ours, **theirs} if ours.get(token) != theirs.get(token))
    if differing:
        here, there = (f"has the id {ids[differing[0]]}" if differing[0] in ids else "does not exist" for ids in (ours, theirs))
        raise UserError(
            f"the teacher {name} has a different vocabulary: {len(differing)} tokens differ; for example, {differing[0]!a} "
            f"{here} in the student's and {there} in the teacher's",
            OF_FAMILY,
        )
    if teacher.eos_token_id != student.eos_token_id:
        raise UserError(
            f"the teacher {name} has a different end-of-text token: {teacher.eos_token!a} instead of {student.eos_token!a}",
            "choose a teacher and a student of one family that are both base models, or both instruct models",
        )
    _refuse_other_splits(name, teacher, student)
    prompts = render(student)
    with naming(name):
        others = render(teacher)
    for mine, other in zip(prompts, others, strict=True):
        if (ids := mine.token_ids) != (other_ids := other.token_ids):
            at = _first_difference(ids, other_ids)
            here, there = student.decode(ids[at : at + 8]), teacher.decode(other_ids[at : at + 8])
            what = "chat template: it renders" if mine.text != other.text else "tokenizer: it splits"
            raise UserError(
                f"the teacher {name} has a different {what} row {mine.row} differently from token {at} on, as {there!a} instead "
                f"of {here!a}",
                "if they differ in the default system message, set one: --set data.system=TEXT; else choose another teacher",
            )


def _refuse_other_splits(name: str, teacher: Any, student: Any) -> None:
    """Raise UserError where a text has other tokens in one tokenizer than in the other, which has the same vocabulary.

    Settings that differ may come to the same: a GGUF file, for example, carries no normalizer. So where they do, both tokenizers
    read the texts of all tokens, on lines of their own and joined, in normal form C, which takes some 10 s for 150,000. Special
    tokens are left out: families differ in which are special, and where it matters, prompts differ.
    """
    ours, theirs = _splitting(student), _splitting(teacher)
    if ours == theirs:
        return
    special = {number for one in (student, teacher) for number, token in one.added_tokens_decoder.items() if token.special}
    tokens = student.batch_decode([[number] for number in sorted(set(student.get_vocab().values()) - special)])
    joined = (between.join(tokens[at : at + AT_ONCE]) for between in ("\n", "") for at in range(0, len(tokens), AT_ONCE))
    texts = [unicodedata.normalize("NFC", text) for text in joined]
    for mine, other in zip(*(one(texts, add_special_tokens=False)["input_ids"] for one in (student, teacher)), strict=True):
        if mine != other:
            at = _first_difference(mine, other)
            keys = ", ".join(key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key))
            here, there = (student.batch_decode([[number] for number in ids[at : at + 2]]) for ids in (mine, other))
            raise UserError(
                f"the teacher {name} splits text differently ({keys}): it reads {there!a} instead of {here!a}", OF_FAMILY
            )


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Where two lists of tokens that are not the same begin to differ."""
    return next((at for at, (mine, theirs) in enumerate(zip(one, other)) if mine != theirs), min(len(one), len(other)))


def _splitting(tokenizer: Any) -> dict[str, Any]:
    """What the tokens of a text follow from, by its names in `tokenizer.json`; nothing for a tokenizer without such a file."""
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is None:
        return {}
    tree = json.loads(backend.to_str())
    tree["merges"] = tree["model"].pop("merges", None)
    return {key: tree[key] for key in ("normalizer", "pre_tokenizer", "added_tokens", "model", "merges")}
