"""vLLM's CPU build on the model runner that it has on a GPU ("V2"), with its asynchronous scheduler.

Its Triton kernels, the adapters' too, run in Triton's interpreter. That is chosen when Triton is first imported: start
Python with `ENVIRONMENT`, and call `choose` before vLLM is imported.
"""

from __future__ import annotations

import os

ENVIRONMENT = {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}


def is_chosen() -> bool:
    """Whether this process was started for it."""
    return ENVIRONMENT.items() <= os.environ.items()


def pretend_triton(backend: str = "cpu") -> None:
    """Give Triton a driver: on a CPU it has none, and vLLM takes it for missing then."""
    import triton.backends

    class Driver:
        @staticmethod
        def is_active():
            return True

    known = next(iter(triton.backends.backends.values()))
    triton.backends.backends[backend] = triton.backends.Backend(known.compiler, Driver)


def choose() -> None:
    os.environ |= ENVIRONMENT
    pretend_triton()
    from microrl.rollout.vllm.launch import import_vllm

    import_vllm()
    from vllm.platforms.cpu import CpuPlatform

    settle = CpuPlatform.check_and_update_config.__func__

    def asynchronous(cls, config):
        settle(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(asynchronous)
    # On few tokens a product is cut into 64 parts, for 64 processors: the interpreter computes one after the other.
    from vllm.lora.ops.triton_ops import lora_shrink_op

    configure = lora_shrink_op.get_lora_op_configs
    lora_shrink_op.get_lora_op_configs = lambda *args, **named: {**configure(*args, **named), "split_k": 2}
    punica = "vllm.lora.punica_wrapper.punica_gpu.PunicaWrapperGPU"
    CpuPlatform.get_punica_wrapper = classmethod(lambda cls: punica)
