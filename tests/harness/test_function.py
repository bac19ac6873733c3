from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fusion_eval.errors import ConfigError, MissingDependencyError
from fusion_eval.harness.function import ModuleSpace, module_name_of
from fusion_eval.harness.spec import MetricSpec, TaskSpec
from fusion_eval.harness.yaml_file import FunctionRef


def ref(folder: Path, target: str) -> FunctionRef:
    return FunctionRef(target, folder / "t.yaml", 4)


def test_own_folder_first_then_an_importable_module(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("def loads(x): return 'mine'\n")
    space = ModuleSpace([tmp_path])
    assert space.function(ref(tmp_path, "json.loads"))("1") == "mine"
    assert space.function(ref(tmp_path, "math.sqrt"))(4) == 2
    space.close()


def test_dotted_targets_are_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.py").write_text("X = 5\n")
    assert ModuleSpace([tmp_path]).function(ref(tmp_path, "a.b.X")) == 5


def test_only_named_folders_run_python(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text("raise SystemExit('executed')\n")
    with pytest.raises(ConfigError, match="would run Python from a folder that was not named"):
        ModuleSpace([tmp_path / "elsewhere"]).function(ref(tmp_path, "utils.x"))


def test_a_module_runs_once_per_space_and_anew_in_another(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text("seen = []\n")
    space = ModuleSpace([tmp_path])
    space.function(ref(tmp_path, "utils.seen")).append(1)
    assert space.function(ref(tmp_path, "utils.seen")) == [1]
    assert ModuleSpace([tmp_path]).function(ref(tmp_path, "utils.seen")) == []


def test_modules_leave_with_their_space(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text("x = 1\n")
    name = module_name_of(tmp_path / "utils.py")
    space = ModuleSpace([tmp_path])
    space.function(ref(tmp_path, "utils.x"))
    assert name in sys.modules
    space.close()
    assert name not in sys.modules


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("import no_such_thing_at_all\n", MissingDependencyError, "pip install no_such_thing_at_all"),
        ("x = 1\n\ny = x / 0\n", ConfigError, r"utils\.py:3 fails when imported: ZeroDivisionError"),
        ("import sys\nsys.exit('no')\n", ConfigError, "SystemExit"),
        ("prune = 1\n", ConfigError, r"t\.yaml:4: .* has no 'prone'.*Did you mean 'prune'"),
    ],
)
def test_failures_say_where(tmp_path: Path, text: str, error: type[Exception], said: str) -> None:
    (tmp_path / "utils.py").write_text(text)
    with pytest.raises(error, match=said):
        ModuleSpace([tmp_path]).function(ref(tmp_path, "utils.prone"))


def test_whole_specs_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text("def f(x): return x\n")
    wanted = ref(tmp_path, "utils.f")
    spec = TaskSpec(doc_to_text=wanted, metric_list=(MetricSpec(wanted, options={"inner": [wanted]}),))
    found = ModuleSpace([tmp_path]).resolve(spec)
    assert found.metric_list is not None
    assert callable(found.doc_to_text)
    assert found.metric_list[0].options["inner"][0] is found.doc_to_text is found.metric_list[0].metric


def test_names_inside_the_peers_tree() -> None:
    assert module_name_of(Path("/x/lm_eval/tasks/a/utils.py")) == "lm_eval.tasks.a.utils"
    assert module_name_of(Path("/x/y/utils.py")).startswith("_fusion_eval_task_")
