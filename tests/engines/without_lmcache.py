"""Lets vLLM's own modules for LMCache be imported where the package ``lmcache`` is not: every name of it is empty.

Metadata is made by vLLM's classes, from vLLM's requests; nothing of ``lmcache`` is called for it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import logging
import sys
import types

NEWER = "lmcache.integration.vllm.vllm_multi_process_adapter"
"""Where it is missing, vLLM takes the adapter in its own tree."""


class _Absent:
    """Any class of the package; some are parameters of types."""

    def __class_getitem__(cls, _item):
        return cls


class _Empty(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "init_logger":
            return logging.getLogger
        return (lambda function: function) if name == "_lmcache_nvtx_annotate" else _Absent


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, _path, _target=None):
        if name.partition(".")[0] == "lmcache" and name != NEWER:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Empty(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(_Finder())
