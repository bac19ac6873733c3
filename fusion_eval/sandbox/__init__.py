"""Untrusted code execution: `with Sandbox(allow_code_execution=True) as box: verdicts = box.run(programs)`."""

from __future__ import annotations

from fusion_eval.sandbox.jail.codec import OpaqueError, decode, encode
from fusion_eval.sandbox.program import Limits, Program, Status, Verdict
from fusion_eval.sandbox.sandbox import Sandbox

__all__ = ["Limits", "OpaqueError", "Program", "Sandbox", "Status", "Verdict", "decode", "encode"]
