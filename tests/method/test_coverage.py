"""Every option of config/method has a line in the documentation and a test against an oracle or a closed form."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "config" / "method"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
FUSION_BENCH, MERGEKIT = "test_oracle_fusion_bench", "test_oracle_mergekit"
CLOSED = "test_closed_forms"
PROOFS = {
    "arcee_fusion": (MERGEKIT, "arcee_fusion"),
    "awd": (CLOSED, "test_awd_reaches_the_optimum_of_its_objective"),
    "bitdelta": (FUSION_BENCH, "test_bitdelta"),
    "breadcrumbs": (MERGEKIT, "breadcrumbs"),
    "breadcrumbs_ties": (MERGEKIT, "breadcrumbs_ties"),
    "cart": (CLOSED, "test_cart"),
    "consensus_ta": (FUSION_BENCH, "consensus_ta_derived"),
    "consensus_ties": (CLOSED, "test_consensus_ties"),
    "dare": (FUSION_BENCH, "test_dare_with_its_masks"),
    "dare_ties": (MERGEKIT, "dare_ties_d1"),
    "della": (CLOSED, "test_della_elects_among_what_it_keeps"),
    "della_linear": (CLOSED, "test_della_keeps_by_rank"),
    "depth_upscaling": ("test_depth_upscaling", "test_depth_upscaling_repeats_the_middle"),
    "doge_ta": (FUSION_BENCH, "doge_ta"),
    "dop": (FUSION_BENCH, "dop_20"),
    "emr": (FUSION_BENCH, "test_emr"),
    "emr_tsv": (CLOSED, "test_emr_over_task_singular_vectors"),
    "ensemble": (FUSION_BENCH, "test_networks"),
    "expo": (FUSION_BENCH, "expo_0.1"),
    "iso_c": (FUSION_BENCH, "iso_c"),
    "iso_cts": (FUSION_BENCH, "iso_cts"),
    "karcher": (MERGEKIT, "karcher"),
    "knots_ties": (CLOSED, "test_knots_ties"),
    "layer_stack": ("test_depth_upscaling", "test_layers_of_two_models"),
    "lines": (CLOSED, "test_lines_scales_by_depth_and_what_lies_outside_like_the_first_layer"),
    "lines_ties": (CLOSED, "test_depth_scaling_over_ties_finds_alpha_from_the_norms"),
    "localize_and_stitch": (CLOSED, "test_localize_and_stitch"),
    "magmax": (FUSION_BENCH, "magmax_0.5"),
    "magnitude_pruning": (FUSION_BENCH, "magnitude_diff_prune"),
    "model_recombination": (CLOSED, "test_recombined_models_use_each_layer_of_each_expert_once"),
    "model_stock": (MERGEKIT, "model_stock"),
    "multislerp": (MERGEKIT, "multislerp"),
    "nearswap": (MERGEKIT, "nearswap"),
    "nuslerp": (MERGEKIT, "nuslerp"),
    "opcm": (FUSION_BENCH, "opcm"),
    "passthrough": (MERGEKIT, "passthrough"),
    "pcb": (CLOSED, "test_pcb"),
    "pipeline": (FUSION_BENCH, "test_rank_reduction_without_orthogonal_vectors"),
    "ram": (MERGEKIT, "ram"),
    "ram_plus": (MERGEKIT, "ramplus_tl"),
    "recipe": ("tests.merge.test_recipe_oracle", "test_float32_equals_the_peer"),
    "saved_tasks": ("tests.merge.test_per_task", "test_a_saved_merge_is_read_to_the_same_bits"),
    "sce": (CLOSED, "test_sce_with_the_papers_weights"),
    "simple_average": (FUSION_BENCH, "simple_average"),
    "singular_projection": (FUSION_BENCH, "singular_projection_low"),
    "slerp": (FUSION_BENCH, "slerp_t0.2"),
    "smile_upscaling": (FUSION_BENCH, "test_networks"),
    "svc_ta": (FUSION_BENCH, "svc_task_arithmetic"),
    "svc_ties": (CLOSED, "test_spectral_calibration_of_any_merge"),
    "svc_tsv_m": (CLOSED, "test_spectral_calibration_of_any_merge"),
    "tall_masks": (FUSION_BENCH, "test_tall_masks"),
    "task_arithmetic": (FUSION_BENCH, "task_arithmetic_0.3"),
    "task_negation": (CLOSED, "test_magnitude_pruning_and_negation"),
    "ties": (FUSION_BENCH, "ties_mean"),
    "trust_region": (FUSION_BENCH, "trust_region_zero_shot"),
    "tsv_c": (CLOSED, "test_tsv_c_keeps_the_first_directions_of_each_task"),
    "tsv_m": (FUSION_BENCH, "tsvm"),
    "wudi": (FUSION_BENCH, "wudi_50"),
    "weight_pruning": (FUSION_BENCH, "test_weights_are_pruned_by_rows"),
    "weighted_average": (FUSION_BENCH, "weighted_average_norm"),
}
"""{option: (module of tests, a test or a case of its table)}."""


def test_every_method_is_proved():
    assert sorted(PROOFS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_proof_exists(name):
    where, what = PROOFS[name]
    module = importlib.import_module(where if "." in where else f"tests.method.{where}")
    cases = getattr(module, "CASES", ())
    known = set(cases) if isinstance(cases, dict) else {case[0] for case in cases}
    assert what in known or (what.startswith("test_") and callable(getattr(module, what)))


@pytest.mark.parametrize("name", NAMES)
def test_the_documentation_has_a_line(name, repo_root):
    rows = [
        row for row in (repo_root / "docs" / "methods.md").read_text().splitlines() if row.startswith(f"| `{name}` |")
    ]
    assert len(rows) == 1
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", rows[0])[1:-1]]
    assert len(cells) == 4
    assert cells[2], "the equation is missing"
