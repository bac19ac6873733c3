"""Frames, datasets, exports, plots and files of a result."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from fusion_eval.errors import MissingDependencyError, OutputError, StatisticsError
from fusion_eval.stats import ComparisonResult, Scores, compare_metrics, compare_scores, compare_tasks, label_metric
from fusion_eval.stats.export import number, p_text

RNG = np.random.default_rng(6)
NAMES = ("base_model", "50% & <b>", "c|d")
ITEMS = {name: (RNG.random((3, 120)) < 0.5 + 0.1 * i).astype(float) for i, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def result():
    target = RNG.integers(0, 3, 120)
    f1 = {n: [label_metric("f1", RNG.integers(0, 3, 120), target, 4) for _ in range(3)] for n in NAMES}
    measured = [Scores.from_items("accuracy", ITEMS), Scores.from_metrics("f1", f1)]
    return compare_metrics(measured, rope={"accuracy": 0.02}, clusters=np.arange(120) // 4, resamples=500)


PEER = (
    "metric method_a method_b mean_diff effect_size p_value p_corrected significant item_diff item_ci_low item_ci_high"
)


def test_frame_has_the_peers_columns_first(result):
    frame = result.to_frame()
    assert list(frame.columns)[:13] == [*PEER.split(), "item_p", "item_p_corrected"]
    assert len(frame) == 6
    assert set(frame["claim"]) == {"the recipe"}


def test_summary_frame(result):
    frame = result.summary()
    columns = ["method", "metric", "mean", "ci_low", "ci_high", "significant_vs_ref", "verdict_vs_ref"]
    assert list(frame.columns)[:7] == columns
    assert frame["verdict_vs_ref"].iloc[0] == ""
    worst = result.summary(reference=NAMES[2])
    turned = worst[(worst.method == NAMES[0]) & (worst.metric == "accuracy")]["verdict_vs_ref"].item()
    assert turned == result.comparison("accuracy", NAMES[0], NAMES[2]).verdict


def test_dataset(result):
    data = result.data
    assert dict(data.sizes) == {"method": 3, "seed": 3, "item": 120}
    assert data["accuracy"].dims == ("method", "seed")
    assert data["accuracy_item"].sel({"method": "base_model"}).values.tolist() == ITEMS["base_model"].tolist()
    assert "f1_item" not in data
    assert data.attrs["correction"] == "holm"
    assert data["cluster"].values.tolist() == (np.arange(120) // 4).tolist()


def test_markdown_escapes_bars(result):
    lines = [line for line in result.to_markdown().splitlines() if line.startswith("|")]
    assert "c\\|d" in "".join(lines)
    widths = {line.replace("\\|", "").count("|") for line in lines}
    assert widths == {9, 13}
    assert "p corrected by holm over the pairs of one metric" in result.to_markdown()
    assert "Warning: f1: 1 of 4 classes never occur" in result.to_markdown()


def test_latex_escapes(result):
    text = result.to_latex()
    assert r"50\% \& \textless{}b\textgreater{}" in text
    assert r"base\_model" in text
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 2
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.replace(r"\&", "").count("&") for line in rows} == {7, 11}


def test_html_is_well_formed_and_escaped(result):
    text = result.to_html()
    assert "50% &amp; &lt;b&gt;" in text
    open_tags = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag, attrs):
            open_tags.append(tag)

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

    Checker().feed(text)
    assert open_tags == []


def test_csv_reads_back(result):
    rows = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert len(rows) == 6
    assert float(rows[0]["p_value"]) == result.comparisons[0].p_value
    assert rows[0]["method_b"] == NAMES[1]


def test_numbers_for_tables():
    assert number(float("nan")) == "-"
    assert p_text(1e-9) == "<0.0001"
    assert p_text(0.04567) == "0.0457"


def test_save_and_load(result, tmp_path):
    path = result.save(tmp_path / "deep" / "comparison.json")
    loaded = ComparisonResult.load(path)
    assert sorted(file.name for file in path.parent.iterdir()) == ["comparison.json", "comparison.npz"]
    assert repr(loaded.comparisons) == repr(result.comparisons)
    assert repr(loaded.summaries) == repr(result.summaries)
    assert (loaded.settings, loaded.warnings) == (result.settings, result.warnings)
    assert (loaded.scores[0].items == result.scores[0].items).all()
    assert loaded.scores[1].functions is None
    assert loaded.to_markdown() == result.to_markdown()
    assert (loaded.clusters == result.clusters).all()


def test_saved_json_is_strict_and_readable(result, tmp_path):
    document = json.loads(result.save(tmp_path / "c.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert document["schema"] == 1
    assert document["comparisons"][0]["method_a"] == "base_model"


def test_saving_again_replaces_whole_files(result, tmp_path):
    path = result.save(tmp_path / "c.json")
    before = path.read_bytes()
    assert result.save(path).read_bytes() == before


def test_a_failed_save_leaves_nothing(result, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OutputError, match="cannot be written"):
        result.save(tmp_path / "c.json")
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_loaded(result, tmp_path):
    path = result.save(tmp_path / "c.json")
    document = json.loads(path.read_text())
    cases = {"x.json": "{", "s.json": json.dumps({**document, "schema": 9}), "l.json": "[]"}
    del document["settings"]
    cases["i.json"] = json.dumps(document)
    for name, text in cases.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(StatisticsError):
            ComparisonResult.load(tmp_path / name)
    with pytest.raises(StatisticsError, match="cannot be read"):
        ComparisonResult.load(tmp_path / "absent.json")
    path.with_suffix(".npz").write_bytes(b"other")
    with pytest.raises(StatisticsError, match="does not belong"):
        ComparisonResult.load(path)
    path.with_suffix(".npz").unlink()
    with pytest.raises(StatisticsError, match="together"):
        ComparisonResult.load(path)
    with pytest.raises(OutputError, match=r"\.json"):
        result.save(tmp_path / "c.txt")


def test_plots(result, tmp_path):
    pytest.importorskip("matplotlib")
    figure = result.plot("f1")
    assert len(figure.axes) == 2
    figure.savefig(tmp_path / "plot.svg")
    assert len(result.plot().axes[1].lines) == 2 * 3 + 1
    with pytest.raises(StatisticsError, match="Did you mean 'accuracy'"):
        result.plot("acuracy")


def test_critical_difference_diagram(tmp_path):
    pytest.importorskip("matplotlib")
    table = {name: RNG.random(9) + i for i, name in enumerate("abc")}
    compare_tasks(table).plot().savefig(tmp_path / "cd.svg")


@pytest.mark.parametrize(
    ("module", "use", "extra"),
    [
        ("pandas", lambda r: r.to_frame(), "stats"),
        ("xarray", lambda r: r.data, "stats"),
        ("matplotlib.figure", lambda r: r.plot(), "plot"),
    ],
)
def test_missing_packages_name_the_extra(result, monkeypatch, module, use, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError) as error:
        use(result)
    assert f'pip install "fusion_eval[{extra}]"' in str(error.value)


def test_the_cheap_path_loads_no_heavy_package():
    code = (
        "import sys, fusion_eval.stats as s; s.interval_of([1, 0, 1] * 9); s.interval_of([0.1, 0.5, 0.7] * 9);"
        "heavy = ('torch', 'scipy.stats', 'pandas', 'xarray', 'statsmodels', 'matplotlib');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_text_form():
    text = str(compare_scores({name: scores[0] for name, scores in ITEMS.items()}))
    assert text.count("\n") == 3
    assert "Warning: score: 120 items" in text


def test_public_names():
    import fusion_eval.stats as stats

    for name in stats.__all__:
        assert getattr(stats, name) is not None
    assert "interval_of" in dir(stats)
    with pytest.raises(AttributeError):
        _ = stats.nothing


def test_names_with_signs_of_formulas_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    scores = np.random.default_rng(0).random((2, 30))
    result = compare_scores({"$x_{$ $": scores[0], "b$$\\": scores[1]}, metric_name="$\\frac$", resamples=200)
    result.plot().savefig(tmp_path / "plot.png")


def test_a_metric_that_is_not_tested_is_shown_and_exported():
    scores = np.random.default_rng(0).random((2, 30))
    result = compare_scores({"a": scores[0], "b": scores[1]}, resamples=200)
    untested = replace(result, comparisons=())
    assert str(untested).splitlines()[0].startswith("score: a 0.")
    assert untested.to_csv().startswith("metric,method_a")
    assert len(untested.to_csv().splitlines()) == 1
    pytest.importorskip("matplotlib")
    untested.plot()
