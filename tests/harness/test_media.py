from __future__ import annotations

from fusion_eval.harness.engine.protocol import Pair, Prompt
from fusion_eval.harness.media import Conversation, Media, digest_of
from fusion_eval.harness.store import key_of

RED, BLUE = Media("image", "aa", object()), Media("image", "bb", object())


def test_media_are_equal_by_content():
    assert Media("image", "aa", object()) == RED
    assert RED != BLUE
    assert Media("video", "aa", None) != RED


def test_digest_tells_content_and_what_is_known_apart():
    assert digest_of(b"x", "RGB", (1, 1)) == digest_of(b"x", "RGB", (1, 1))
    assert len({digest_of(b"x", "RGB"), digest_of(b"y", "RGB"), digest_of(b"x", "L")}) == 3


def test_ask_puts_media_before_the_text_and_system_first():
    said = Conversation.ask([RED, BLUE], "Which?", "Be brief.")
    assert [turn.role for turn in said.turns] == ["system", "user"]
    assert said.turns[1].parts == (RED, BLUE, "Which?")
    assert said.media == (RED, BLUE)
    assert said.text == "Be brief.\nWhich?"


def test_key_depends_on_media_and_their_places():
    keys = {Conversation.ask(media, "Which?").key for media in ([RED, BLUE], [BLUE, RED], [RED], [])}
    assert len(keys) == 4
    assert Conversation.ask([RED], "Which?").key == Conversation.ask([Media("image", "aa", None)], "Which?").key


def test_answers_are_kept_apart_by_media():
    prompts = [Prompt("t", (1,), (), media=m) for m in ((), ("aa",), ("bb",))]
    pairs = [Pair((1,), (2,), media=m) for m in ((), ("aa",), ("bb",))]
    assert len({key_of(piece) for piece in (*prompts, *pairs)}) == 6
