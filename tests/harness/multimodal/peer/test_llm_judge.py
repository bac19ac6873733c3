from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fusion_eval.harness.judge import get_judge, judging
from fusion_eval.harness.multimodal.peer.llm_judge import (
    Request,
    ResponseParser,
    ServerConfig,
    data_url,
    get_server,
    with_images,
)
from fusion_eval.harness.multimodal.peer.verifiers import (
    CompositeVerifier,
    ExactMatchVerifier,
    NumericToleranceVerifier,
    OpenAIVerifier,
    RegexExtractor,
    build_verification_pipeline,
)


class Heard:
    """A judge that answers from a list and keeps what it was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked = list(answers), list[tuple[list[dict[str, Any]], dict[str, Any]]]()

    def __call__(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        self.asked.append((messages, options))
        return self.answers.pop(0)


def test_servers_ask_the_judge_of_the_run() -> None:
    heard = Heard("text", "No", "8 6.5\nbecause", 'so {"tone": 3}')
    server = get_server("azure", ServerConfig("gpt", max_tokens=9, system_prompt="Be fair.", response_format="json"))
    with judging(get_judge(heard)):
        response = server.evaluate(Request([{"role": "user", "content": "q"}]))
        assert (response.content, response.success, response.model_used) == ("text", True, "gpt")
        assert server.evaluate_binary("q", "a", "p", output_format="yes/no")["result"] is False
        assert server.evaluate_comparative("q", "one", "two")["scores"] == (8.0, 6.5)
        assert server.evaluate_with_rubric("q", "p", {"tone": "polite"})["scores"] == {"tone": 3}
    messages, options = heard.asked[0]
    assert messages == [{"role": "system", "content": "Be fair."}, {"role": "user", "content": "q"}]
    wanted = {"model": "gpt", "temperature": 0.0, "max_tokens": 9, "response_format": {"type": "json_object"}}
    assert options == wanted


def test_a_tasks_own_prompt_is_used() -> None:
    heard = Heard("1")
    with judging(get_judge(heard)):
        found = get_server("openai").evaluate_binary(
            "q", "a", "p", custom_prompt="{question}|{answer}|{pred}|{more}", more="m"
        )
    assert found["result"] == 1
    assert heard.asked[0][0][0]["content"] == "q|a|p|m"


@pytest.mark.parametrize(
    ("text", "form", "result"), [("[1]", "0/1", 1), ("0", "0/1", 0), ("Yes.", "yes/no", True), ("no", "yes/no", False)]
)
def test_answers_of_two_words(text: str, form: str, result: int) -> None:
    assert ResponseParser.parse_binary_response(text, form) == result


def test_answers_with_numbers() -> None:
    assert ResponseParser.parse_score_response("Score: 12.5", (0, 10)) == 10
    assert ResponseParser.parse_score_response("none", (1, 10)) == 1
    assert ResponseParser.parse_comparative_response("7, 9\n1 2") == (7.0, 9.0)
    assert ResponseParser.parse_comparative_response("good") == (-1.0, -1.0)
    assert ResponseParser.parse_json_response("{broken") == {}


def test_pictures_become_data_urls(tmp_path: Path) -> None:
    picture = Image.new("RGB", (2, 2), "red")
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG")
    (tmp_path / "a.jpg").write_bytes(buffer.getvalue())
    assert data_url(picture).startswith("data:image/png;base64,")
    assert data_url(buffer.getvalue()) == data_url(str(tmp_path / "a.jpg"))
    assert data_url("QUJD" * 400).startswith("data:image/jpeg;base64,QUJD")
    made = with_images([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], [picture])
    assert [part["type"] for part in made[0]["content"]] == ["text", "image_url"]


def test_verifiers() -> None:
    chain = CompositeVerifier([ExactMatchVerifier(), NumericToleranceVerifier()])
    assert chain.verify("q", "3.0001", "3").is_correct
    assert not chain.verify("q", "none", "3").is_correct
    pipeline = build_verification_pipeline(
        {"extractors": [{"type": "strip_reasoning"}, {"type": "regex", "pattern": "Answer: (.+)"}],
         "verifier": {"type": "exact_match"}}
    )  # fmt: skip
    found = pipeline("q", "<think>B</think>Answer: a", "A")
    assert found.is_correct
    assert found.metadata["extracted_prediction"] == "a"
    assert RegexExtractor("(x)", group=3).extract("x") == "x"
    assert RegexExtractor("(x)", fallback="f").extract("y") == "f"


def test_a_judge_verifies() -> None:
    with judging(get_judge(Heard("incorrect", "Rating: 7", "1", "5 9"))):
        assert not OpenAIVerifier(custom_prompt="{question}").verify("q", "p", "t").is_correct
        assert (
            OpenAIVerifier(custom_prompt=lambda q, p, t, **_: q, response_format="score").verify("q", "p", "t").score
            == 0.7
        )
        assert OpenAIVerifier().verify("q", "p", "t").score == 1.0
        compared = OpenAIVerifier(judge_type="comparative").verify("q", "p", "t")
    assert (compared.score, compared.is_correct) == (0.5, False)
