"""Programs whose claims do not fit: four workers of one engine, a case each."""

from __future__ import annotations

WORKERS = 4
ENGINE = {"ULLAGE_ENGINE_ID": "vllm0:0123456789abcdef", "ULLAGE_STRICT": ""}
PROGRAM = """
import logging, sys, ullage
from ullage.host.process import process
logging.disable()
case, rank = sys.argv[1], int(sys.argv[2])
process.session.identity.engine = "vllm"
process.session.roles.add("worker")
process.session.identify(tp_rank=rank)
inputs = {"max_model_len": 200000, "block_size": 64}
large = {f"input_with_a_long_name_{n}": 2**62 - n - 1000 * rank for n in range(14)}
contracts = {}
def claim(contract, source, size, inputs):
    one = contracts.get(contract) or contracts.setdefault(contract, ullage.Contract(contract, dims=("columns",)))
    one.claim(source, size, inputs=inputs)
if case == "two formulas":
    for layer in range(61):
        claim("block_table.width", f"layers.{layer}.runner", 3126, inputs)
        claim("block_table.width", f"layers.{layer}.builder", 3125, inputs)
for n in range(254):
    if case == "all differ":
        claim("block_table.width", f"layers.{n}", 10_000 + 254 * rank + n, large)
    if case == "all differ, in contracts of their own":
        claim(f"block_table.width/{n}", f"layers.{n}", 10_000 + 254 * rank + n, large)
print("ready", flush=True)
sys.stdin.readline()
"""
CASES = ("two formulas", "all differ", "all differ, in contracts of their own")
