from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_eval.harness.engine.protocol import Pair
from fusion_eval.harness.engine.trie import Branch, Budget, Item, Planner, build_pack, items_of, trees_of, units_of

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
    for pack_items in branch.packs:
        trees = [pack_items] if branch.depth else trees_of(pack_items)
        widest = max(len(build_pack(own, branch.depth).tokens) for own in trees)
        assert len(pack_items) == 1 or len(trees) * widest <= budget.tokens
        total += sum(_tree(own, prefix, found) for own in trees)
    return total + sum(walk(below, prefix, found, budget) for below in branch.branches)


def _tree(own: list[Item], prefix: list[int], found: dict[int, list[int]]) -> int:
    pack = build_pack(own, len(prefix))
    for item, route, path in zip(own, pack.routes, pack.paths, strict=True):
        assert item.tokens[: len(prefix)].tolist() == prefix
        assert prefix + pack.tokens[route].tolist() == item.tokens.tolist()
        assert pack.positions[route].tolist() == list(range(len(prefix), len(item.tokens)))
        assert route[-len(item.targets) :].tolist() == path.tolist()
        for i, node in enumerate(route):
            assert np.flatnonzero(pack.sees[node]).tolist() == sorted(route[: i + 1].tolist())
        assert item.position not in found
        found[item.position] = item.tokens.tolist()
    return len(pack.tokens)


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
def test_with_room_for_all_each_distinct_prefix_of_a_tree_is_computed_once(
    sequences: list[tuple[list[int], list[int]]],
) -> None:
    made = items(sequences)
    budget = Budget(10**6, 10**6)
    root = Planner(made, budget).plan()
    trees = [tree for pack in root.packs for tree in trees_of(pack)]
    distinct = [{tuple(i.tokens[:n].tolist()) for i in tree for n in range(1, len(i.tokens) + 1)} for tree in trees]
    assert walk(root, [], {}, budget) == sum(map(len, distinct))
    assert sum(map(len, distinct)) <= len(set().union(*distinct)) + 7 * (len(trees) - 1)


def test_trees_that_share_nothing_are_batched_by_size() -> None:
    rows = [Pair((q, q + 1) * n, (5,)) for q, n in ((10, 4), (20, 30), (30, 5), (40, 29), (50, 4))]
    root = Planner(items_of(rows, 512), Budget(128, 10**6)).plan()
    assert [[len(item.tokens) for item in pack] for pack in root.packs] == [[60, 58], [10, 8, 8]]


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
