"""The command line: what it hands over, how it tells faults, what a sweep leaves; on stand-in groups, without torch."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from fusion_eval import cli, config_path
from fusion_eval.errors import DataError, Fault, OutputError

GROUPS = {
    "program/fusion": "_target_: builtins.dict\nkind: fusion",
    "method/task_arithmetic": "_target_: builtins.dict\nscaling: 0.3",
    "method/ties": "_target_: tests.test_cli.ties\ndensity: 0.2",
    "method/broken": "a: [",
    "method/borrowing": "_target_: builtins.dict\nscaling: ${method.scale}",
    "method/orphan": "defaults: [/dataset@data: [absent]]",
    "modelpool/digits": "_target_: builtins.dict",
    "taskpool/digits": "defaults: [/dataset@tasks: [a]]\n_target_: builtins.dict",
    "dataset/a": "a: {rows: 1}",
    "fabric/auto": "_target_: builtins.dict",
    "experiment/quick": "# @package _global_\ndefaults: [override /method: ties]\nlimit: 3",
    "experiment/wrong": "# @package _global_\nlimits: 3",
    "experiment/elsewhere": "# @package _global_\ndefaults: [override /metod: ties]",
    "method/bare": "scaling: 1",
    "method/list": "[a, b]",
    "method/circle": "defaults: [round]\n_target_: builtins.dict",
    "method/round": "defaults: [circle]\n_target_: builtins.dict",
}


def ties(density: float, top: int = 1) -> None:
    """A target whose signature is known."""


@dataclass
class Launched:
    """What `launch` was given, and what it should do."""

    configs: list[dict[str, Any]] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    overrides: list[list[str]] = field(default_factory=list)
    fails_on: Callable[[dict[str, Any]], Exception | None] = lambda config: None

    def __call__(self, config: dict[str, Any], output_dir: str, overrides: list[str]) -> float:
        self.configs.append(config)
        self.folders.append(Path(output_dir))
        self.overrides.append(overrides)
        if error := self.fails_on(config):
            raise error
        return 0.5


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launched:
    own = config_path.config_dir()
    folder = tmp_path / "package_config"
    (folder / "hydra").mkdir(parents=True)
    shutil.copy(own / "fusion_eval.yaml", folder)
    settings = OmegaConf.load(own / "hydra" / "default.yaml")
    del settings.callbacks.sweep_summary  # reads real reports
    OmegaConf.save(settings, folder / "hydra" / "default.yaml")
    for name, text in GROUPS.items():
        (folder / f"{name}.yaml").parent.mkdir(exist_ok=True)
        (folder / f"{name}.yaml").write_text(text + "\n")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(config_path, "config_dir", lambda: folder)
    for module in ("compose", "usage"):
        monkeypatch.setattr(f"fusion_eval.{module}.config_dir", lambda: folder)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    stub = Launched()
    module = SimpleNamespace(launch=stub, is_one_cpu_process=lambda node: False)
    monkeypatch.setitem(sys.modules, "fusion_eval.program.launch", module)
    return stub


@pytest.fixture
def fusion_eval(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs the command line; returns what it says on leaving, an empty string when all is well."""

    def call(*argv: str) -> str:
        monkeypatch.setattr(sys, "argv", ["fusion_eval", *argv])
        try:
            cli.main()
        except SystemExit as left:
            return str(left.code or "")
        return ""

    return call


def test_hands_over_a_plain_resolved_config(fusion_eval: Callable[..., str], launched: Launched) -> None:
    assert fusion_eval("method=ties", "+method.top=${limit}", "limit=4") == ""
    (config,) = launched.configs
    assert type(config["method"]) is dict
    assert config["method"] == {"_target_": "tests.test_cli.ties", "density": 0.2, "top": 4}
    assert list(config)[:5] == ["program", "method", "modelpool", "taskpool", "fabric"]
    assert launched.overrides == [["method=ties", "+method.top=${limit}", "limit=4"]]


