"""One adapter as two dense products, in vLLM's place: the arithmetic alone, and in the real vLLM (marked vllm)."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
import v2_runner

from microrl.adapters.lora_linear import LoraProduct
from microrl.rollout.requests import Request
from microrl.rollout.vllm import dense
from microrl.types import BASE, Sampling

WIDTHS = (12, 4, 4)
"""Grouped queries: keys and values are narrower."""
FITS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.03}


class Own:
    """As much of vLLM's own class as there must be."""

    def __init__(self, tokens, *, lora_config):
        self.calls = []

    def update_metadata(self, mapping, lora_index_to_id, max_loras, vocab_size):
        self.calls.append(mapping.index_mapping)

    def add_lora_linear(self, y, x, lora_a_stacked, lora_b_stacked, scale, output_slices, *, buffer=None, **kwargs):
        self.calls.append(kwargs)
        return "vLLM's own"


class Wrapper(dense.Dense, Own):
    pass


def serving(numbers):
    """A wrapper that was told of a batch whose tokens have these adapters; 0: none."""
    wrapper = Wrapper(64, lora_config=None)
    wrapper.update_metadata(SimpleNamespace(index_mapping=numbers), [1], 2, 304)
    return wrapper


def buffers(dtype, rank=3, room=8, inputs=10):
    """An adapter of a lower rank than the buffers have room for, in the first slot."""
    torch.manual_seed(4)
    A = tuple(torch.zeros(1, 1, room, inputs, dtype=dtype) for _ in WIDTHS)
    B = tuple(torch.zeros(1, 1, width, room, dtype=dtype) for width in WIDTHS)
    for a, b in zip(A, B, strict=True):
        a[0, 0, :rank] = torch.randn(rank, inputs)
        b[0, 0, :, :rank] = torch.randn(b.shape[2], rank)
    return A, B


@pytest.mark.parametrize("dtype", FITS)
@pytest.mark.parametrize("rows", [1, 7, 64, 130])
def test_the_products_are_those_of_the_formula(dtype, rows):
    A, B = buffers(dtype)
    x, y = torch.randn(rows, 10).to(dtype), torch.randn(rows, 20).to(dtype)
    updates = [0.5 * (x.double() @ a[0, 0].double().t()) @ b[0, 0].double().t() for a, b in zip(A, B, strict=True)]
    meant = y.double() + torch.cat(updates, 1)
    serving((5,)).add_lora_linear(y, x, A, B, 0.5, WIDTHS)
    assert float((y.double() - meant).abs().max() / meant.abs().max()) < FITS[dtype]


def test_three_dimensions_are_rows_too():
    A, B = buffers(torch.float32)
    x, y = torch.randn(2, 6, 10), torch.randn(2, 6, 20)
    flat = y.clone().view(12, 20)
    serving((5,)).add_lora_linear(y, x, A, B, 1.0, WIDTHS)
    serving((5,)).add_lora_linear(flat, x.view(12, 10), A, B, 1.0, WIDTHS)
    assert torch.equal(y.view(12, 20), flat)


def test_without_an_adapter_nothing_is_read():
    A, B = ([torch.full_like(factor, torch.nan) for factor in factors] for factors in buffers(torch.float32))
    x, y = torch.randn(7, 10), torch.randn(7, 20)
    before = y.clone()
    wrapper = serving((0,) * 7)
    wrapper.add_lora_linear(y, x, A, B, 1.0, WIDTHS)
    assert torch.equal(y, before)
    wrapper.update_metadata(SimpleNamespace(index_mapping=(3,) * 7), [3], 2, 304)
    wrapper.add_lora_linear(y, x, A, B, 1.0, WIDTHS)
    assert y.isnan().all(), "and with one it is"
    assert wrapper.calls == [(0,) * 7, (3,) * 7], "vLLM's own bookkeeping goes on"


def test_in_16_bits_it_is_the_trainers_product_to_the_last_bit():
    """The engine has the scale in B: where that rounds nothing, both sides round the same numbers in the same places."""
    torch.manual_seed(1)
    x, weight = torch.randn(64, 256).bfloat16(), torch.randn(320, 256).bfloat16()
    A, B, scale = torch.randn(64, 256) / 16, torch.randn(320, 64) / 8, 0.25
    y = x @ weight.t()
    served = (B * scale).bfloat16()
    serving((1,)).add_lora_linear(y, x, (A.bfloat16()[None, None],), (served[None, None],), 1.0, (320,))
    trained = LoraProduct.apply(x, weight, None, A, B, scale)
    assert torch.equal(y, trained)
    punica = x @ weight.t() + ((x.float() @ A.bfloat16().float().t()) @ served.float().t()).bfloat16()
    assert not torch.equal(punica, trained)


