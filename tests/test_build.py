"""`build` and `check`: objects from nodes, and every fault with its key before anything is built."""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import Any

import pytest
from omegaconf import OmegaConf

from fusion_eval import instantiate
from fusion_eval.build import build, build_option, check
from fusion_eval.errors import ConfigError, DataError
from fusion_eval.mixins import BaseYAMLSerializable

HERE = "tests.test_build"
built: list[str] = []


class Part:
    def __init__(self, size: int, name: str = "part") -> None:
        built.append(name)
        self.size, self.name = size, name

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Part:
        return cls(*args, **kwargs)


class Whole:
    def __init__(self, part: Any, parts: Any = (), **options: Any) -> None:
        self.part, self.parts, self.options = part, parts, options


class Pool(BaseYAMLSerializable):
    _config_key = "taskpool"

    def __init__(self, data: dict[str, Any], *, batch_size: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data, self.batch_size = data, batch_size


class WiderPool(Pool):
    def __init__(self, extra: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.extra = extra


class Program:
    given_by_launch = ("method", "modelpool")

    def __init__(self, method: Any, modelpool: Any, taskpool: Any) -> None:
        pass


def fails(kind: str) -> None:
    if kind == "own":
        raise DataError("no items")
    if kind == "package":
        raise ModuleNotFoundError("No module named 'peft'", name="peft")
    raise ValueError("not like\nthis")


def node(name: str, **keywords: Any) -> dict[str, Any]:
    return {"_target_": f"{HERE}.{name}", **keywords}


def faults_of(cfg: Any) -> list[str]:
    try:
        check(cfg)
    except ConfigError as error:
        return [str(fault) for fault in error.faults]
    return []


@pytest.mark.parametrize("form", [dict, OmegaConf.create])
def test_builds_a_node_and_the_nodes_inside(form: Any) -> None:
    whole = build(form(node("Whole", part=node("Part", size=2), parts=[node("Part", size=3)], note={"a": [1]})))
    assert whole.part.size == 2
    assert [part.size for part in whole.parts] == [3]
    assert whole.options == {"note": {"a": [1]}}
    assert type(whole.options["note"]) is dict
    assert type(whole.options["note"]["a"]) is list


@pytest.mark.parametrize("thing", [None, 3, "text", object(), Part])
def test_an_object_comes_back_as_it_is(thing: Any) -> None:
    assert build(thing) is thing


def test_containers_of_nodes() -> None:
    assert [part.size for part in build([node("Part", size=1), node("Part", size=2)])] == [1, 2]
    assert build({"a": node("Part", size=1), "b": 2})["a"].size == 1


def test_given_arguments_arrive_untouched_and_win() -> None:
    thing = OrderedDict(a=[1])
    whole = build(node("Whole", part=1), part=thing, parts=(1, 2))
    assert whole.part is thing
    assert whole.parts == (1, 2)


def test_partial() -> None:
    recipe = build(node("Part", size=1, _partial_=True), name="later")
    assert isinstance(recipe, functools.partial)
    assert recipe().name == "later"


def test_pools_get_plain_nodes_and_others_get_objects() -> None:
    pool = instantiate(node("Pool", data={"a": node("Part", size=1)}))
    assert pool.data == {"a": node("Part", size=1)}
    assert type(pool.data) is dict
    assert instantiate(pool.data["a"]).size == 1
    eager = build(node("Pool", data={"a": node("Part", size=1)}, _recursive_=True))
    assert eager.data["a"].size == 1


def test_interpolations_reach_out_of_the_node() -> None:
    cfg = OmegaConf.create({"size": 7, "part": node("Part", size="${size}")})
    assert build(cfg.part).size == 7


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        (node("fails", kind="value"), f"method: building {HERE}.fails failed with ValueError: not like this."),
        (
            node("fails", kind="package"),
            "method: the package 'peft' is not installed. Run: pip install \"fusion_eval[lora]\"",
        ),
        (node("Part"), "method: building tests.test_build.Part failed with TypeError"),
        (node("Whole", part=node("fails", kind="x")), "method.part: building"),
        (node("Prat"), "has no 'Prat'"),
        (node("Whole", part={"_target_": "os.system", "command": "true"}), "blocklisted"),
    ],
)
@pytest.mark.parametrize("form", ["plain", "inside"])
def test_a_failure_names_the_key_and_the_cause(cfg: dict[str, Any], words: str, form: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(OmegaConf.create({"method": cfg}).method) if form == "inside" else build(cfg, _key_="method")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("cfg", [node("fails", kind="own"), node("Whole", part=node("fails", kind="own"))])
def test_own_errors_pass_unwrapped(cfg: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="no items"):
        build(cfg)


def test_check_builds_nothing() -> None:
    built.clear()
    check({"a": node("Whole", part=node("Part", size=1))})
    assert built == []


@pytest.mark.parametrize(
    ("cfg", "expected"),
    [
        ({"_target_": f"{HERE}.Prat"}, f"_target_: '{HERE}' has no 'Prat' (of '{HERE}.Prat'). Did you mean 'Part'?"),
        (
            {"_target_": "colections.Counter"},
            "_target_: no module 'colections' (of 'colections.Counter'). Did you mean",
        ),
        (
            {"_target_": "json.decodr.X"},
            "_target_: 'json' has no 'decodr' (of 'json.decodr.X'). Did you mean 'decoder'",
        ),
        ({"_target_": "json.decoder.JSONDecoder.decod"}, "_target_: 'json.decoder.JSONDecoder' has no 'decod'"),
        ({"_target_": "json"}, "_target_: 'json' is a module; expected a class or function."),
        ({"_target_": "two words"}, "_target_: 'two words'; expected the dotted path"),
        ({"_target_": 3}, "_target_: 3; expected the dotted path"),
        ({"_target_": "builtins.eval"}, "_target_: Target 'builtins.eval' is blocklisted"),
        (node("Part", size=1, nmae=1), "nmae: Part takes no 'nmae'; expected one of name, size. Did you mean 'name'?"),
        (node("Part"), "Part: Part needs size."),
        (node("Part", size=1, _args_=[2]), "size: 'size' is given by position too"),
        (node("Pool", data={}, bach_size=1), "bach_size: Pool takes no 'bach_size'; expected one of batch_size, data."),
        (node("WiderPool", data={}, batch_sise=1), "batch_sise: WiderPool takes no 'batch_sise'"),
        ({"a": {"b": [node("Part")]}}, "a.b[0]: Part needs size. Set a.b[0].size=..."),
        ({"pool": node("Pool", data={"x": node("Part", sise=1)})}, "pool.data.x.sise: Part takes no 'sise'"),
        ({"program": node("Program")}, "program: Program needs taskpool."),
    ],
)
def test_check_tells_the_fault(cfg: dict[str, Any], expected: str) -> None:
    (fault,) = faults_of(cfg)
    assert fault.startswith(expected)


@pytest.mark.parametrize(
    "cfg",
    [
        node("Part", _args_=[1]),
        node("Part", _partial_=True),
        node("Whole", part=1, anything=2),
        node("Part.from_pretrained", where="anything"),
        node("WiderPool", data={}, extra=1, batch_size=2),
        {"_target_": "builtins.dict", "a": 1},
        {"_target_": "builtins.max", "_args_": [[1, 2]]},
        {"pool": node("Pool", data={"later": node("Part")})},  # a user's pool may add what its nodes lack
        {"program": node("Program", taskpool=1)},
        {"plain": {"a": [1, {"b": None}]}},
    ],
)
def test_check_passes_what_can_be_built(cfg: dict[str, Any]) -> None:
    assert faults_of(cfg) == []
    assert faults_of(OmegaConf.create(cfg)) == []


def test_check_finds_missing_values_and_interpolations() -> None:
    cfg = OmegaConf.create(
        {"a": "???", "b": {"c": "${nowhere}", "d": ["${a}"], "e": "${oc.env:NO_SUCH_VARIABLE_HERE}"}}
    )
    found = faults_of(cfg)
    assert [fault.partition(":")[0] for fault in found] == ["a", "b.c", "b.d[0]", "b.e"]
    assert found[0] == "a: ??? stands for a value that has to be given. Set a=..."


def test_check_gathers_all_faults_in_one_error() -> None:
    with pytest.raises(ConfigError) as caught:
        check({"a": node("Part", x=1), "b": {"_target_": "no.such"}, "c": [node("Prat")], "d": node("Whole")})
    text = str(caught.value)
    assert text.startswith("5 faults:")
    for key in ("a.x:", "a:", "b._target_:", "c[0]._target_:", "d:"):
        assert f"\n  - {key}" in text


def test_check_skips_the_keys_it_is_told_to() -> None:
    check({"fabric": {"_target_": "no.such"}}, skip=("fabric",))


def test_a_package_of_an_extra_is_named_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    (fault,) = faults_of({"_target_": "peft.LoraConfig"})
    assert fault == "_target_: the package 'peft' is not installed. Run: pip install \"fusion_eval[lora]\""


def test_an_option_by_name() -> None:
    made = build_option("fabric", "cpu", _target_="builtins.dict", devices=2)
    assert made == {"accelerator": "cpu", "devices": 2}


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [("tis", {}, "method: no option 'tis'"), ("ties", {"densty": 1}, "method.densty: Ties takes no 'densty'")],
)
def test_an_option_that_is_none(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_option("method", name, **changes)
