"""What is wrong with a run's data, sandbox and reward, said before torch is imported, which takes seconds."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from functools import cache
from pathlib import Path

from microrl.cli import target
from microrl.clock import now_s
from microrl.config import RunConfig
from microrl.config.data import DataConfig
from microrl.config.environment import EnvironmentConfig
from microrl.config.losses import CustomLossConfig
from microrl.config.paths import is_taught, local_model
from microrl.config.plugins import ALGORITHMS, refuse_missing
from microrl.config.reward import RewardConfig, parse_functions
from microrl.data import taught
from microrl.data.load import check_source, first_questions, split
from microrl.data.prompts import to_prompt
from microrl.environments import process as environment_process
from microrl.errors import UserError
from microrl.rewards.compare import readable
from microrl.rewards.custom.functions import CustomRewards
from microrl.rewards.custom.probe import probe
from microrl.rewards.custom.process import refuse_unusable
from microrl.rewards.judges.judge import refuse_unconfined
from microrl.run import teacher as teachers
from microrl.run.folder import RunFolder, not_a_run
from microrl.sandbox.worker import NoReply
from microrl.sweep.grid import Trial, of_trial

ROWS = 64
"""First rows of the data from which those for the reward functions are taken."""
IMPORT_S = 5.0
"""A function whose module takes longer to be imported is tried after torch, and not twice."""


def refuse(config: RunConfig, *, loads_model: bool = True, is_resumed: bool = False) -> None:
    """Raise UserError for names that cannot be, for bad data, for programs that nothing would confine, and for reward functions
    that cannot be used. What only the start of a run needs is not asked of one that is resumed."""
    models = []
    if loads_model and config.asked_teacher is not None:
        source = teachers.find(config.asked_teacher)
        teachers.refuse_own_start(source, config)
        models = [source.model]
    target.prepare_hub(config, *models, reads_data=True, loads_model=loads_model)
    refuse_unconfined(config)
    refuse_unusable(config.reward)
    refuse_sft_of_several(config)
    refuse_environment(config.env, starts=not is_resumed)
    if isinstance(config.loss, CustomLossConfig):
        _refuse_custom(config.loss.target, config.loss.path)
    if is_resumed:
        return
    if loads_model:
        _refuse_init(config.init)
        _refuse_sft(_sft_data(config))
        _refuse_other_settings(config)
    _try_rewards(config.data, config.reward)


def refuse_environment(env: EnvironmentConfig, *, starts: bool = True) -> None:
    """Raise UserError for a class of which there is no module, or where it `starts` and is no environment."""
    environment_process.refuse_unusable(env)
    for one in env.each.values() if starts else ():
        with closing(environment_process.Instances(one)) as instances:
            instances.wait_until_ready()


def refuse_sft_of_several(config: RunConfig) -> None:
    """Raise UserError where SFT would need several environments. Not part of the configuration: what a run has learned by SFT can
    be evaluated in as many as one likes."""
    if config.sft.is_on and len(config.env.each) > 1:
        raise UserError("SFT with several environments is not supported", "choose one environment: --env MODULE:CLASS")


def refuse_trials(trials: Iterable[Trial], *, are_here: bool) -> None:
    """As `refuse`, for every trial before the first one begins; the error names the trial. What trials have in common is checked
    once: there may be thousands.

    `are_here`: they run on this machine. Otherwise its kernel is not asked, and the reward functions are not called.
    """
    model, data, init, sft = cache(local_model), cache(check_source), cache(_refuse_init), cache(_refuse_sft)
    rewards, trying, algorithm = cache(refuse_unusable), cache(_try_rewards), cache(_refuse_custom)
    teacher = cache(teachers.find)
    for trial in trials:
        config = trial.config
        named = config.asked_teacher
        used = _as_probed(config.reward)
        try:
            model(config.model.name)
            data(config.data)
            init(config.init)
            if named is not None:
                teachers.refuse_own_start(teacher(named), config)
            environment_process.refuse_unusable(config.env)
            refuse_sft_of_several(config)
            sft(_sft_data(config))
            _refuse_other_settings(config)
            if isinstance(config.loss, CustomLossConfig):
                algorithm(config.loss.target, config.loss.path)
            if are_here:
                refuse_unconfined(config)
                rewards(used)
                trying(config.data, used)
            else:
                rewards(used.model_copy(update={"confine_functions": False}))
        except UserError as error:
            raise of_trial(trial.name, error) from None


def _refuse_custom(target: str, folder: str | None) -> None:
    example = "a custom algorithm is MODULE:CLASS, for example --loss my_losses:OnlyBetter"
    refuse_missing(target, what="algorithm", group=ALGORITHMS, folder=folder, key="loss.path", example=example)


def _as_probed(reward: RewardConfig) -> RewardConfig:
    """What matters of it when its functions are tried: not their weights, which are often varied."""
    return RewardConfig(
        functions=tuple(function.target for function in parse_functions(reward.functions)),
        path=reward.path,
        confine_functions=reward.confine_functions,
        function_deadline_s=reward.function_deadline_s,
    )


def _refuse_init(init: str | None) -> None:
    if init is not None and not RunFolder.is_one(Path(init)):
        raise not_a_run(Path(init))


def _sft_data(config: RunConfig) -> str | None:
    """The data set of the SFT, where it is not the run's own."""
    return config.sft.data if config.sft.is_on and config.sft.data != config.data.name else None


def _refuse_sft(data: str | None) -> None:
    """The columns are not asked for: not every row needs a solution, and only the first is read."""
    if data is not None and is_taught(data):
        taught.refuse_cut_short(Path(data))
    elif data is not None:
        check_source(DataConfig(name=data), columns=False)


def _refuse_other_settings(config: RunConfig) -> None:
    if (data := _sft_data(config)) is not None and is_taught(data):
        taught.refuse_other_settings(Path(data), config)


def _try_rewards(data: DataConfig, reward: RewardConfig) -> None:
    """On rows that the run would train on, where they can be read at once. It tries them again when it has read all of them."""
    if not reward.functions:
        return
    questions = split(first_questions(data, ROWS), data.held_out, data.validation).training
    if data.answer_kind == "math":
        questions = [question for question in questions if readable(question.answer) is not False]
    if not questions:
        return
    custom, until = CustomRewards(reward), now_s() + IMPORT_S
    try:
        custom.start()
        custom.import_all(lambda: now_s() > until)
        probe(custom, [to_prompt(question) for question in questions], data.name)
    except NoReply:
        pass
    finally:
        custom.close()
