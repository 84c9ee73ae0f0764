"""Which engine instance an object of vLLM belongs to, and what a process of it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.engines.instance import Instances

if TYPE_CHECKING:
    from ullage.engines.instance import EngineInstance

instances = Instances("vllm")
current, engine_of = instances.current, instances.of


def identify(engine: EngineInstance, config: Any, role: str) -> None:
    """Publish that this process plays ``role`` (launcher, frontend, core or worker) for the engine of ``config``."""
    parallel, model = config.parallel_config, config.model_config
    engine.session.roles.add(role)
    fields: dict[str, str | int] = {"model_name": _model_name(model)}
    ranks = engine.ranks
    if role == "frontend" and getattr(parallel, "_api_process_count", 1) > 1:
        fields["server_size"], fields["server_rank"] = parallel._api_process_count, parallel._api_process_rank  # noqa: SLF001
    if role in ("core", "worker"):
        fields["dp_size"] = parallel.data_parallel_size
        fields["dp_rank"] = getattr(parallel, "data_parallel_index", parallel.data_parallel_rank)
        ranks.data = f"dp{fields['dp_rank']}" if parallel.data_parallel_size > 1 else ""
    if role == "worker":
        tensor, pipeline = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        fields["tp_rank"] = parallel.rank % tensor
        fields["pp_rank"] = parallel.rank // tensor % pipeline
        fields["pp_size"] = pipeline
        parts = [ranks.data]
        parts += [f"tp{fields['tp_rank']}"] if tensor > 1 else []
        parts += [f"pp{fields['pp_rank']}"] if pipeline > 1 else []
        ranks.own = "-".join(filter(None, parts))
    engine.session.identify(**fields)


def location(config: Any) -> str:
    """Return where the engine's tensors live: host or device."""
    return "host" if config.device_config.device_type == "cpu" else "device"


def _model_name(model: Any) -> str:
    name = getattr(model, "served_model_name", None) or model.model
    return str(name[0] if isinstance(name, list) else name)
