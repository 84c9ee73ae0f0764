"""LoRA, in a worker: slots for adapters on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.buffers import Buffer, buffer
from ullage.engines._patch import Hook
from ullage.engines._probe import SharedProbe
from ullage.engines.vllm._sizes import process_sizes
from ullage.engines.vllm.claims import int32_limits
from ullage.engines.vllm.rehearsal import observe
from ullage.engines.vllm.view_lora import adapter_slots

if TYPE_CHECKING:
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


class _Watched:
    """The slots of this process."""

    slots: Buffer


_watched = _Watched()


def _created(_result: None, args: Args, _kwargs: Kwargs) -> None:
    manager = args[0]
    _watched.slots = buffer(
        "lora_slots",
        capacity=manager.lora_slots,
        unit="adapters",
        kind="managed",
        location="host" if manager.device.type == "cpu" else "device",
        limit="max_loras",
    )
    adapters = adapter_slots(manager)
    if adapters is not None:
        int32_limits.claim_adapters(adapters, process_sizes)


def _changed(_result: Any, args: Args, _kwargs: Kwargs) -> None:
    observe(_watched.slots, sum(adapter is not None for adapter in args[0].lora_index_to_id))


def _activation_failed(error: BaseException, args: Args, _kwargs: Kwargs) -> None:
    """The adapter of a request that runs has no slot."""
    if isinstance(error, ValueError) and None not in args[0].lora_index_to_id:
        _watched.slots.exhausted(1)


_MODULE = "vllm.lora.model_manager"
_PROBE = SharedProbe("LoRAModelManager")

HOOKS = (
    Hook(
        _MODULE,
        "LoRAModelManager.__init__",
        after=_created,
        reads=("LoRAModelManager.lora_slots", "LoRAModelManager.modules"),
        shared=_PROBE,
    ),
    Hook(_MODULE, "LoRAModelManager.activate_adapter", after=_changed, failed=_activation_failed, shared=_PROBE),
    Hook(_MODULE, "LoRAModelManager._deactivate_adapter", after=_changed, shared=_PROBE),
)
