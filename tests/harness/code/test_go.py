"""Go sources: only imports that are used, helper functions of the prompt, no package from the network."""

from __future__ import annotations

from fusion_eval.harness.code.go import go_source

HELPER = "func Helper(x int) int {\n    return x\n}\n"
PROMPT = f'import (\n    "math"\n)\n\n// "a" among strings. No more.\n{HELPER}\nfunc Main(x int) int {{\n'
DOC = {
    "prompt": PROMPT,
    "import": 'import (\n    "math"\n)\n',
    "test_setup": 'package main\n\nimport (\n    "testing"\n    "github.com/stretchr/testify/assert"\n)\n',
    "test": "func TestMain_(t *testing.T) {\n    assert := assert.New(t)\n    assert.Equal(1, Main(1))\n}\n",
}


def imports(source: str) -> list[str]:
    return source.partition("import (\n")[2].partition(")")[0].replace('"', "").split()


def test_imports_are_those_that_are_used() -> None:
    source = go_source(PROMPT + "    return int(math.Abs(float64(Helper(x))))\n}\n", DOC)
    assert set(imports(source)) == {"math", "testing", "reflect"}
    assert "testify" not in source
    assert source.count("func Helper(") == 1


def test_helpers_of_the_prompt_are_added_where_they_are_missing() -> None:
    source = go_source("func Main(x int) int {\n    return Helper(x)\n}\n", DOC)
    assert source.count("func Helper(") == 1
    assert source.count("func Main(") == 1
    assert "math" not in imports(source)
