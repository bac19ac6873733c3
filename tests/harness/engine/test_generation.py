from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_eval.harness.engine.generation import cut, frozen, is_final, normalise, safe_stops, thawed, without_thoughts

TEXT = st.text("ab ", max_size=8)


def test_stop_strings_cut_in_their_order() -> None:
    assert cut("x ab c", ["b", "ab c"]) == "x a"
    assert cut("x ab c", ["ab c", "b"]) == "x "
    assert cut("x", ["", "y"]) == "x"


@settings(max_examples=400)
@given(TEXT, st.lists(st.text("ab ", min_size=1, max_size=3), max_size=3), st.lists(TEXT, min_size=5, max_size=5))
def test_a_final_text_cannot_be_changed_by_what_follows(text: str, stops: list[str], rest: list[str]) -> None:
    if is_final(text, stops):
        assert {cut(text + more, stops) for more in rest} == {cut(text, stops)}


@settings(max_examples=200)
@given(st.text("ab", max_size=6), st.lists(st.text("ab", min_size=1, max_size=2), min_size=1, max_size=2))
def test_a_text_that_holds_a_stop_becomes_final_soon(text: str, stops: list[str]) -> None:
    if any(stop in text for stop in stops):
        assert is_final(text + "#" * 3, stops)


def test_settings_are_normalised() -> None:
    assert normalise({"until": "x", "max_new_tokens": 5, "max_gen_toks": 7}).max_tokens == 7
    assert normalise({}).max_tokens == 256
    greedy = normalise({"do_sample": False, "temperature": 0.7, "top_p": 0.5})
    assert (greedy.sampled, dict(greedy.options)) == (False, {})
    sampled = normalise({"temperature": 0.7, "top_p": 0.5, "until": ["a"], "num_beams": 2})
    assert sampled.sampled
    assert dict(sampled.options) == {"temperature": 0.7, "top_p": 0.5}
    assert dict(sampled.other) == {"num_beams": 2}
    assert normalise({"do_sample": True, "temperature": 0.0}).options == {"temperature": 1.0}
    assert thawed(frozen(sampled)) == sampled


def test_thoughts_are_dropped() -> None:
    assert without_thoughts("hm</think> yes</think>  so", "</think>") == "so"
    assert without_thoughts("plain", None) == "plain"


def test_stops_that_others_may_undo_are_not_left_to_a_server() -> None:
    assert safe_stops(["\n\n", "Question:", ""]) == ["\n\n", "Question:"]
    assert safe_stops(["ab c", "b"]) == ["ab c"]
    assert safe_stops(["b", "ab c"]) == ["b", "ab c"]
    assert safe_stops(["</s>", "x</"]) == ["</s>"]
    assert safe_stops(["aa", "a"]) == ["aa"]
