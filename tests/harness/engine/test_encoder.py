from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusion_eval.harness.engine.encoder import EMPTY, LONG, MERGED, TRUNCATED, Encoder, rolling_windows


@given(st.lists(st.integers(1, 99), max_size=60), st.integers(1, 20))
def test_windows_predict_every_token_once_and_fit(tokens: list[int], length: int) -> None:
    windows = rolling_windows(tuple(tokens), 0, length)
    assert [t for _, predicted in windows for t in predicted] == tokens
    for context, predicted in windows:
        assert len(context) >= 1
        assert len(context) + len(predicted) <= length + 1
    whole = (0, *tokens)
    done = 0
    for context, predicted in windows:
        assert whole[done + 1 - len(context) : done + 1] == context
        done += len(predicted)


@pytest.fixture
def gpt2(tokenizers: dict[str, Any]) -> Encoder:
    return Encoder(tokenizers["gpt2"], 64)


def test_space_moves_to_the_continuation(gpt2: Encoder) -> None:
    (one,), (other,) = gpt2.pairs([("The cat \n", "sat"), ("The cat", " \nsat")])
    assert one == other


def test_an_empty_context_is_the_prefix_token(gpt2: Encoder, tokenizers: dict[str, Any]) -> None:
    ((piece,),) = gpt2.pairs([("", "Hello")])
    assert piece.context == (tokenizers["gpt2"].eos_token_id,)
    ((spaces,),) = gpt2.pairs([("  ", "x")])
    assert spaces.context == piece.context


def test_a_continuation_that_merges_into_the_context_is_scored_alone(gpt2: Encoder) -> None:
    ((piece,),) = gpt2.pairs([("hello wor", "ld")])
    whole, before = gpt2.encode(["hello world", "hello wor"])
    if len(whole) <= len(before):
        assert piece.mark == MERGED
    assert piece.continuation


def test_nothing_to_score_is_marked(gpt2: Encoder) -> None:
    ((piece,),) = gpt2.pairs([("The cat", "")])
    assert piece.continuation == ()
    assert piece.mark == EMPTY


def test_long_contexts_are_marked_and_long_continuations_split(gpt2: Encoder) -> None:
    text = " ".join(str(i) for i in range(200))
    ((piece,),) = gpt2.pairs([(text, " end")])
    assert piece.mark == TRUNCATED
    (pieces,) = gpt2.pairs([("Start", " " + text)])
    assert {piece.mark for piece in pieces} == {LONG}
    start, whole = gpt2.encode(["Start", "Start " + text])
    assert [t for p in pieces for t in p.continuation] == list(whole[len(start) :])
    assert all(len(p.context) + len(p.continuation) <= 65 for p in pieces)


def test_the_doubled_start_is_only_the_peers(tokenizers: dict[str, Any]) -> None:
    bos = tokenizers["llama"].bos_token_id
    ((right, *_),) = Encoder(tokenizers["llama"], 64).texts(["some text"])
    ((peer, *_),) = Encoder(tokenizers["llama"], 64, compat=True).texts(["some text"])
    assert peer.continuation == (bos, *right.continuation)
    assert right.context == peer.context == (bos,)


def test_a_text_that_begins_with_the_start_token_gets_no_second_one(tokenizers: dict[str, Any]) -> None:
    encoder = Encoder(tokenizers["llama"], 64)
    plain, marked = encoder.encode(["hello", "<s>hello"])
    assert plain == marked


def test_keys_tell_settings_apart(tokenizers: dict[str, Any]) -> None:
    keys = {
        Encoder(tokenizers[n], size, add_bos_token=b).key for n in tokenizers for size in (8, 9) for b in (None, True)
    }
    assert len(keys) == 8
