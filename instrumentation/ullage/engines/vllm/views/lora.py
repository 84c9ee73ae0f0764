"""A view of the slots for LoRA adapters, where kernels compute their offsets in 32 bits."""

from __future__ import annotations

import sys
from typing import Any

from ullage.engines.runner_view import AdapterSlots

ADAPTER_KERNELS = "vllm.lora.ops.triton_ops.kernel_utils"
"""Loaded where LoRA runs in Triton. They multiply the number of a slot, of 32 bits, by the stride between slots:
lora_shrink and lora_expand of 0.22.1, 0.25.1, 0.27.1, 0.32.0 and 0.33.0."""
_INT32_STRIDES = 2**31
_STACKED = ("lora_a_stacked", "lora_b_stacked")


def adapter_slots(manager: Any) -> AdapterSlots | None:
    """Return the slots of a ``LoRAModelManager``; None where no kernel indexes them in 32 bits."""
    if ADAPTER_KERNELS not in sys.modules:
        return None
    widest = ((_slot_stride(layer), type(layer).__name__) for layer in manager.modules.values())
    stride, name = max(widest, default=(0, ""))
    return AdapterSlots(manager.lora_slots, name, stride) if stride else None


def _slot_stride(layer: Any) -> int:
    """Return the elements between two adapters, at most, in the weights of one layer that a kernel indexes.

    Of (slots, 1, rows, columns): an embedding's first weights, of three dimensions, are read by another function, and
    those of experts have other names. Strides that differ between slices are passed as a tensor of 64 bits, and so is a
    stride that needs them.
    """
    found = [0]
    for attribute in _STACKED:
        weights = getattr(layer, attribute, ())
        tensors = weights if isinstance(weights, (list, tuple)) else (weights,)
        strides = {int(tensor.stride(0)) for tensor in tensors if len(tensor.shape) == 4}
        found += strides if len(strides) == 1 and max(strides) < _INT32_STRIDES else ()
    return max(found)
