"""Episodes: turns of the policy with an environment's answers in between, as the engine draws and the trainer scores them."""

import dataclasses
import random
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import torch
from echoes import Echo, Echoes
from random_models import ARCHITECTURES, random_model, with_adapter
from samples import PROMPTS, rows_of

from microrl.errors import UserError
from microrl.rollout import episodes, requests
from microrl.rollout.continuous import InFlight
from microrl.rollout.decoding import DecodingBatch
from microrl.rollout.engine import Sampler
from microrl.rollout.plain_step import PlainStep
from microrl.rollout.requests import Queue, Request
from microrl.rollout.transformers import TransformersEngine
from microrl.types import BASE, Completion, Sampling


def engine_on(model, tokenizer, max_kv_gb=1):
    """An engine whose turns end after some ten tokens: one token in twelve is taken for the end of a turn."""
    engine = TransformersEngine(model, tokenizer, max_kv_gb=max_kv_gb)
    engine.stops = torch.arange(2, 300, 12)
    return engine


def sample(engine, snapshot, sampling, environment, stream=(0, 0)):
    with engine.awake(snapshot) as sampler:
        found = sampler.groups(PROMPTS, sampling, stream=stream, environment=environment)
        return [group for _, group in sorted(found, key=lambda item: item[0])]


def with_turns(groups):
    return [one for group in groups for one in group.completions if one.drawn is not None]


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_engine_and_trainer_agree_on_episodes(architecture, tokenizer):
    """Of up to three turns; the tools' tokens are read by both, and have no log-probability of their own."""
    model = random_model(architecture)
    engine = engine_on(model, tokenizer)
    policy = with_adapter(model, **{"sampling.max_completion_tokens": 60, "adapter.alpha": 4.0})
    groups = sample(engine, policy.snapshot(), Sampling(6, 60), Echoes())
    several = with_turns(groups)
    assert len(several) > 6 and {(one.episode.turns, one.finish) for one in several} >= {(3, "stop"), (3, "length")}
    completions = [completion for group in groups for completion in group.completions]
    rows = [dataclasses.replace(row, drawn=one.drawn) for row, one in zip(rows_of(groups), completions, strict=True)]
    for row, logprobs in zip(rows, policy.logprobs(rows), strict=True):
        drawn = torch.tensor(row.drawn if row.drawn is not None else [True] * len(row.completion_ids))
        assert torch.allclose(torch.tensor(row.engine_logprobs), logprobs, atol=1e-4)
        assert (logprobs[~drawn] == 0).all() and (logprobs[drawn] < 0).all()
    # Hidden from attention, the answers would leave the log-probabilities of what follows as they were.
    blind = [
        dataclasses.replace(row, completion_ids=tuple(t if d else 7 for t, d in zip(row.completion_ids, row.drawn)))
        for row in rows
        if row.drawn is not None
    ]
    again = zip(blind, policy.logprobs(blind), strict=True)
    assert max((torch.tensor(row.engine_logprobs) - found).abs().max() for row, found in again) > 0.01


def test_an_episode_is_its_turns_and_answers_token_by_token(tokenizer):
    """The first turns are those of a group without tools; every answer stands behind its turn as it was given."""
    engine = engine_on(random_model("qwen2"), tokenizer)
    single = sample(engine, BASE, Sampling(6, 20), None)
    groups = sample(engine, BASE, Sampling(6, 20), Echoes(turns=2))
    pairs = [(a, b) for g, h in zip(single, groups) for a, b in zip(g.completions, h.completions)]
    assert {a.finish for a, _ in pairs} == {"stop", "length"}
    for alone, episode in pairs:
        assert episode.token_ids[: len(alone.token_ids)] == alone.token_ids
        if alone.finish == "length":
            assert episode.drawn is None and episode.transcript is None
            continue
        answer = (*(100 + token % 50 for token in alone.token_ids[:7]), 60, 60)
        place = slice(len(alone.token_ids), len(alone.token_ids) + len(answer))
        if episode.drawn is not None:
            assert episode.token_ids[place] == answer and not any(episode.drawn[place]) and not any(episode.logprobs[place])
            assert all(episode.drawn[: place.start]) and all(episode.drawn[place.stop :])
            assert episode.text == tokenizer.decode(episode.token_ids[place.stop :], skip_special_tokens=True)
            assert episode.length + len(answer) == len(episode.token_ids) <= 20


def test_every_turn_has_random_numbers_of_its_own(tokenizer):
    """A group's first turns are one request, each later turn is one of its own, named by position, number and turn."""
    asked = []

    class Parrot(Sampler):
        def complete(self, queue, sampling):
            while (ready := queue.ready()) or queue.hurry():
                queue.start(ready)
                for request in ready:
                    asked.append(request)
                    for number in range(request.count):
                        yield request, number, Completion((9, 2), (0.0, 0.0), "stop", 0, "hello")

    groups = dict(Parrot().groups(PROMPTS[:2], Sampling(2, 40), stream=(7,), positions=[3, 5], environment=Echoes()))
    assert [request.key for request in asked[:2]] == [(7, 3), (7, 5)]
    assert sorted(request.key for request in asked[2:]) == [(7, p, n, turn) for p in (3, 5) for n in (0, 1) for turn in (1, 2)]
    whole = {p: group.prompt.token_ids + group.completions[0].token_ids for p, group in groups.items()}
    for request in asked:
        assert whole[request.key[1]][: len(request.token_ids)] == request.token_ids
        assert request.written == len(request.token_ids) - len(groups[request.key[1]].prompt.token_ids)
    assert [len(group.completions[0].token_ids) for group in groups.values()] == [2 + 4 + 2 + 4 + 2] * 2


