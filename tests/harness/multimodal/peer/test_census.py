"""The task tree of an installed lmms-eval: every file parses, and whatever fails names what it lacks."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest

from fusion_eval.harness.look.checking import checked
from fusion_eval.harness.look.listing import rows_of
from fusion_eval.harness.look.shelf import shelves

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("lmms_eval") is None, reason="pip install --no-deps lmms-eval"),
]
NAMED = re.compile(
    r"needs the package '\w|has no '\w|imports \w\S*|fails when imported|no task, group or tag is called|"
    r"no aggregation is called|names a module that does not exist"
)


def test_every_file_is_listed(tmp_path: Path) -> None:
    rows = rows_of(shelves(tasks_from=["lmms_eval"], cache=tmp_path))
    assert sum(row.kind == "task" for row in rows) > 1600
    assert not [row for row in rows if row.kind == "broken"]


def test_every_task_parses_and_most_of_them_import(tmp_path: Path) -> None:
    there = shelves(tasks_from=["lmms_eval"], dialect="multimodal", cache=tmp_path)
    rows = [row for row in rows_of(there) if "lmms_eval" in row.file and row.kind in ("task", "python")]
    found = checked(there, rows, run_python=True)
    unread = [row.name for row in rows if row.name not in found.plans]
    assert unread == []
    faults = [fault for own in found.by_name.values() for fault in own]
    assert [str(fault) for fault in faults if not NAMED.search(fault.found)] == []
    share = 1 - len(found.by_name) / len(rows)
    lacking = Counter(package for fault in faults for package in re.findall(r"the package '(\w+)'", fault.found))
    assert share >= 0.79, f"{share:.1%} of {len(rows)} import; packages that are lacking: {lacking.most_common(20)}"