def test_what_is_more_than_that_is_vllms_own():
    A, B = buffers(torch.float32)
    y, x = torch.zeros(7, 20), torch.randn(7, 10)
    assert serving((1,)).add_lora_linear(y, x, A, B, 1.0, WIDTHS, buffer=torch.zeros(1)) == "vLLM's own"
    assert serving((1,)).add_lora_linear(y, x, A, B, 1.0, WIDTHS, add_inputs=False) is None and y.any()


def test_several_types_are_vllms_own():
    """A router of experts computes in float32."""
    A, B = buffers(torch.bfloat16)
    y, x = torch.zeros(7, 20), torch.zeros(7, 10, dtype=torch.bfloat16)
    assert serving((1,)).add_lora_linear(y, x, A, B, 1.0, WIDTHS) == "vLLM's own"


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_compiled_layer_asks_each_time_whether_there_is_an_adapter():
    """vLLM's Dynamo translates a layer once and drops its guards: what it found then must not be built in."""
    torch._dynamo.reset()
    A, B = buffers(torch.float32)
    wrapper, weight = serving((0,)), torch.randn(20, 10)

    def layer(x):
        y = torch.nn.functional.linear(x, weight)
        wrapper.add_lora_linear(y, x, A, B, 1.0, WIDTHS)
        return torch.relu(y)

    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counted, dynamic=True)
    for numbers in ((0,), (1,), (0,), (2,)):
        wrapper.update_metadata(SimpleNamespace(index_mapping=numbers), [], 2, 304)
        for rows in (7, 64):
            x = torch.randn(rows, 10)
            assert torch.allclose(compiled(x), layer(x), atol=1e-6)
            assert torch.equal(layer(x), torch.relu(x @ weight.t())) == (numbers == (0,))
    assert counted.frame_count == 1
    assert [node.target for node in counted.graphs[0].graph.nodes].count(torch.ops.microrl.add_low_rank_) == 1


class Platform:
    """As much of vLLM's platform as there must be."""

    @classmethod
    def get_punica_wrapper(cls):
        return f"{__name__}.Own"


@pytest.fixture
def platform(monkeypatch):
    """A vLLM of nothing but a platform; its class can be changed."""
    made = type("Card", (Platform,), {})
    monkeypatch.delenv(dense.ASKED, raising=False)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=made()))
    return made


def built(platform, options):
    """The class of a wrapper that is built now, as vLLM builds it."""
    with dense.dense_products(options):
        module, _, name = platform.get_punica_wrapper().rpartition(".")
        made = getattr(sys.modules[module], name)(64, lora_config=None)
    assert platform().get_punica_wrapper() == f"{__name__}.Own", "the hook is as it was"
    return made


def test_vllms_hook_names_the_dense_class_while_it_is_built(platform):
    options = {"enable_lora": True}
    made = built(platform, options)
    assert isinstance(made, dense.Dense) and isinstance(made, Own)
    assert options["additional_config"] == {"lora_products": "dense"}, "vLLM's compiled graphs are kept apart"
    assert dense.products_of([SimpleNamespace(punica_wrapper=made)]) == "dense"
    with pytest.raises(ZeroDivisionError), dense.dense_products(options):
        assert platform.get_punica_wrapper() != f"{__name__}.Own"
        1 / 0  # noqa: B018
    assert platform.get_punica_wrapper() == f"{__name__}.Own"


@pytest.mark.parametrize("why", ["asked", "no adapters", "another signature", "no method"])
def test_vllms_own_way_stays(platform, monkeypatch, why):
    options = {"enable_lora": True}
    if why == "asked":
        monkeypatch.setenv(dense.ASKED, "punica")
    if why == "no adapters":
        options = {}
    if why == "another signature":
        monkeypatch.setattr(Own, "add_lora_linear", lambda self, y, x, lora_a_stacked, bias, *more: None)
    if why == "no method":
        monkeypatch.delattr(Own, "update_metadata")
    made = built(platform, options)
    assert type(made) is Own and "additional_config" not in options
    assert dense.products_of([SimpleNamespace(punica_wrapper=made)]) == "punica"


def test_a_hook_that_is_gone_is_no_error(platform, monkeypatch):
    monkeypatch.delattr(Platform, "get_punica_wrapper")
    with dense.dense_products({"enable_lora": True}):
        assert not hasattr(platform, "get_punica_wrapper")


