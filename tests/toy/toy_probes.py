"""The probes of the toy engine: all that a further engine needs, with its line in the registry."""

from __future__ import annotations

from ullage import known_engines
from ullage.engines import registry
from ullage.engines.instance import Bindings, EngineInstance, Instances
from ullage.engines.patch import Patch
from ullage.host.process import process

known_engines.ENGINES.append(known_engines.KnownEngine("toy", "toy_probes", "TOY_PLUGINS"))

SUPPORTED = ((1, 0), (2, 0))
PROBES = {"toy": ("toy_probes",)}
ALWAYS = {"core": ("toy_probes",)}

instances = Instances("toy")
pools = Bindings()


def register():
    registry.register("toy")


def launches(_args, _kwargs):
    session = process.construct("toy")
    session.roles.add("frontend")
    session.identify(model_name="toy")


def launched(_result, args, _kwargs):
    pools.bind(args[0], process.constructed().part(EngineInstance))


def stops(_result, args, _kwargs):
    session = pools.get(args[0]).session
    session.declare_stop("Engine.shutdown")
    process.end(session, failed=False)


def rank_created(_result, args, _kwargs):
    rank, engine = args[0], instances.of(args[0])
    engine.session.roles.update(("core", "worker"))
    engine.session.identify(tp_rank=rank.tp_rank, tp_size=rank.tp_size)
    tokens = engine.buffer("kv_tokens", capacity=rank.pool.size, unit="tokens", kind="managed", histogram=True)
    pools.bind(rank.pool, tokens)


def tokens_taken(_result, args, _kwargs):
    pool = args[0]
    pools.get(pool).observe(pool.size - pool.free)


def pool_exhausted(_error, args, _kwargs):
    pools.get(args[0]).exhausted()


def stepped(_result, args, _kwargs):
    instances.of(args[0]).clock.tick(running=1)


PATCHES = (
    Patch("toy", "Engine.__init__", before=launches, after=launched),
    Patch("toy", "Engine.shutdown", after=stops),
    Patch("toy", "Rank.__init__", ("tp_rank", "tp_size"), after=rank_created),
    Patch("toy", "Rank.step", after=stepped),
    Patch(
        "toy", "TokenPool.take", after=tokens_taken, failed=lambda _error, args, _kwargs: pools.get(args[0]).exhausted()
    ),
)
