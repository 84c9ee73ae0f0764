"""LoRA, in a worker: slots for adapters on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.engines.instance import Bindings
from ullage.engines.patch import Patch
from ullage.engines.probe import SharedProbe
from ullage.engines.vllm.claims import int32_limits
from ullage.engines.vllm.contract_registry import ContractRegistry
from ullage.engines.vllm.identity import engine_of
from ullage.engines.vllm.views.lora import adapter_slots

if TYPE_CHECKING:
    from ullage.recording.buffers import Buffer

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


_slots: Bindings[Buffer] = Bindings()
"""By the manager of the adapters."""


def _created(_result: None, args: Args, _kwargs: Kwargs) -> None:
    manager, engine = args[0], engine_of(args[0])
    slots = engine.buffer(
        "lora_slots",
        capacity=manager.lora_slots,
        unit="adapters",
        kind="managed",
        location="host" if manager.device.type == "cpu" else "device",
        limit="max_loras",
    )
    _slots.bind(manager, slots)
    adapters = adapter_slots(manager)
    if adapters is not None:
        int32_limits.claim_adapters(adapters, engine.part(ContractRegistry))


def _changed(_result: Any, args: Args, _kwargs: Kwargs) -> None:
    manager, slots = args[0], _slots.get(args[0])
    if slots is not None:
        engine_of(manager).observe(slots, sum(adapter is not None for adapter in manager.lora_index_to_id))


def _activation_failed(error: BaseException, args: Args, _kwargs: Kwargs) -> None:
    """The adapter of a request that runs has no slot."""
    slots = _slots.get(args[0])
    if slots is not None and isinstance(error, ValueError) and None not in args[0].lora_index_to_id:
        slots.exhausted(1)


_MODULE = "vllm.lora.model_manager"
_PROBE = SharedProbe("LoRAModelManager")

PATCHES = (
    Patch(
        _MODULE,
        "LoRAModelManager.__init__",
        after=_created,
        reads=("LoRAModelManager.lora_slots", "LoRAModelManager.modules"),
        shared=_PROBE,
    ),
    Patch(_MODULE, "LoRAModelManager.activate_adapter", after=_changed, failed=_activation_failed, shared=_PROBE),
    Patch(_MODULE, "LoRAModelManager._deactivate_adapter", after=_changed, shared=_PROBE),
)
