from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from fusion_eval.harness.peer_names import MODULES, peer_names

NAMES = """
from lm_eval import utils
from lm_eval.api.filter import Filter
from lm_eval.api.group import ConfigurableGroup, Group
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean, metric_max_over_ground_truths
from lm_eval.api.registry import register_filter
from lm_eval.api.samplers import ContextSampler
from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.config.group import GroupConfig
from lm_eval.filters.extraction import Filter, RegexFilter
from lm_eval.tasks._yaml_loader import load_yaml
from lm_eval.utils import general_detokenize, handle_non_serializable, logging, make_table, weighted_f1_score
import transformers.data.metrics.squad_metrics as squad_metrics
import evaluate
"""


def test_every_name_that_tasks_import_is_there() -> None:
    space: dict[str, object] = {}
    with peer_names():
        exec(NAMES, space)
    assert space["general_detokenize"]("do n't ( it )") == "don't (it)"  # type: ignore[operator]
    assert space["weighted_f1_score"]([(1, 1), (0, 0)]) == 1.0  # type: ignore[operator]
    assert space["squad_metrics"].compute_exact("a", "the") == 1  # type: ignore[attr-defined]


def test_every_module_supplies_what_it_promises() -> None:
    for supply in MODULES.values():
        assert all(value is not None for value in supply().values())


def test_an_installed_package_is_hidden_inside_and_back_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType("lm_eval")
    monkeypatch.setitem(sys.modules, "lm_eval", real)
    with peer_names():
        import lm_eval  # type: ignore[import-not-found, unused-ignore]

        assert lm_eval is not real
    assert sys.modules["lm_eval"] is real
    assert not [name for name in sys.modules if name.startswith("lm_eval.")]
    assert not [f for f in sys.meta_path if getattr(f, "serves_peer_names", False)]


def test_siblings_of_a_task_tree_are_importable(tmp_path: Path) -> None:
    folder = tmp_path / "lm_eval" / "tasks" / "a"
    folder.mkdir(parents=True)
    (folder / "utils.py").write_text("X = 1\n")
    (folder / "more.py").write_text("from lm_eval.tasks.a import utils\nfrom .utils import X\nY = utils.X + X\n")
    with peer_names([folder]):
        from lm_eval.tasks.a.more import Y  # type: ignore[import-not-found, unused-ignore]
    assert Y == 2


def test_other_modules_of_the_package_are_not_invented() -> None:
    with peer_names(), pytest.raises(ModuleNotFoundError, match=r"lm_eval\.models"):
        import lm_eval.models  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
