"""Sampling from the real vLLM: in a stream, by each completion's own key, within a pace, and by every sampling setting."""

import pytest
import torch
from samples import ScriptedPace, rows_of
from vllm_served import CLOSE, LENGTH, STREAMED, STREAMED_LENGTH, gap, process_state, prompts, sampled

from microrl.types import BASE, Prompt, Sampling

pytestmark = pytest.mark.vllm


def test_groups_stream(served):
    seen, running = [], []
    with served.in_mode("swap").awake(BASE) as sampler:
        chosen = prompts(served, STREAMED, STREAMED)
        for position, group in sampler.groups(chosen, Sampling(1, STREAMED_LENGTH), stream=(3,)):
            seen.append(position)
            running.append(served.engine.driver.engine.has_unfinished_requests())
            for completion in group.completions:
                ids, end = completion.token_ids, served.tokenizer.eos_token_id
                assert len(ids) == len(completion.logprobs) and len(group.completions) == 1
                stopped = ids[-1] == end
                assert completion.finish == ("stop" if stopped else "length") and end not in ids[:-1]
                assert stopped or len(ids) == STREAMED_LENGTH
    assert sorted(seen) == list(range(STREAMED)) and seen != sorted(seen), "they come as they finish"
    assert running[0] and not running[-1], "the first comes while others are still decoded"


def test_an_evaluation_that_stops_early_leaves_nothing_behind(served):
    with served.in_mode("swap").awake(BASE) as sampler:
        next(iter(sampler.groups(prompts(served, STREAMED, STREAMED), Sampling(1, STREAMED_LENGTH), stream=(3,))))
        assert served.engine.driver.engine.has_unfinished_requests()
    core = served.engine.driver.engine.engine_core.engine_core
    assert not core.scheduler.has_requests() and not core.batch_queue, "asleep, vLLM has nothing in hand"
    assert len(sampled(served.engine, BASE, prompts(served))) == len(prompts(served))


def test_a_completion_depends_on_its_own_key(served):
    """Not on its neighbours nor the process's generators; and two samples of a prompt differ."""
    engine = served.in_mode("swap")
    together = sampled(engine, BASE, prompts(served), stream=(7, 1))
    torch.manual_seed(99)
    alone = sampled(engine, BASE, prompts(served)[:1], stream=(7, 1))
    other = sampled(engine, BASE, prompts(served), stream=(7, 2))
    ids = [[completion.token_ids for completion in group.completions] for group in together]
    if engine.driver.seeded:
        assert ids[0] == [completion.token_ids for completion in alone[0].completions]
    assert ids != [[completion.token_ids for completion in group.completions] for group in other]
    assert len(set(ids[0])) > 1


def test_sampling_leaves_the_generators_alone(served):
    before, threads = process_state(), torch.get_num_threads()
    policy = served.change("lora", seed=50)
    sampled(served.in_mode("swap"), policy.snapshot(), prompts(served))
    assert process_state() == before and torch.get_num_threads() == threads
    torch.set_num_threads(threads + 1)
    assert torch.get_num_threads() == threads + 1, "vLLM takes this function away on a CPU"
    torch.set_num_threads(threads)


def test_temperature_0_takes_the_likeliest_token(served):
    """vLLM samples one completion of a greedy request; it stands for all."""
    engine = served.in_mode("swap")
    groups = sampled(engine, BASE, prompts(served), Sampling(3, LENGTH, temperature=0.0))
    assert all(len(group.completions) == 3 and len(set(group.completions)) == 1 for group in groups)
    sure = sampled(engine, BASE, prompts(served), Sampling(1, LENGTH, top_p=1e-6))
    assert [one.completions[0].token_ids for one in sure] == [one.completions[0].token_ids for one in groups]


def test_a_pace_holds_groups_back_and_ends_the_sampling(served):
    chosen, sampling = prompts(served, STREAMED, STREAMED), Sampling(1, LENGTH)
    with served.in_mode("swap").awake(BASE) as sampler:
        pace = ScriptedPace(2)
        held = dict(sampler.groups(chosen, sampling, stream=(5,), pace=pace))
        assert pace.most == 2 and held.keys() == set(range(len(chosen)))
        steps = sampler.decode_steps
        assert len(chosen) * LENGTH >= steps > 0
        cut = dict(sampler.groups(chosen, sampling, stream=(5,), pace=ScriptedPace(2, looks=steps // 2)))
        assert 0 < len(cut) < len(chosen)
        part = dict(sampler.groups(chosen[1:], sampling, stream=(5,), positions=range(1, len(chosen))))
    if served.engine.driver.seeded:
        assert all(held[n].completions[0].token_ids == part[n].completions[0].token_ids for n in part)


def test_forced_length_and_nucleus(served):
    engine = served.in_mode("swap")
    groups = sampled(engine, BASE, prompts(served), Sampling(2, 9, min_tokens=9))
    assert {len(completion.token_ids) for group in groups for completion in group.completions} == {9}
    narrow = sampled(engine, BASE, prompts(served), Sampling(2, 9, top_p=1e-6))
    assert all(value == pytest.approx(0, abs=1e-6) for row in rows_of(narrow) for value in row.engine_logprobs)


def test_more_prompt_tokens_than_one_forward_pass_takes(served):
    """On a CPU vLLM stops where the prompt of a request with a seed is read in pieces; here there are pieces."""
    whole = prompts(served)[0].token_ids
    long = [Prompt("q", "1", "", (whole * 6)[n : n + 155]) for n in range(32)]
    policy = served.change("lora", seed=55)
    groups = sampled(served.in_mode("swap"), policy.snapshot(), long, Sampling(1, 8, temperature=0.7))
    assert len(groups) == 32 and gap(policy, groups) < CLOSE
