"""Tests `tff_pfl.clients.padding`."""

import numpy as np
import pytest

from tests.clients.test_cohort import FakeDataset
from tests.marks import together
from tff_pfl.clients.padding import Ladder, pad_examples, shared_capacity


class TestPadExamples:
    def test_fills_up_with_zeros(self):
        padded = pad_examples(FakeDataset().examples(6, "train"), 5)
        assert padded.x.shape == (5, 2, 2)
        assert padded.x.dtype == np.uint8
        assert padded.x[:, 0, 1].tolist() == [60, 61, 62, 0, 0]
        assert padded.y.tolist() == [60, 61, 62, 0, 0]
        assert padded.y.dtype == np.int32
        assert padded.size == 3

    def test_drops_rows_past_size_first(self):
        examples = FakeDataset().examples(3, "train")._replace(size=np.int32(2))
        assert pad_examples(examples, 3).y.tolist() == [30, 31, 0]
        assert pad_examples(examples, 2).y.tolist() == [30, 31]

    def test_refuses_more_than_the_capacity(self):
        with pytest.raises(ValueError, match="4 examples do not fit into a capacity of 3"):
            pad_examples(FakeDataset().examples(3, "train"), 3)

    @pytest.mark.parametrize(("size", "rows"), [(5, 9), (-1, 9)])
    def test_refuses_a_size_that_the_rows_cannot_hold(self, size, rows):
        examples = FakeDataset().examples(3, "train")
        examples = examples._replace(x=np.zeros([rows, 2, 2], np.uint8), size=np.int32(size))
        message = f"size {size}.*0 to {min(rows, 4)}, the rows of x \\({rows}\\) and y \\(4\\)"
        with pytest.raises(ValueError, match=message):
            pad_examples(examples, 8)


@together(("sizes", "capacity"), [([], 0), ([3, 1], 3), ([5], 6), ([7], 8), (np.array([5, 9]), 12)])
def test_shared_capacity_is_the_next_step(sizes, capacity):
    assert shared_capacity(sizes) == capacity


def test_shared_capacities_are_few_and_close_to_the_sizes():
    capacities = {size: shared_capacity([size]) for size in range(1, 3000)}
    assert all(size <= capacity < 1.5 * size + 1 for size, capacity in capacities.items())
    assert len(set(capacities.values())) < 25


def test_small_groups_join_the_next_larger_one():
    """Five clients would add 5 steps, four clients 4."""
    ladder = Ladder(batch_size=10, group_cost=5)
    assert ladder.capacities([9] * 5 + [15, 0]) == [10] * 5 + [20, 10]
    assert ladder.capacities([9] * 4 + [15, 0]) == [20] * 6