def test_an_engine_that_only_hurries_ends_with_the_pace():
    """A tool is still at work when the time is up: nothing would ever be ready."""
    pace = SimpleNamespace(may_start=lambda in_flight: True, is_over=lambda: False)
    queue = Queue([Request((0, 0), (1, 2), 1)], stream=(0,), pace=pace)
    queue.start(queue.ready())
    queue.expect((0, 0, 0), Future())
    assert queue.hurry()
    pace.is_over = lambda: True
    assert queue.ready() == [] and not queue.hurry()


def test_an_answer_that_does_not_fit_is_rolled_back(tokenizer):
    """The episode ends as truncated, with its last turn whole; with one token less it goes on."""
    engine = engine_on(random_model("qwen2"), tokenizer)
    groups = sample(engine, BASE, Sampling(6, 40), Echoes(turns=9, extra=12))
    seen = set()
    for one in (c for g in groups for c in g.completions):
        assert len(one.token_ids) == len(one.logprobs) <= 40
        assert one.drawn is None or one.drawn[-1], "no answer is the last word"
        if one.finish == "length" and len(one.token_ids) < 40:
            assert one.token_ids[-1] in engine.stops
            seen.add(one.drawn is None)
    assert seen == {True, False}
    assert all(c.episode.turns == 1 for g in sample(engine, BASE, Sampling(6, 40), Echoes(extra=40)) for c in g.completions)


def test_a_turn_that_is_cut_off_is_a_turn(tokenizer):
    engine = engine_on(random_model("qwen2"), tokenizer)
    (first,) = {c.episode.turns for g in sample(engine, BASE, Sampling(6, 1), Echoes()) for c in g.completions}
    assert first == 1


@pytest.mark.parametrize("max_kv_gb", [1, 3e-4])
def test_the_order_in_which_tools_finish_changes_no_bit(max_kv_gb, tokenizer):
    """Nor does it change what is decoded together; and where there is room for one group at a time, the tokens are the same."""
    engine = engine_on(random_model("qwen2"), tokenizer, max_kv_gb)
    generator = random.Random(1)
    at_once = sample(engine, BASE, Sampling(6, 60), Echoes())
    slowly = sample(engine, BASE, Sampling(6, 60), Echoes(wait=lambda: time.sleep(generator.random() / 30)))
    assert at_once == slowly and with_turns(at_once)


@pytest.fixture
def tokens_read(monkeypatch):
    """The tokens of each forward pass that reads several of a row, with their padding."""
    read, plain = [], DecodingBatch._forward

    def forward(self, ids_RL, *arguments):
        if ids_RL.shape[1] > 1:
            read.append(ids_RL.numel())
        return plain(self, ids_RL, *arguments)

    own = PlainStep.__call__

    def several(self, tokens_RT, *arguments):
        if tokens_RT.shape[1] > 1:
            read.append(tokens_RT.numel())
        return own(self, tokens_RT, *arguments)

    monkeypatch.setattr(DecodingBatch, "_forward", forward)
    monkeypatch.setattr(PlainStep, "__call__", several)
    return read


def read_again(monkeypatch, *arguments):
    """What is sampled where every turn reads its whole conversation."""
    with monkeypatch.context() as patch:
        patch.setattr(DecodingBatch, "keep", lambda self, rows, lengths: [])
        return sample(*arguments)


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_turn_reads_only_what_is_new(architecture, tokenizer, monkeypatch, tokens_read):
    """What is drawn is as likely as if each turn read the whole conversation."""
    engine = engine_on(random_model(architecture), tokenizer)
    kept = sample(engine, BASE, Sampling(6, 90), Echoes(turns=6))
    few = sum(tokens_read)
    tokens_read.clear()
    whole = read_again(monkeypatch, engine, BASE, Sampling(6, 90), Echoes(turns=6))
    assert few < sum(tokens_read) / 2
    pairs = [(a, b) for g, h in zip(kept, whole, strict=True) for a, b in zip(g.completions, h.completions, strict=True)]
    assert sum(a.episode.turns for a, _ in pairs) > 40
    # A float's last bit may turn a draw that lies on the boundary of two tokens.
    same = [(a, b) for a, b in pairs if a.token_ids == b.token_ids]
    assert len(same) >= len(pairs) - 1
    assert all(a.logprobs == pytest.approx(b.logprobs, abs=1e-5) for a, b in same)


