"""What of an engine is still alive after it was closed, as JSON: `python close_leaks.py v1|v2|compiled`.

Two engines, one after the other: of the first, vLLM's variables are not cleared on closing.

`v1` is the CPU build's own model runner. `v2` is the runner that vLLM has on a GPU, whose Triton kernels (the adapters' too) run
in Triton's interpreter. `compiled` is v1 with the model traced by Dynamo; on a CPU it serves no adapters then.
"""

import gc
import json
import os
import sys
import weakref

RUNNER = sys.argv[1]
if RUNNER == "compiled":
    os.environ["VLLM_CPU_CI_ENV"] = "1"  # traced by Dynamo and run as it is: Inductor's compiler would take minutes
if RUNNER == "v2":
    import v2_runner

    v2_runner.choose()

from microrl.config import resolve  # noqa: E402
from microrl.models.tiny import build_model, build_tokenizer  # noqa: E402
from microrl.rollout.factory import make_engine  # noqa: E402
from microrl.rollout.vllm import driver as vllm_driver  # noqa: E402
from microrl.rollout.vllm import launch  # noqa: E402
from microrl.types import BASE, Prompt, Sampling  # noqa: E402

vllm = launch.import_vllm()
if RUNNER == "compiled":
    real = vllm.LLM
    vllm.LLM = lambda **options: real(**{**options, "enforce_eager": False})


def watched(engine):
    """Weak references to what holds the memory: the model, all its parameters, and the adapters' buffers."""
    runner = engine._driver._runner
    found = {"model": weakref.ref(runner.model), "inner": weakref.ref(runner.model.model)}
    found |= {name: weakref.ref(parameter) for name, parameter in runner.model.named_parameters()}
    modules = {} if RUNNER == "compiled" else engine._driver._manager().modules
    for name, module in modules.items():
        stacks = {"A": module.lora_a_stacked, "B": module.lora_b_stacked}
        found |= {f"{name} {side}{i}": weakref.ref(t) for side, stack in stacks.items() for i, t in enumerate(stack)}
    return found


def kind_of(driver):
    """Which runner it is. A function of its own: vLLM keeps a traceback of its start, and so the locals of what called it."""
    is_newer = bool(getattr(driver._engine.vllm_config, "use_v2_model_runner", False))
    return {"v2": is_newer, "compiled": hasattr(driver._runner.model.model, "_bytecode_hook_handle")}


def run():
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, layers=2, seed=3).eval().requires_grad_(False)
    settings = {
        "engine.kind": "vllm", "engine.sync": "merge" if RUNNER == "compiled" else "swap", "adapter.rank": 6,
        "sampling.max_completion_tokens": 4, "data.max_prompt_tokens": 32, "sampling.prompts_per_step": 1,
        "sampling.group_size": 2, "model.dtype": "float16" if RUNNER == "v2" else "float32",
    }  # fmt: skip
    if RUNNER == "v2":
        model = model.half()
    engine = make_engine(resolve((), settings), model, tokenizer)
    prompt = Prompt("What is 2 + 2?", "", "", tuple(tokenizer("What is 2 + 2?")["input_ids"]))
    with engine.awake(BASE) as sampler:
        list(sampler.groups([prompt], Sampling(2, 4), stream=(0, 0)))
    found = watched(engine)
    kind = kind_of(engine._driver)
    engine.close()
    return found, kind


def alive(references):
    gc.collect()
    return [name for name, reference in references.items() if reference() is not None]


clear, vllm_driver.forget = vllm_driver.forget, lambda model: None
uncleared = alive(run()[0])
vllm_driver.forget = clear
references, kind = run()
print(json.dumps({"watched": len(references), "alive": alive(references), "alive_uncleared": uncleared, **kind}), flush=True)
os._exit(0)