# ---- in the real vLLM

vllm = pytest.mark.vllm
INTERPRETED = v2_runner.is_chosen()


@pytest.fixture(scope="module")
def served(tokenizer):
    """An engine as in `conftest.py`, with room for 132 completions at once."""
    from vllm_served import Served

    made = Served(tokenizer, **{"sampling.prompts_per_step": 33})
    with made.engine.awake(BASE):
        ((kind, said, *_),) = made.events
        assert kind == "probe calibrated" and said.endswith("vLLM multiplies by the adapter with dense matmuls")
    yield made
    made.engine.close()


def sampled(served, snapshot, count, group=1, tokens=6):
    """Token ids and log-probabilities, as numbers, of the first of the prompts."""
    from vllm_served import prompts
    from vllm_served import sampled as sample

    sampling = Sampling(group, 3 if INTERPRETED else tokens, temperature=0.7)
    groups = sample(served.in_mode("swap"), snapshot, prompts(served, count, most=count), sampling)
    return [(one.token_ids, one.logprobs) for group in groups for one in group.completions]


@vllm
def test_the_real_vllm_is_dense(served):
    driver = served.engine.driver
    assert driver.lora_products == "dense"
    slices = {tuple(layer.output_slices) for layer in driver.adapter_manager.modules.values()}
    assert (128, 64, 64) in slices and (256, 256) in slices, "packed layers, of unequal parts too"


@vllm
def test_the_base_after_an_adapter_is_the_base_to_the_last_bit(served):
    """By each of two guards alone: nothing is computed, and the buffers are zero."""
    driver = served.engine.driver
    wrapper = next(iter(driver.adapter_manager.modules.values())).punica_wrapper
    base = sampled(served, BASE, 4)
    adapted = sampled(served, served.change("lora", seed=61).snapshot(), 4)
    assert adapted != base
    assert not any(factor.any() for layer in driver.adapter_manager.modules.values() for factor in layer.lora_b_stacked)
    assert sampled(served, BASE, 4) == base
    wrapper.serves.fill_(True)  # as in a graph that was captured with an adapter
    update, wrapper.update_metadata = wrapper.update_metadata, lambda *_: None
    try:
        assert sampled(served, BASE, 4) == base
    finally:
        wrapper.update_metadata = update
        driver.adapter_manager._last_mapping = None
    layers = driver.adapter_manager.modules.values()
    for factor in (factor for layer in layers for factor in (*layer.lora_a_stacked, *layer.lora_b_stacked)):
        factor.fill_(7)
    try:
        assert sampled(served, BASE, 4) == base
    finally:
        for layer in layers:
            layer.reset_lora(0)


@vllm
def test_requests_of_two_kinds_are_never_in_one_batch(served):
    engine, pairs = served.in_mode("swap"), served.change("lora", seed=62).snapshot().pairs
    with engine.awake(BASE):
        engine.driver.sample(Request((0,), (5, 6, 7), 1), Sampling(1, 3, temperature=1.0), (), seed=1)
        for change in (lambda: engine.driver.swap(pairs), engine.driver.drop_adapters):
            with pytest.raises(RuntimeError, match="1 requests for another adapter are still being decoded"):
                change()
        engine.driver.settle()
        engine.driver.swap(pairs)


@pytest.mark.cases(vllm=1)
@vllm
@pytest.mark.parametrize(("count", "group"), [(1, 1), (7, 1), (16, 4), (33, 4)])
def test_a_seed_repeats_its_samples_to_the_last_bit(served, count, group):
    snapshot = served.change("lora", seed=63).snapshot()
    first = sampled(served, snapshot, count, group)
    assert len(first) == count * group
    assert sampled(served, snapshot, count, group) == first


@vllm
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a card a process has one engine")
def test_vllms_own_way_serves_where_it_is_wanted(served, monkeypatch):
    """One engine built anew for it, and one after it."""
    from vllm_served import CLOSE, gap, prompts
    from vllm_served import sampled as sample

    for products in ("punica", "dense"):
        monkeypatch.setenv(dense.ASKED, products)
        served.engine.close()
        served.restart()
        engine = served.in_mode("swap")
        assert engine.driver.lora_products == products
        policy = served.change("lora", seed=64)
        groups = sample(engine, policy.snapshot(), prompts(served, 2), Sampling(2, 3, temperature=0.7))
        assert gap(policy, groups) < CLOSE and engine.report.mode == "swap"
