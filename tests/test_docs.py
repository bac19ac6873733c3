"""Every example in the README and the docs runs as printed."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_HERE = ("pip install", "scripts/")

MY_MODELS = """
import torch
from safetensors.torch import save_file
from torch import nn
from pathlib import Path

def build_model():
    return nn.Linear(4, 3)

class TestSet(torch.utils.data.TensorDataset):
    def __init__(self, name):
        generator = torch.Generator().manual_seed(len(name))
        super().__init__(torch.randn(20, 4, generator=generator), torch.arange(20) % 3)

def write(folder):
    Path(folder).mkdir()
    for index, name in enumerate(("base", "a", "b")):
        torch.manual_seed(index)
        save_file(build_model().state_dict(), f"{folder}/{name}.safetensors")
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    for language, text in FENCE.findall((ROOT / page).read_text(encoding="utf-8")):
        yield Block(language, text)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory with the module that the README assumes the user has."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_models.py").write_text(MY_MODELS)
    names: dict[str, object] = {}
    exec(MY_MODELS, names)
    names["write"](tmp_path / "checkpoints")  # type: ignore[operator]
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]


def run_command(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line of ours, in this process."""
    from fusion_eval.cli import main

    monkeypatch.setattr(sys, "argv", shlex.split(line))
    code: object = None
    try:
        main()
    except SystemExit as end:
        code = end.code
    assert code in (None, 0), f"{line}: {code}"


def run_block(block: Block, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = re.match(r"# ([\w./]+\.(?:py|yaml))\n", block.text)
    if named:
        path = place / named[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        exec(compile(block.text, "example", "exec"), {"__name__": "example"})
    elif block.language == "bash":
        for line in block.text.splitlines():
            if line.startswith("fusion_eval") and "fabric=cpu2" not in line:
                run_command(line, monkeypatch)
            elif not line.startswith(("#", "fusion_eval", *NOT_HERE)):
                raise AssertionError(f"an example that nothing runs: {line}")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("ignore::UserWarning:hydra")
def test_examples_run_as_printed(
    page: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for block in blocks(page):
        run_block(block, place, monkeypatch)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#]+)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target


def test_the_readme_is_short_and_holds_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    commands = [block.text.strip() for block in blocks("README.md") if block.language == "bash"][:2]
    assert commands == ["pip install . && fusion_eval", 'pip install ".[test]" && scripts/test']


def test_the_readme_s_picture_is_what_the_default_run_prints(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_command("fusion_eval progress=false", monkeypatch)
    printed = capsys.readouterr().out
    picture = next(blocks("README.md")).text
    rows = [re.sub(r"\d+\.\d", "n", line) for line in picture.splitlines() if line.startswith("│")]
    assert rows == [re.sub(r"\d+\.\d", "n", line) for line in printed.splitlines() if line.startswith("│")]
    shown = [float(number) for number in re.findall(r"\d+\.\d(?= \[)", picture)]
    found = [float(number) for number in re.findall(r"\d+\.\d(?= \[)", printed)]
    assert shown == pytest.approx(found, abs=0.5)
