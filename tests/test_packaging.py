"""The wheel: what it carries, and that its console script runs from a directory with nothing but the user's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MY_TASKS = '''
"""A task pool as docs/add_a_task_pool.md has it."""

import torch

from fusion_eval import BaseTaskPool, instantiate
from fusion_eval.utils.parameters import count_parameters


class MyTaskPool(BaseTaskPool):
    def __init__(self, test_datasets, **kwargs):
        super().__init__(**kwargs)
        self._test_datasets = test_datasets

    def evaluate(self, model, **kwargs):
        _, all_params = count_parameters(model)
        report = {"model_info": {"all_params": all_params}}
        for task, node in self._test_datasets.items():
            dataset = instantiate(node)
            report[task] = {"mean_pixel": float(torch.stack([image for image, _ in dataset]).float().mean())}
        return report
'''
MY_YAML = """
_target_: my_tasks.MyTaskPool
test_datasets:
  upright:
    _target_: fusion_eval.assets.digits.DigitsDataset
    view: upright
    split: test
"""


def run(*command: str | Path, folder: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FUSION_EVAL_CONFIG_PATH")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Path:
    """A folder with the sdist and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, repo_root, folder=folder)
    return folder


@pytest.fixture(scope="module")
def console_script(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script of the wheel, in an environment that borrows this one's other packages."""
    venv = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", venv, folder=venv)
    python = venv / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "-q", wheel, folder=venv)
    purelib = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=venv).strip()
    (Path(purelib) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv / "bin" / "fusion_eval"


def test_wheel_and_sdist_carry_what_is_needed(built: Path, repo_root: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [file for file in (repo_root / "config").rglob("*.yaml")]
    assert {f"fusion_eval/config/{file.relative_to(repo_root / 'config').as_posix()}" for file in files} <= names
    assert {"fusion_eval/py.typed", "fusion_eval/cli.py", "fusion_eval/assets/digits.safetensors"} <= names
    assert not [name for name in names if name.split("/")[0] not in ("fusion_eval",) and ".dist-info/" not in name]
    assert not [name for name in names if name.startswith("config/") or "__pycache__" in name]
    assert sum(info.file_size for info in zipfile.ZipFile(wheel).infolist()) < 8_000_000
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        top = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "config/fusion_eval.yaml"} <= top


def test_console_script_from_an_empty_directory(console_script: Path, tmp_path: Path) -> None:
    assert "taskpool: " in run(console_script, "--help", folder=tmp_path)
    python = console_script.parent / "python"
    home = run(python, "-c", "import fusion_eval; print(fusion_eval.__file__)", folder=tmp_path)
    assert home.startswith(str(console_script.parent.parent))
    run(console_script, "limit=2", "output=first", folder=tmp_path)
    report = json.loads((tmp_path / "first" / "report.json").read_text())
    assert report["partial"] is True
    assert [file.name for file in tmp_path.iterdir()] == ["first"]


def test_console_script_with_the_user_s_own_task(console_script: Path, tmp_path: Path) -> None:
    (tmp_path / "config" / "taskpool").mkdir(parents=True)
    (tmp_path / "config" / "taskpool" / "my_custom_task.yaml").write_text(MY_YAML)
    (tmp_path / "my_tasks.py").write_text(MY_TASKS)
    assert "my_custom_task" in run(console_script, "--help", folder=tmp_path)
    run(console_script, "taskpool=my_custom_task", "output=out", folder=tmp_path)
    status = json.loads((tmp_path / "out" / "status.json").read_text())
    assert status["status"] == "completed"
    assert "mean_pixel" in (tmp_path / "out" / "report.json").read_text()
