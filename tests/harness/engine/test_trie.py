from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_eval.harness.engine.protocol import Pair
from fusion_eval.harness.engine.trie import Branch, Budget, Item, Planner, build_pack, items_of, units_of

SEQUENCES = st.lists(
    st.tuples(
        st.lists(st.integers(1, 3), min_size=1, max_size=70), st.lists(st.integers(1, 3), min_size=1, max_size=9)
    ),
    min_size=1,
    max_size=25,
)


def items(sequences: list[tuple[list[int], list[int]]]) -> list[Item]:
    return items_of([Pair(tuple(a), tuple(b)) for a, b in sequences], 64)


def walk(branch: Branch, prefix: list[int], found: dict[int, list[int]], budget: Budget) -> int:
    """Check every pack against the sequences it stands for; the number of tokens computed."""
    prefix = prefix + branch.extend.tolist()
    assert len(prefix) == branch.depth
    total = len(branch.extend)
    for own in branch.packs:
        pack = build_pack(own, branch.depth)
        total += len(pack.tokens)
        assert len(own) == 1 or len(pack.tokens) <= budget.tokens
        for item, route, path in zip(own, pack.routes, pack.paths, strict=True):
            assert item.tokens[: branch.depth].tolist() == prefix
            assert prefix + pack.tokens[route].tolist() == item.tokens.tolist()
            assert pack.positions[route].tolist() == list(range(branch.depth, len(item.tokens)))
            assert route[-len(item.targets) :].tolist() == path.tolist()
            for i, node in enumerate(route):
                assert np.flatnonzero(pack.sees[node]).tolist() == sorted(route[: i + 1].tolist())
            assert item.position not in found
            found[item.position] = item.tokens.tolist()
    return total + sum(walk(below, prefix, found, budget) for below in branch.branches)


@settings(max_examples=60, deadline=None)
@given(SEQUENCES, st.integers(8, 200))
def test_every_item_is_in_one_pack_and_sees_exactly_its_own_tokens(
    sequences: list[tuple[list[int], list[int]]], tokens: int
) -> None:
    budget = Budget(tokens, 10_000)
    made = items(sequences)
    found: dict[int, list[int]] = {}
    walk(Planner(made, budget).plan(), [], found, budget)
    assert found == {item.position: item.tokens.tolist() for item in made}


@settings(max_examples=40, deadline=None)
@given(SEQUENCES)
def test_with_room_for_all_each_distinct_prefix_is_computed_once(sequences: list[tuple[list[int], list[int]]]) -> None:
    made = items(sequences)
    budget = Budget(10**6, 10**6)
    distinct = {tuple(item.tokens[:n].tolist()) for item in made for n in range(1, len(item.tokens) + 1)}
    assert walk(Planner(made, budget).plan(), [], {}, budget) == len(distinct)


def test_a_long_common_head_is_kept_once() -> None:
    head = list(range(100, 400))
    made = items_of([Pair((*head, q, q + 1), (q,)) for q in range(50)], 512)
    root = Planner(made, Budget(64, 10**6)).plan()
    assert not root.packs
    (branch,) = root.branches
    assert branch.depth == 300
    assert walk(root, [], {}, Budget(64, 10**6)) == 300 + 50 * 2


def test_scored_positions_are_never_inside_a_kept_prefix() -> None:
    head = list(range(100, 200))
    made = items_of([Pair((*head,), tuple(range(40))), Pair((1,), (*head[1:], 7))] * 2, 512)
    root = Planner(made, Budget(50, 10**6)).plan()
    walk(root, [], {}, Budget(200, 10**6))


def test_units_cover_all_items_and_are_of_limited_size() -> None:
    head = tuple(range(100, 200))
    made = items_of([Pair((*head, q % 7, q, q + 1), (q,)) for q in range(300)], 512)
    root = Planner(made, Budget(20, 10**6)).plan()
    units = units_of(root, most_packs=4)
    assert len(units) > 5
    assert sorted(i.position for u in units for i in u.items()) == list(range(300))
    for unit in units:
        walk(unit, [], {}, Budget(20, 10**6))
