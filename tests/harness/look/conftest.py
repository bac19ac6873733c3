from __future__ import annotations

from pathlib import Path

import PIL.Image
import pytest

FILES = {
    "pictures/_template_yaml": (
        "dataset_path: parquet\ndataset_kwargs:\n  data_files: data.parquet\ntest_split: train\n"
        "doc_to_visual: !function utils.visual\ndoc_to_target: answer\n"
        "generation_kwargs: {max_new_tokens: 4}\nmetric_list:\n  - metric: exact_match\n"
    ),
    "pictures/color.yaml": (
        "include: _template_yaml\ntask: color\ndoc_to_text: !function utils.text\n"
        "lmms_eval_specific_kwargs:\n  default: {post: ' Short.'}\n  llava: {post: ' One word.'}\n"
    ),
    "pictures/odd.yaml": ("include: _template_yaml\ntask: odd\ndoc_to_text: !function utils.txt\ndoc_to_visul: x\n"),
    "pictures/needy.yaml": "include: _template_yaml\ntask: needy\ndoc_to_text: !function needy.text\n",
    "pictures/group.yaml": "group: pictures\ntask: [color, odd]\n",
    "pictures/broken.yaml": "task: [broken\n",
    "pictures/utils.py": (
        "def visual(doc):\n    return [doc['image'].convert('RGB')]\n\n\n"
        "def text(doc, kwargs=None):\n    return doc['question'] + (kwargs or {}).get('post', '')\n"
    ),
    "pictures/needy.py": (
        "import no_such_package\nfrom lmms_eval.tasks._task_utils.file_utils import generate_submission_file\n"
        "from lmms_eval.api.metrics import no_such_metric\n\n\ndef text(doc):\n    return ''\n"
    ),
    "words/spell.yaml": (
        "task: spell\ntag: letters\ndataset_path: json\ndataset_kwargs:\n  data_files: {test: data.jsonl}\n"
        "test_split: test\ndoc_to_text: 'Spell {{word}}:'\ndoc_to_target: letters\n"
        "metric_list:\n  - metric: exact_match\n"
    ),
    "words/data.jsonl": '{"word": "ab", "letters": "a b"}\n{"word": "cd", "letters": "c d"}\n',
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of language tasks, and one of multimodal ones that are in part broken."""
    monkeypatch.setenv("FUSION_EVAL_CACHE", str(tmp_path / "cache"))
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    write_pictures(tmp_path / "pictures" / "data.parquet")
    return tmp_path


def write_pictures(path: Path) -> None:
    """Two documents, each with a picture, as the hub stores them."""
    from datasets import Dataset, Features, Image, Value

    colors = ["red", "blue"]
    images = [PIL.Image.new("RGB", (6, 4), color) for color in colors]
    features = Features({"image": Image(), "question": Value("string"), "answer": Value("string")})
    rows = {"image": images, "question": ["Which color?"] * 2, "answer": colors}
    Dataset.from_dict(rows, features=features).to_parquet(str(path))
