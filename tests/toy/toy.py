"""An engine of its own kind: a launcher, four ranks with a pool of tokens each, no line about ullage."""

from __future__ import annotations

import importlib
import multiprocessing
import os

__version__ = "1.4"


class TokenPool:
    """Tokens of the KV cache of one rank."""

    def __init__(self, size):
        self.size, self.free = size, size

    def take(self, tokens):
        if tokens > self.free:
            raise MemoryError(f"{tokens} tokens, {self.free} free")
        self.free -= tokens


class Rank:
    """One process of the engine: it schedules and computes."""

    def __init__(self, tp_rank, tp_size):
        self.tp_rank, self.tp_size, self.pool = tp_rank, tp_size, TokenPool(1000 + tp_rank)

    def step(self, tokens):
        self.pool.take(tokens)


def serve(tp_size=4):
    load_plugins()
    return Engine(tp_size)


def work(tp_rank, tp_size, channel):
    load_plugins()
    rank = Rank(tp_rank, tp_size)
    for tokens in iter(channel.recv, None):
        rank.step(tokens)
        channel.send("done")


def load_plugins():
    for plugin in filter(None, os.environ.get("TOY_PLUGINS", "").split(",")):
        importlib.import_module(plugin).register()


class Engine:
    """The launcher."""

    def __init__(self, tp_size):
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(tp_size)]
        self.channels = [ours for ours, _ in pipes]
        ranks = enumerate(theirs for _, theirs in pipes)
        self.processes = [context.Process(target=work, args=(rank, tp_size, channel)) for rank, channel in ranks]
        for process in self.processes:
            process.start()

    def step(self, tokens):
        for channel in self.channels:
            channel.send(tokens)
        return [channel.recv() for channel in self.channels]

    def shutdown(self):
        for channel in self.channels:
            channel.send(None)
        for process in self.processes:
            process.join()
