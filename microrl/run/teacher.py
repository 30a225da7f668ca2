"""What `distill.teacher` names, found without torch: a model, or an adapter on top of one, of a run or in PEFT's format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from microrl.adapters.settings import SETTINGS, base_of
from microrl.config import RunConfig
from microrl.config.paths import expanded, identity, local_model
from microrl.errors import Explained, UserError
from microrl.run.folder import RunFolder, run_above

if TYPE_CHECKING:
    from microrl.plan.workload import TeacherSize


RAW = "microrl has not trained the teacher by RL; if nobody has, expect less than from GRPO (arXiv 2605.12483)"


class Source(NamedTuple):
    """Where a teacher comes from."""

    model: str
    """Its base, as `model.name`."""
    update: Path | None
    """Folder of what is trained on top of it; None: nothing."""
    config: RunConfig | None = None
    """Of the run of microrl that trained it; None: another's, or not trained."""

    @property
    def is_rl(self) -> bool:
        """Whether microrl has trained it by its rewards."""
        return self.config is not None and self.config.has_rewards and not self.config.reward.shuffle

    @property
    def quant(self) -> Literal["nf4"] | None:
        """The type of the base that a run trained on, as `model.quant`."""
        return None if self.config is None else self.config.model.quant

    def other_prompts(self, config: RunConfig) -> str:
        """The keys that make its run's prompts differ from this run's; empty: none, or they are not known."""
        if self.config is None:
            return ""
        keys = ("system", "system_role", "thinking")
        differing = [f"data.{key}" for key in keys if getattr(self.config.data, key) != getattr(config.data, key)]
        return ", ".join(differing + ["env.target"] * (self.config.env.target != config.env.target))


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Errors inside say that they are this teacher's, and name its key for 4 bits instead of the model's."""
    try:
        yield
    except Explained as error:
        message, hint = (said and said.replace("model.quant", "distill.quant") for said in (error.message, error.hint))
        raise type(error)(f"the teacher {name}: {message}", hint) from error


def find(name: str) -> Source:
    """The teacher of this name. Raises UserError if it does not exist; a run that is resumed looks for it again."""
    path = Path(expanded(name, "`distill.teacher`"))
    run = path if RunFolder.is_one(path) else run_above(path) if path.is_dir() else None
    with naming(name):
        if run is not None:
            folder = RunFolder.open(run)
            config, update = folder.settings(), folder.final() if path == run else path
            if not any((update / file).is_file() for file in (SETTINGS, "config.json")):
                raise UserError("it is neither an adapter nor a model", f"pass the run: --teacher {run}")
            source = Source(config.model.name, update, config)
        elif (path / SETTINGS).is_file() and not (path / "config.json").is_file():
            if (named := base_of(path)) is None:
                raise UserError("the adapter does not name its base model", f"set base_model_name_or_path in its {SETTINGS}")
            source = Source(named, path)
        elif not path.exists() and (path.is_absolute() or path.parent.name == "runs"):
            raise UserError(
                "there is no such run or folder", f"check the name: ls {path.parent}; how to make one: microrl guide distillation"
            )
        else:
            source = Source(name, None)
        local_model(source.model)
    return source


def shares_base(source: Source, config: RunConfig) -> bool:
    """Whether the teacher's base is the student's as it is loaded already. A run's update belongs to the base that it was trained
    on, in 4 bits or not."""
    wanted = config.distill.quant or (config.model.quant if source.update is None else source.quant)
    return identity(source.model) == identity(config.model.name) and wanted == config.model.quant


def refuse_own_start(source: Source, config: RunConfig) -> None:
    """Raise UserError where the teacher is the untouched model that the run starts from, and nothing else teaches."""
    if source.update is None and config.init is None and teaches_alone(config) and shares_base(source, config):
        raise own_start(config)


def teaches_alone(config: RunConfig) -> bool:
    """Whether the run learns from its teacher and from nothing else: no reward, and no SFT before it."""
    return not config.has_rewards and not config.sft.is_on


def own_start(config: RunConfig) -> UserError:
    """The error if the teacher is the model that the run starts from."""
    return UserError(
        f"the teacher {config.distill.teacher} is the model that this run starts from: there is nothing to learn from it",
        "pass another one, trained further: --teacher RUN",
    )


def size(config: RunConfig, *, is_at_hand: bool = False) -> TeacherSize | None:
    """What the plan has to know of the teacher; None: there is none, or its size `is_at_hand` neither on this machine nor here.

    An adapter of another origin takes as much as its files. Raises UserError as `find` and `shape_of` do.
    """
    from microrl.plan import source as shapes
    from microrl.plan.workload import TeacherSize

    if config.asked_teacher is None:
        return None
    teacher = find(config.asked_teacher)
    if is_at_hand and not shapes.is_at_hand(teacher.model):
        return None
    with naming(config.asked_teacher):
        shape = shapes.shape_of(teacher.model)
    pairs, changed = 0.0, 0
    if teacher.config is not None and teacher.update is not None:
        adapter = teacher.config.adapter
        targets = shape.targets(adapter)
        if adapter.pair_rank is not None:
            pairs = 4.0 * adapter.pair_rank * sum(linear.count * (linear.n_in + linear.n_out) for linear in targets)
        elif adapter.trains_weights:
            changed = shape.parameters
        else:
            changed = sum(linear.count * linear.n_in * linear.n_out for linear in targets)
    elif teacher.update is not None:
        pairs = float(sum(path.stat().st_size for path in teacher.update.glob("*.safetensors")))
    is_shared = shares_base(teacher, config)
    return TeacherSize(shape, is_shared, config.distill.quant or teacher.quant, pairs, changed)
