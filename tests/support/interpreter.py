"""Triton's interpreter on CPU, for vLLM's V2 runner: what Triton needs to believe that there is a backend."""

from __future__ import annotations

from types import SimpleNamespace

ENVIRONMENT = {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}


class Driver:
    """A driver of nothing: the interpreter runs kernels in Python."""

    @staticmethod
    def is_active():
        return True

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cpu", "cpu", 1)

    def get_current_device(self):
        return 0

    def get_active_torch_device(self):
        import torch

        return torch.device("cpu")

    def get_device_interface(self):
        import torch

        return torch.cpu


def install():
    """Before vLLM is imported."""
    import triton.backends
    from triton.runtime.interpreter import InterpreterBuilder

    triton.backends.backends["cpu"] = SimpleNamespace(driver=Driver, compiler=None)
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    # A compiler takes a mask of any kind of integers; the interpreter takes booleans only.
    def masked_load(self, ptrs, mask, *rest):
        mask.data = mask.data.astype(bool)
        return load(self, ptrs, mask, *rest)

    def masked_store(self, ptrs, value, mask, *rest):
        mask.data = mask.data.astype(bool)
        return store(self, ptrs, value, mask, *rest)

    InterpreterBuilder.create_masked_load = masked_load
    InterpreterBuilder.create_masked_store = masked_store
