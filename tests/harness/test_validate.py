from __future__ import annotations

from pathlib import Path

from fusion_eval.harness.catalog import TaskCatalog
from fusion_eval.harness.validate import check

GOOD = "task: good\ndataset_path: json\ntest_split: test\ndoc_to_text: '{{q}}'\ndoc_to_target: a\n"


def test_all_faults_of_all_files_with_their_lines(tmp_path: Path) -> None:
    files = {
        "good": GOOD,
        "keys": GOOD.replace("good", "keys") + "generation_kwarg: {}\n",
        "filters": GOOD.replace("good", "filters") + "filter_list:\n  - name: f\n    filter: [{function: regexx}]\n",
        "choices": "task: choices\ndataset_path: json\ndoc_to_text: q\noutput_type: multiple_choice\n",
        "nodata": "task: nodata\ndoc_to_text: q\n",
        "broken": "task: [broken\n",
        "twin": GOOD,
        "hook": GOOD.replace("good", "hook") + "process_docs: !function utils.nothing\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "utils.py").write_text("something = 1\n")
    found = check(TaskCatalog([tmp_path], tmp_path / "c"), run_python=[tmp_path])
    said = "\n".join(str(fault) for fault in found.faults)
    for part in (
        "keys.yaml:6 (generation_kwarg): is not a key of a task file. Did you mean 'generation_kwargs'",
        "filters.yaml:6 (filter_list): no filter is called 'regexx'. Did you mean 'regex'",
        "choices.yaml:4 (output_type): multiple_choice without doc_to_choice",
        "nodata.yaml: 'nodata' names no data",
        "broken.yaml:",
        "hook.yaml:6: the module",
    ):
        assert part in said
    assert len(found.faults) == 6
    assert "twin.yaml" in str(found.notes[0])


def test_columns_and_splits_where_they_are_known(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    catalog = TaskCatalog([tmp_path], tmp_path / "c")
    found = check(catalog, ["good"], columns={"good": ["qq", "a"]}, splits={"good": ["test"]})
    assert [str(fault).split(" (")[1] for fault in found.faults] == [
        "doc_to_text): the template uses 'q'; expected a column: a, qq. Did you mean 'qq'?"
    ]
    found = check(catalog, ["good"], columns={"good": ["q"]}, splits={"good": ["train"]})
    assert "the data set has no split 'test'" in str(found.faults[0])