@pytest.mark.parametrize("groups", [1, 2])
def test_what_finds_no_room_is_read_again(groups, tokenizer, monkeypatch):
    """Room for one or two of three groups: their rows and those that are kept take no more, and the tokens are the same."""
    bytes_a_token = 2 * 3 * 2 * 16 * 4
    engine = engine_on(random_model("qwen2"), tokenizer, 6 * (groups + 0.1) * 1.25 * (11 + 60) * bytes_a_token / 1e9)
    held, lost = [], []
    change, begun = InFlight.change, InFlight._begun

    def changed(self, *arguments):
        assert self._rows == 6 * groups
        yield from change(self, *arguments)
        held.append((len(self._kept), len(self._slots_R)))

    def looked(self, joining):
        rows, requests = begun(self, joining)
        lost.append(sum(request.written > 0 for request in requests) - len(rows))
        return rows, requests

    with monkeypatch.context() as patch:
        patch.setattr(InFlight, "change", changed)
        patch.setattr(InFlight, "_begun", looked)
        narrow = sample(engine, BASE, Sampling(6, 60), Echoes())
    assert max(kept for kept, _ in held) > 1 and max(kept + rows for kept, rows in held) == 6 * groups and sum(lost) > 1
    assert sample(engine, BASE, Sampling(6, 60), Echoes()) == narrow
    wide = sample(engine_on(random_model("qwen2"), tokenizer), BASE, Sampling(6, 60), Echoes())
    pairs = [(a, b) for g, h in zip(narrow, wide, strict=True) for a, b in zip(g.completions, h.completions, strict=True)]
    assert sum(a.token_ids != b.token_ids for a, b in pairs) <= 1


def test_an_episode_does_not_wait_for_others_of_its_group(tokenizer):
    """A second turn ends before the last of the first ones does."""
    turns = []

    class Noted(Echo):
        def reply(self, turn, room):
            turns.append(self.turns + 1)
            return super().reply(turn, room)

    class All(Echoes):
        def begin(self, prompt):
            return Noted(prompt)

    engine = engine_on(random_model("qwen2"), tokenizer)
    with engine.awake(BASE) as sampler:
        list(sampler.groups(PROMPTS[:1], Sampling(24, 200), stream=(0, 0), environment=All()))
    assert turns.index(2) < len(turns) - 1 - turns[::-1].index(1)


def test_tools_work_while_others_decode(tokenizer, monkeypatch):
    """Rounds are decoded while a tool takes its time; then the engine waits for it."""
    engine = engine_on(random_model("qwen2"), tokenizer)
    decoded, during = 0, []

    def wait():
        began = decoded
        time.sleep(0.1)
        during.append(decoded - began)

    plain = requests.Queue.ready

    def ready(self, *arguments):
        nonlocal decoded
        decoded += 1
        return plain(self, *arguments)

    monkeypatch.setattr(requests.Queue, "ready", ready)
    sample(engine, BASE, Sampling(6, 200), Echoes(wait=wait))
    assert max(during) > 5


def test_a_deadline_ends_the_waiting_for_a_tool(tokenizer):
    engine = engine_on(random_model("qwen2"), tokenizer)
    began = time.monotonic()

    class Over(Exception):
        pass

    def check():
        if time.monotonic() - began > 1:
            raise Over

    engine.check_deadline = check
    over = []

    class Waiting(Echoes):
        def give_up(self):
            over.append(True)

    def wait():
        while not over:
            time.sleep(0.01)

    with pytest.raises(Over):
        sample(engine, BASE, Sampling(6, 60), Waiting(wait=wait))


def test_rollouts_of_one_question_have_one_prompt(tokenizer):
    engine = engine_on(random_model("qwen2"), tokenizer)

    class Moody(Echoes):
        def begin(self, prompt):
            return Echo(dataclasses.replace(prompt, token_ids=(*prompt.token_ids, random.randrange(9, 99))))

    with pytest.raises(UserError, match="says different things"):
        sample(engine, BASE, Sampling(6, 60), Moody())


def test_what_an_environment_raises_ends_the_sampling(tokenizer):
    engine = engine_on(random_model("qwen2"), tokenizer)

    def wait():
        raise UserError("no tokens", "none")

    with pytest.raises(UserError, match="no tokens"):
        sample(engine, BASE, Sampling(6, 60), Echoes(wait=wait))


def test_as_many_episodes_begin_as_may_have_processes(tokenizer, monkeypatch):
    """The others begin when these are over, and are what they would have been."""
    engine, sampling = engine_on(random_model("qwen2"), tokenizer), Sampling(2, 40)
    whole = sample(engine, BASE, sampling, Echoes())
    alive, most = set(), []

    class Counted(Echo):
        def ended(self):
            alive.discard(id(self))
            return super().ended()

    class Counts(Echoes):
        def begin(self, prompt):
            one = Counted(prompt)
            kept.append(one)
            alive.add(id(one))
            most.append(len(alive))
            return one

    kept = []
    monkeypatch.setattr(episodes, "AT_ONCE", 4)
    parts = sample(engine, BASE, sampling, Counts())
    tokens = [[[one.token_ids for one in group.completions] for group in groups] for groups in (parts, whole)]
    assert tokens[0] == tokens[1]  # how many decode together changes the last digits of log-probabilities
    assert max(most) == 4 and len(kept) == 2 * len(PROMPTS) > 4
