"""The model card of an exported folder: what it is, how it was trained, with what result, and how to load it.

Every number in it comes from the run folder; what is not known is left out.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from microrl.config import RunConfig
from microrl.config.paths import shown
from microrl.data.prompts import SWITCH, messages
from microrl.limits import LORA_RANKS, buffer_rank
from microrl.report.history import History
from microrl.report.verdict import gain_of
from microrl.run import checkpoint, names
from microrl.run.environment import Environment
from microrl.run.folder import RunFolder
from microrl.run.summary import read_if_there
from microrl.terminal import counted

EXAMPLE = "What is 47 + 38?"


class _Environment(Environment):
    """With packages whose names and versions can be nothing else in a card."""

    packages: dict[Annotated[str, Field(pattern=r"^[\w.-]{1,50}$")], Annotated[str, Field(pattern=r"^[\w.+!-]{1,100}$")]] = Field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The inputs of a model card. `run` is None for an adapter that microrl did not train."""

    form: str
    """lora or full."""
    base: str
    """A hub id, or a path."""
    folder: Path
    """Where it lies; of what is on the hub, its id."""
    config: RunConfig
    run: RunFolder | None
    source: Path
    """The adapter's own folder."""
    rank: int | None
    """Of the LoRA pairs, the largest; None for merged weights."""
    dtype: str
    """Of a whole model's weights."""
    has_template: bool
    """Whether the tokenizer has a chat template."""

    def text(self) -> str:
        """The card, front matter included."""
        parts = [self._front(), f"# {self.folder.name}\n\n{self._about()}", self._training(), self._accuracy(), self._loading()]
        return "\n\n".join(part for part in [*parts, self._versions()] if part) + "\n"

    def serve(self) -> str | None:
        """The command that serves the folder; None if vLLM cannot serve it."""
        folder = shlex.quote(str(self.folder))
        if self.form == "full":
            return f"vllm serve {folder}"
        assert self.rank is not None
        if self.rank > LORA_RANKS[-1] or self._is_gguf:
            return None
        module = shlex.quote(f"{self.folder.name}={self.folder}")
        options = f"--enable-lora --max-lora-rank {buffer_rank(self.rank)} --lora-modules {module}"
        return f"vllm serve {shlex.quote(self.base)} {options}"

    @property
    def _is_gguf(self) -> bool:
        return self.base.endswith(".gguf")

    @property
    def _is_local(self) -> bool:
        return Path(self.base).is_absolute()

    def _front(self) -> str:
        rewarded, others = ["reinforcement-learning", "rlvr"], ["sft" if self.config.distill.teacher is None else "distillation"]
        tags = [*(rewarded if self.config.has_rewards else others), "microrl"]
        if self.run is not None and not self.config.sft.only:
            tags[:0] = [self.config.loss.kind]
        if self.form == "lora":
            tags += ["lora"]
        lines = [
            # The hub accepts only its own ids here.
            *([] if self._is_local else [f"base_model: {self.base}"]),
            f"library_name: {'peft' if self.form == 'lora' else 'transformers'}",
            "pipeline_tag: text-generation",
            "tags:",
            *(f"- {tag}" for tag in tags),
        ]
        return "\n".join(["---", *lines, "---"])

    def _about(self) -> str:
        base = Path(self.base).name if self._is_local else self.base
        if self.form == "full":
            kind = f"The whole model: the weights of `{base}` with the trained update merged, in {self.dtype}."
        else:
            kind = f"A LoRA adapter of rank {self.rank} for `{base}`, relative to its original weights."
        if self.run is None:
            return f"{kind} Written by microrl from `{self.source.name}`."
        quant = self.config.model.quant
        bits = ""
        if quant is not None:
            took = "this model contains the same dequantised weights" if self.form == "full" else "a 16-bit base differs slightly"
            bits = f" It was trained on the 4-bit base ({quant}); {took}."
        return f"{kind} Trained by {self._how()}, with microrl.{bits}"

    def _how(self) -> str:
        """By what: the supervised phase, and what came after it."""
        config, teacher = self.config, shown(str(self.config.distill.teacher))
        rewards = "shuffled rewards, as a control" if config.reward.shuffle else "verifiable rewards"
        first = f"distillation from the stored scores in `{teacher}`" if config.has_stored_teacher else "supervised fine-tuning"
        then = f"reinforcement learning with {rewards}"
        if config.asked_teacher is not None:
            then = f"on-policy distillation from `{teacher}`" + (f" and by {rewards}" if config.has_rewards else "")
        if config.sft.only:
            return first
        return f"{first}, and then {then}" if config.sft.is_on else then

    def _training(self) -> str | None:
        """The run's settings, with the numbers of its summary if there is one."""
        if self.run is None:
            return None
        config = self.config
        summary = read_if_there(self.run.path)
        rows: dict[str, Any] = {"adapter": config.adapter.name}
        if summary is not None:
            rows["trained parameters"] = f"{summary.trainable_params:,}"
            if summary.sft is not None:
                rows["supervised steps"] = summary.sft.steps
        rows["data"] = shown(config.data.name)
        if not config.sft.only:
            optim, batch = config.optim, config.sampling
            steered = f"steered: a step KL of {optim.step_kl:g} nats per token" if optim.step_kl is not None else None
            rows |= {"loss": config.loss.kind, "learning rate": steered or optim.lr}
            rows["batch per step"] = f"{batch.prompts_per_step} prompts x {batch.group_size} completions"
            rows["completions"] = f"up to {batch.max_completion_tokens} tokens, temperature {batch.temperature}"
        if (self.source / "state.json").is_file():
            state = checkpoint.read_state(self.source)
            accuracy = state.validation.best_accuracy
            scored = f", the best on the validation problems (accuracy {accuracy:.3f})" if accuracy is not None else ""
            rows["step"] = f"{state.step}{scored}"
        elif summary is not None:
            ended = "" if summary.status == "done" else f" (the run was {summary.status})"
            rows["steps"] = f"{summary.steps}{ended}"
            rows["hours"] = f"{summary.hours_spent:.3g}"
        rows["seed"] = config.seed
        return "## Training\n\n| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows.items())

    def _accuracy(self) -> str | None:
        """Accuracy before and after; only for the final adapter, since no other was evaluated."""
        if self.run is None or self.source.resolve() != (self.run.path / names.FINAL).resolve():
            return None
        summary = read_if_there(self.run.path)
        if summary is None or summary.eval.before is None or summary.eval.after is None:
            return None
        gain = gain_of(History.load(self.run.path))
        if gain is None:
            return None
        sides = {"before": (gain.before, summary.eval.before), "after": (gain.after, summary.eval.after)}
        rows = ""
        for name, (accuracy, side) in sides.items():
            # A side's own interval is of all of its questions.
            interval = "" if gain.left_out else f"[{side.ci95[0]:.3f}, {side.ci95[1]:.3f}]"
            rows += f"| {name} | {accuracy:.3f} | {interval} |\n"
        rows += f"| paired gain | {gain.mean:+.3f} | [{gain.ci95[0]:+.3f}, {gain.ci95[1]:+.3f}] |"
        asked = f"{counted(gain.questions, 'held-out problem')} of `{shown(self.config.data.name)}`"
        temperature = self.config.evaluation.temperature
        head = f"Measured on {asked}, with {counted(self.config.evaluation.samples, 'sample')} each at temperature {temperature}."
        return f"## Held-out accuracy\n\n{head}\n\n| | accuracy | 95 % interval |\n|---|---|---|\n{rows}"

    def _loading(self) -> str:
        parts = ["## Use", f"```python\n{self._code()}\n```"]
        command = self.serve()
        if command is not None:
            name = self.folder.name if self.form == "lora" else str(self.folder)
            parts += [f"```sh\n{command}\n{self._request(name)}\n```"]
            if self.dtype == "float32" and self.form == "full":
                parts += ["(By default, vLLM computes a float32 model in 16 bits; add `--dtype float32` to change that.)"]
        elif self._is_gguf:
            parts += ["For vLLM, merge the run into a whole model: `microrl export RUN --as full --out DIR`."]
        else:
            limit = f"vLLM serves adapters up to rank {LORA_RANKS[-1]}, but this one has rank {self.rank}"
            parts += [f"{limit}. Merge the run into a whole model instead: `microrl export RUN --as full --out DIR`."]
        return "\n\n".join(parts)

    def _messages(self) -> list[dict[str, str]]:
        """The example chat, with the system message of training."""
        data = self.config.data
        return messages(EXAMPLE, data.system if self.run is not None else None, data.system_role)

    def _thinking(self) -> bool | None:
        """The chat template's switch, as in training."""
        return self.config.data.thinking if self.run is not None else None

    def _code(self) -> str:
        folder, base = json.dumps(str(self.folder)), json.dumps(self.base)
        imports, source = "from transformers import AutoModelForCausalLM, AutoTokenizer", folder
        model = f"model = AutoModelForCausalLM.from_pretrained({folder})"
        if self.form == "lora":
            source = base
            if self._is_gguf:
                path = Path(self.base)
                source = f"{json.dumps(str(path.parent))}, gguf_file={json.dumps(path.name)}"
                imports = f"from peft import PeftModel\n{imports}"
                model = f"model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({source}), {folder})"
            else:
                model += "  # the base and, with peft installed, the adapter"
        if self.has_template:
            chat = json.dumps(self._messages(), indent=4, ensure_ascii=False)
            inputs = f"messages = {chat}\ninputs = tokenizer.apply_chat_template(\n    messages, add_generation_prompt=True, "
            thinking = self._thinking()
            inputs += "" if thinking is None else f"{SWITCH}={thinking}, "
            inputs += 'return_tensors="pt", return_dict=True\n)'
        else:
            inputs = f'inputs = tokenizer({json.dumps(self._plain(), ensure_ascii=False)}, return_tensors="pt")'
        limit = self.config.sampling.max_completion_tokens if self.run is not None else 256
        return "\n".join([
            imports, "", f"tokenizer = AutoTokenizer.from_pretrained({source})", model, inputs,
            f"output = model.generate(**inputs, max_new_tokens={limit})",
            'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))',
        ])  # fmt: skip

    def _plain(self) -> str:
        return "\n\n".join(message["content"] for message in self._messages()) + "\n\n"

    def _request(self, name: str) -> str:
        """A request to the running server."""
        asked: dict[str, Any] = {"messages": self._messages()} if self.has_template else {"prompt": self._plain()}
        if self.has_template and (thinking := self._thinking()) is not None:
            asked["chat_template_kwargs"] = {SWITCH: thinking}
        path = "chat/completions" if self.has_template else "completions"
        body = json.dumps({"model": name, **asked}, ensure_ascii=False)
        return f"curl http://localhost:8000/v1/{path} -H 'Content-Type: application/json' -d {shlex.quote(body)}"

    def _versions(self) -> str | None:
        environment = None if self.run is None else self.run.read_if_there(names.ENVIRONMENT, _Environment)
        if environment is None or not environment.packages:
            return None
        return "## Versions\n\n" + ", ".join(f"{name} {version}" for name, version in environment.packages.items())
