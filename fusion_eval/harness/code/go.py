"""One Go source of a candidate and its test: the imports that are used, assertions that need no package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fusion_eval.harness.code.text import until_balanced

# What solutions and tests of the data set take for granted; Go refuses imports that are not used.
_TAKEN_FOR_GRANTED = (
    *("bytes", "crypto/md5", "encoding/hex", "errors", "fmt", "math", "math/big", "math/rand", "reflect", "regexp"),
    *("sort", "strconv", "strings", "testing", "time", "unicode"),
)
_IMPORTS = re.compile(r"import\s*\([^)]*\)|import\s+\"[^\"]+\"|package\s+\w+")
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ASSERTIONS = """
type assertions struct{ t *testing.T }
type assertMaker struct{}
var assert = assertMaker{}
func (assertMaker) New(t *testing.T) assertions { return assertions{t} }
func (a assertions) Equal(want, got interface{}, _ ...interface{}) bool {
	if !reflect.DeepEqual(want, got) { a.t.Fatalf("want %v, got %v", want, got) }
	return true
}
"""


def go_source(candidate: str, doc: Mapping[str, Any]) -> str:
    """The file to which the tests are appended."""
    body = _helpers(candidate, str(doc.get("prompt", ""))) + _IMPORTS.sub("", candidate)
    everything = _COMMENTS.sub("", f"{_ASSERTIONS}\n{body}\n{doc.get('test', '')}")
    statements = " ".join(_IMPORTS.findall(_COMMENTS.sub("", _heads(candidate, doc))))
    named = [path for path in re.findall(r'"([\w/.]+)"', statements) if "." not in path]
    paths = dict.fromkeys([*named, *_TAKEN_FOR_GRANTED])
    used = [path for path in paths if re.search(rf"\b{path.rpartition('/')[2]}\.", everything)]
    lines = "\n".join(f'\t"{path}"' for path in used)
    return f"package main\n\nimport (\n{lines}\n)\n{_ASSERTIONS}\n{body}"


def _heads(candidate: str, doc: Mapping[str, Any]) -> str:
    parts = [doc.get("import"), doc.get("test_setup"), candidate.partition("func ")[0]]
    return "\n".join(str(part) for part in parts if part)


def _helpers(candidate: str, prompt: str) -> str:
    """Functions that the prompt defines whole and the candidate does not repeat."""
    found = []
    for start in re.finditer(r"(?m)^func (\w+)\([^\n]*\{\n", prompt):
        text = start.group(0) + until_balanced(prompt[start.end() :], 1)
        if text.endswith("}") and f"func {start.group(1)}(" not in candidate:
            found.append(text)
    return "\n\n".join([*found, ""])
