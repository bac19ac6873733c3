from __future__ import annotations

import pytest

from fusion_eval.errors import CheckpointError
from fusion_eval.merge.tokenizer import read_tokenizer, union, with_tokens, write_tokenizer
from tests.merge.recipe_models import write_tokenizer as write_small


@pytest.fixture
def pair(tmp_path):
    for name, extra, size, shift in (("a", ["<x0>"], 128, 0), ("b", ["<x0>", "<im_start>"], 136, 7)):
        (tmp_path / name).mkdir()
        write_small(tmp_path / name, extra, size, shift)
    return tmp_path / "a", tmp_path / "b"


def test_a_union_keeps_the_first_and_appends_in_order(pair):
    first, second = map(read_tokenizer, pair)
    both = union(first, [second])
    assert {token: both.ids[token] for token in first.ids} == dict(first.ids)
    new = [token for token in both.ids if token not in first.ids]
    assert new == [token for token in second.ids if token not in first.ids]
    assert [both.ids[token] for token in new] == list(range(first.size, first.size + len(new)))
    assert union(first, [second]).data == both.data


def test_a_union_splits_by_the_firsts_merges_and_then_by_the_others(pair, tmp_path):
    transformers = pytest.importorskip("transformers")
    first, second = map(read_tokenizer, pair)
    (tmp_path / "u").mkdir()
    write_tokenizer(union(first, [second]), tmp_path / "u")
    load = transformers.AutoTokenizer.from_pretrained
    old, new, other = load(pair[0]), load(tmp_path / "u"), load(pair[1])
    text = "the cat at dawn bt"
    assert new.tokenize(text) == old.tokenize(text)
    assert new.encode(text, add_special_tokens=False) == old.encode(text, add_special_tokens=False)
    assert new.tokenize("jx ht") == other.tokenize("jx ht")
    assert "<im_start>" in new.all_special_tokens or new.convert_tokens_to_ids("<im_start>") == 133 + 2
    assert new.tokenize("x<im_start>y") == ["x", "<im_start>", "y"]


def test_tokens_are_added_once(pair):
    first = read_tokenizer(pair[0])
    more = with_tokens(first, ["<new>", "a", "<new>"])
    assert more.ids["<new>"] == first.size
    assert more.size == first.size + 1
    assert with_tokens(first, ["a"]) is first


def test_folders_without_a_tokenizer(tmp_path):
    assert read_tokenizer(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text("[")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_tokenizer(tmp_path)


TEXTS = (["the quick brown fox jumps over the lazy dog", "hello world"], ["def return lambda yield", "hello list dict"])


def trained(kind, place, number):
    """A tokenizer of a kind; the first has a special token of a high id, the second of a low one."""
    tokenizers = pytest.importorskip("tokenizers")
    models, split, trainers = tokenizers.models, tokenizers.pre_tokenizers, tokenizers.trainers
    special = ["<unk>", "<s>", *(["<first>"] if number else [])]
    model, parts, trainer = {
        "bpe": (models.BPE(), split.ByteLevel(add_prefix_space=False), trainers.BpeTrainer),
        "wordpiece": (models.WordPiece(unk_token="<unk>"), split.Whitespace(), trainers.WordPieceTrainer),
        "unigram": (models.Unigram(), split.Metaspace(), trainers.UnigramTrainer),
    }[kind]
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = parts
    made.decoder = {"bpe": tokenizers.decoders.ByteLevel, "unigram": tokenizers.decoders.Metaspace}.get(
        kind, tokenizers.decoders.WordPiece
    )()
    more = {"unk_token": "<unk>"} if kind == "unigram" else {}
    made.train_from_iterator(
        TEXTS[number] * 20, trainer(vocab_size=80, special_tokens=special, show_progress=False, **more)
    )
    if not number:
        made.add_special_tokens(["<last>"])
    place.mkdir()
    made.save(str(place / "tokenizer.json"))
    return read_tokenizer(place)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
@pytest.mark.parametrize("other", ["bpe", "wordpiece", "unigram"])
def test_whoever_reads_a_union_finds_the_ids_of_its_rows(tmp_path, kind, other):
    transformers = pytest.importorskip("transformers")
    first, second = trained(kind, tmp_path / "a", 0), trained(other, tmp_path / "b", 1)
    both = with_tokens(union(first, [second]), ["<extra>"])
    (tmp_path / "u").mkdir()
    write_tokenizer(both, tmp_path / "u")
    loaded = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "u" / "tokenizer.json"))
    assert loaded.get_vocab() == dict(both.ids)
    assert set(both.ids) == {*first.ids, *second.ids, "<extra>"}
    for token in ("<first>", "<last>", "<extra>"):
        assert loaded.encode(f"hello{token}", add_special_tokens=False)[-1] == both.ids[token]
    if kind == other and kind != "wordpiece":
        assert loaded.decode(loaded.encode("hello lambda dog", add_special_tokens=False)) == "hello lambda dog"