def test_run_folder_and_status(fusion_eval: Callable[..., str], launched: Launched) -> None:
    assert fusion_eval() == ""
    (folder,) = launched.folders
    assert folder.relative_to(Path.cwd()).parts[0] == "outputs"
    assert json.loads((folder / "status.json").read_text()) == {
        "status": "completed",
        "overrides": [],
        "objective": 0.5,
    }
    assert fusion_eval("output=there") == ""
    assert launched.folders[1] == Path.cwd() / "there"


def test_experiment_sets_group_and_keys(fusion_eval: Callable[..., str], launched: Launched) -> None:
    assert fusion_eval("experiment=quick") == ""
    assert launched.configs[0]["limit"] == 3
    assert launched.configs[0]["method"]["density"] == 0.2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["method=tis"], ["method: no option 'tis'; expected one of bare,", "Did you mean 'ties'?"]),
        (["method=orphan"], ["dataset: no option 'absent' (asked for by method/orphan); expected one of a."]),
        (["experiment=nope"], ["experiment: no option 'nope'; expected one of elsewhere, quick, wrong."]),
        (["experiment=elsewhere"], ["metod (overridden by experiment/elsewhere): not a group", "mean 'method'?"]),
        (["+experiment=quick"], ["experiment: chosen twice. Write experiment=..., without a plus."]),
        (["method=bare"], ["method: no _target_; expected a _target_: the dotted path of a class."]),
        (["method=list"], ["method: ['a', 'b'], no node with a _target_"]),
        (["method=circle"], ["a defaults list: files that include one another."]),
        (["seed=4294967296"], ["seed: 4294967296; expected a number from 0 to 4294967295."]),
        (["hydra/launcher=joblib_"], ["hydra/launcher: no option 'joblib_'", 'pip install "fusion_eval[sweep]"']),
        (["taskpol=x"], ["taskpol: no such key; expected one of program,", "Did you mean 'taskpool'?"]),
        (
            ["method.scalin=1"],
            ["method.scalin: no such key; expected one of _target_, scaling. Did you mean 'scaling'?"],
        ),
        (["method=ties", "method.top=1"], ["method.top: no such key", "+method.top=..."]),
        (["taskpool.tasks.b.x=1"], ["taskpool.tasks.b: no such key; expected one of a."]),
        (["sede=1"], ["sede: no such key", "Did you mean 'seed'?"]),
        (["+sede=1"], ["sede: no such key", "Did you mean 'seed'?"]),
        (["experiment=wrong"], ["limits (set in experiment/wrong): no such key", "Did you mean 'limit'?"]),
        (["seed=abc"], ["seed: 'abc'; expected a whole number."]),
        (["limit=0"], ["limit: 0; expected at least 1."]),
        (["method=broken"], ["method/broken.yaml, line 2, column 1: ", "expected valid YAML"]),
        (["method=borrowing"], ["method.scaling: Interpolation key 'method.scale' not found."]),
        (["limit"], ["override 'limit': missing EQUAL", "expected key=value"]),
        (["method=[a,"], ["override 'method=[a,': no viable alternative"]),
        (["method=ties,task_arithmetic"], ["several values; expected one value. Put -m in front"]),
        (["method=null"], ["Config group override must be a string"]),
        (["~method"], ["method: ??? stands for a value that has to be given."]),
        (["dataset=a"], ["dataset: not a group that is chosen at the root"]),
        (["hydra.searchpath=[file:///nowhere]"], ["path=/nowhere is not available"]),
        (["--config-dir", "/nowhere"], ["'/nowhere' not found"]),
        (["-cn", "foo"], ["--config-name: no primary configuration 'foo'"]),
        (["--multirn", "seed=1"], ["no flag '--multirn'. Did you mean '--multirun'?"]),
        (["--seed=1"], ["no flag '--seed'. Overrides have no dashes: seed=1"]),
        (["--cfg", "jobs"], ["invalid choice: 'jobs'"]),
        (["-m", "--cfg", "job"], ["command line: --multirun and --cfg; expected one of them."]),
        (
            ["seed=1", "-m", "limit=2"],
            ["overrides stand apart; expected flags first, then overrides. Run: fusion_eval -m seed=1 limit=2"],
        ),
    ],
)
def test_a_fault_is_one_line_that_helps(
    argv: list[str], words: list[str], fusion_eval: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    said = fusion_eval(*argv)
    assert said.startswith("fusion_eval: ")
    assert "\n" not in said
    for word in words:
        assert word in said
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    assert "Error executing job" not in out + err


def test_a_file_that_is_no_text_is_named(fusion_eval: Callable[..., str], tmp_path: Path) -> None:
    file = Path.cwd() / "config" / "method" / "binary.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"\xff\xfe\x00")
    assert fusion_eval("method=binary") == f"fusion_eval: {file}: not UTF-8; expected valid YAML in UTF-8."


def test_a_disk_that_is_full_is_one_error(
    fusion_eval: Callable[..., str], launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        if '"running"' not in text:
            raise OutputError(Fault(str(path), "cannot be written (No space left on device)"))

    monkeypatch.setattr(cli, "write_text", full)
    assert "status.json: cannot be written (No space left on device)." in fusion_eval()
    launched.fails_on = lambda config: DataError(Fault("task 'dtd'", "no items"))
    assert fusion_eval() == "fusion_eval: task 'dtd': no items."


def test_code_that_exits_is_a_failure(fusion_eval: Callable[..., str], launched: Launched) -> None:
    launched.fails_on = lambda config: SystemExit(0)  # type: ignore[assignment,return-value]
    assert fusion_eval() == "fusion_eval: the run: code that it called ended it with sys.exit(0)."
    assert json.loads((launched.folders[0] / "status.json").read_text())["status"] == "failed"


def test_all_faults_of_a_config_come_at_once(fusion_eval: Callable[..., str], launched: Launched) -> None:
    said = fusion_eval(
        "method=ties", "+method.tob=1", "modelpool._target_=collections.OrderedDic", "+foo=1", "limit=-1"
    )
    for where in ("foo: ", "limit: -1", "method.tob: ", "modelpool._target_: "):
        assert where in said
    assert said.startswith("fusion_eval: 4 faults:")
    assert not launched.configs


def test_own_errors_are_told_and_bugs_keep_their_traceback(
    fusion_eval: Callable[..., str], launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched.fails_on = lambda config: DataError(Fault("task 'dtd'", "no items"))
    assert fusion_eval() == "fusion_eval: task 'dtd': no items."
    assert json.loads((launched.folders[0] / "status.json").read_text())["error"] == "task 'dtd': no items."
    launched.fails_on = lambda config: ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError, match="a bug"):
        fusion_eval()
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    launched.fails_on = lambda config: DataError(Fault("task 'dtd'", "no items"))
    with pytest.raises(DataError):
        fusion_eval()


@pytest.mark.parametrize("batches", [[], ["hydra.sweeper.max_batch_size=1"]])
def test_a_failing_job_stops_no_other_and_fails_the_sweep(
    batches: list[str], fusion_eval: Callable[..., str], launched: Launched, capfd: pytest.CaptureFixture[str]
) -> None:
    launched.fails_on = lambda config: ValueError("odd") if config["seed"] == 2 else None
    said = fusion_eval("-m", "seed=1,2,3", "output=sweep", *batches)
    assert [config["seed"] for config in launched.configs] == [1, 2, 3]
    states = [json.loads((Path("sweep") / str(n) / "status.json").read_text())["status"] for n in range(3)]
    assert states == ["completed", "failed", "completed"]
    assert said == "fusion_eval: 1 of 3 jobs did not complete: sweep/1"
    assert "job 1 failed: ValueError: odd" in capfd.readouterr().err


def test_a_sweep_without_failures_exits_with_0(fusion_eval: Callable[..., str], launched: Launched) -> None:
    assert fusion_eval("-m", "seed=1,2") == ""
    assert len({folder.parent for folder in launched.folders}) == 1
    assert launched.folders[0].relative_to(Path.cwd()).parts[0] == "multirun"


def test_user_yaml_adds_names_and_shadows_none(
    fusion_eval: Callable[..., str], launched: Launched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("config/taskpool").mkdir(parents=True)
    Path("config/taskpool/mine.yaml").write_text("defaults: [digits, _self_]\n_target_: my_own_tasks.Mine\n")
    Path("config/taskpool/digits.yaml").write_text("_target_: builtins.list\n")
    Path("my_own_tasks.py").write_text("def Mine(tasks): pass\n")
    other = tmp_path / "other"
    (other / "method").mkdir(parents=True)
    (other / "method" / "mine.yaml").write_text("_target_: builtins.dict\nx: 7\n")
    monkeypatch.setenv("FUSION_EVAL_CONFIG_PATH", str(other))
    assert fusion_eval("taskpool=mine", "method=mine") == ""
    assert launched.configs[0]["taskpool"] == {"_target_": "my_own_tasks.Mine", "tasks": {"a": {"rows": 1}}}
    assert launched.configs[0]["method"]["x"] == 7
    assert fusion_eval("taskpool=digits") == ""
    assert launched.configs[1]["taskpool"]["_target_"] == "builtins.dict"
    assert "digits.yaml is not used" in (launched.folders[1] / "fusion_eval.log").read_text()
    said = fusion_eval("taskpool=min")
    assert "expected one of digits, mine. Did you mean 'mine'?" in said


def test_folder_that_cannot_be_read_is_one_error(
    fusion_eval: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUSION_EVAL_CONFIG_PATH", f"{tmp_path / 'absent'}:{tmp_path / 'file'}")
    said = fusion_eval()
    assert f"FUSION_EVAL_CONFIG_PATH: no folder {tmp_path / 'absent'}" in said
    assert f"FUSION_EVAL_CONFIG_PATH: {tmp_path / 'file'} is a file" in said


def test_folder_that_cannot_be_written_is_one_error(fusion_eval: Callable[..., str]) -> None:
    Path("taken").write_text("")
    assert "expected a folder that can be written. Set output=<folder>." in fusion_eval("output=taken/run")


def test_help_lists_the_user_s_options_and_the_keys(
    fusion_eval: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for file in (
        Path("config/method/mine.yaml"),
        tmp_path / "more/method/other.yaml",
        tmp_path / "more/method/_base.yaml",
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    assert fusion_eval("--config-dir", str(tmp_path / "more"), "--help") == ""
    text = capsys.readouterr().out
    assert "method: bare, borrowing, broken, circle, list, mine, orphan, other, round, task_arithmetic, ties\n" in text
    assert "\n  seed: 0" in text
    assert 'eval "$(fusion_eval -sc install=bash)"' in text


def test_version(fusion_eval: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert fusion_eval("--version") == ""
    assert capsys.readouterr().out == f"fusion_eval {cli.__version__}\n"


def test_ranks_above_zero_leave_no_folder(
    fusion_eval: Callable[..., str], launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert fusion_eval("output=shared") == ""
    assert not Path("shared").exists()
    assert not (launched.folders[0] / "status.json").exists()
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("form", ["--config-dir", "hydra.searchpath"])
def test_a_folder_can_be_named_on_the_command_line(
    form: str, fusion_eval: Callable[..., str], launched: Launched, tmp_path: Path
) -> None:
    folder = tmp_path / "added"
    (folder / "method").mkdir(parents=True)
    (folder / "method" / "mine.yaml").write_text("_target_: builtins.dict\nx: 7\n")
    (folder / "method" / "ties.yaml").write_text("_target_: builtins.list\n")
    named = ["--config-dir", str(folder)] if form == "--config-dir" else [f"hydra.searchpath=[file://{folder}]"]
    assert fusion_eval(*named, "method=mine") == ""
    assert fusion_eval(*named, "method=ties") == ""
    assert [config["method"]["_target_"] for config in launched.configs] == ["builtins.dict", "tests.test_cli.ties"]
