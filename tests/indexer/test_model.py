"""Any sequence of writes, reads, growths, locks and mistakes, against a plain dict as the model."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from harness import LONG
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from indexers import name, recorded, unseen

import ullage
from ullage.indexer import GrowingIndexer, GuardedIndexer

PLANNED, MOST = 8, 40
DTYPES = [torch.float32, torch.float16, torch.float8_e4m3fn, torch.int64]
edges = st.sampled_from([8, 9, 10, 19, 20, 39])  # of the capacities there are
fitting = st.lists(st.integers(0, MOST - 1) | edges, min_size=1, max_size=4, unique=True)
indices = st.one_of(fitting, fitting, st.lists(st.integers(-3, 50), max_size=6, unique=True))
widths = st.sampled_from([torch.int32, torch.int64])


class Indexer(RuleBasedStateMachine):
    """Each written row has a number of its own, in digits that every dtype holds exactly: a stray row would show."""

    @initialize(grows=st.booleans(), hidden=st.booleans(), dtype=st.sampled_from(DTYPES))
    def make(self, grows, hidden, dtype):
        made = (name(), PLANNED, (4,), dtype, "cpu")
        self.rows = GrowingIndexer(*made, max_capacity=MOST) if grows else GuardedIndexer(*made)
        self.grows, self.hidden, self.dtype = grows, hidden, dtype
        self.counts = recorded(unseen(self.rows) if hidden else self.rows)
        self.model = {}
        self.number = self.checks = self.violations = self.peak = self.resizes = self.wanted = self.harvested = 0
        self.highest = 0  # ever asked for on the device
        self.capacity = 10 if grows else 9
        self.locked = False

    def teardown(self):
        if hasattr(self, "rows"):
            self.harvest()
            self.rows.close()

    def digits(self, number):
        return [1 + number // 7**place % 7 for place in range(4)]

    def outside(self, batch):
        return [index for index in batch if not 0 <= index < self.capacity]

    def grow(self, needed):
        """Grow the model if it may; it doubles, up to its maximum."""
        if self.grows and not self.locked and self.capacity < needed <= MOST:
            while self.capacity < needed:
                self.capacity *= 2
            self.capacity, self.resizes = min(self.capacity, MOST), self.resizes + 1

    @rule(batch=indices, width=widths, strided=st.booleans())
    def write(self, batch, width, strided):
        numbers = range(self.number, self.number + len(batch))
        self.number += len(batch)
        values = torch.tensor([self.digits(n) for n in numbers]).reshape(-1, 4).to(self.dtype)
        if strided:
            values = values.repeat(1, 2)[:, :4]
        if batch and self.hidden:
            self.grow(min(self.wanted, MOST))
            self.wanted = 0
        elif batch and min(batch) >= 0:
            self.grow(max(batch) + 1)
        outside = self.outside(batch)
        self.checks += len(batch)
        self.violations += len(outside)
        if outside and not self.hidden:
            with pytest.raises(ullage.BoundsViolation) as refused:
                self.rows.write(torch.tensor(batch, dtype=width), values)
            assert batch[refused.value.position] == refused.value.index
            assert refused.value.index in outside
            return
        self.rows.write(torch.tensor(batch, dtype=width), values)
        if self.hidden:
            self.highest = max([self.highest, *batch])
        written = {i: n for i, n in zip(batch, numbers, strict=True) if i not in outside}
        self.model.update(written)
        self.peak = max([self.peak, *(i + 1 for i in written)])

    @rule(batch=indices, width=widths)
    def read(self, batch, width):
        outside = self.outside(batch)
        self.checks += len(batch)
        self.violations += len(outside)
        if outside and not self.hidden:
            with pytest.raises(ullage.BoundsViolation, match="nothing was read"):
                self.rows.read(torch.tensor(batch, dtype=width))
            return
        if self.hidden:
            self.highest = max([self.highest, *batch])
        read = self.rows.read(torch.tensor(batch, dtype=width)).float().tolist()
        assert read == [self.expected(index) for index in batch]

    @rule(bad=st.sampled_from([torch.bool, torch.int16]), shape=st.sampled_from([(2,), (2, 3), (3, 4)]))
    def use_what_does_not_fit(self, bad, shape):
        with pytest.raises(TypeError):
            self.rows.write(torch.ones(2, dtype=bad), torch.ones(2, 4).to(self.dtype))
        with pytest.raises(TypeError):
            self.rows.read(torch.ones(2, dtype=bad))
        with pytest.raises(ValueError, match="values have shape"):
            self.rows.write(torch.tensor([0, 1]), torch.ones(shape).to(self.dtype))

    @rule(late=st.integers(0, 5))
    def lock(self, late):
        if self.grows and not late:
            self.rows.lock()
            self.locked = True

    @rule()
    def harvest(self):
        """No count is lost."""
        self.rows.harvest()
        if self.hidden and self.violations > self.harvested:
            self.wanted = self.highest + 1
        self.harvested = self.violations
        counts = self.counts()
        assert (counts.bounds_checks, counts.out_of_bounds) == (self.checks, self.violations)
        assert (self.rows.peak, counts.grows, counts.beyond) == (self.peak, self.resizes, 0)

    def expected(self, index):
        return self.digits(self.model[index]) if index in self.model else [0, 0, 0, 0]

    @invariant()
    def every_row_is_what_the_model_says(self):
        if hasattr(self, "rows"):
            assert self.rows.capacity == self.capacity
            assert self.rows.rows.float().tolist() == [self.expected(index) for index in range(self.capacity)]


TestIndexer = Indexer.TestCase
TestIndexer.settings = settings(max_examples=1000 if LONG else 200, stateful_step_count=30, deadline=None)
