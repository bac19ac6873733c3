"""Programs that only look at files: no model, no device, no report of scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from fusion_eval.errors import Fault


@dataclass(frozen=True, slots=True)
class Findings:
    """What a tool has to say.

    Args:
        text: for the terminal.
        data: for `findings.json`, plain.
        faults: why the command ends with status 1; shown after the text.
    """

    text: str
    data: Any = None
    faults: tuple[Fault, ...] = ()


class Tool(ABC):
    """A program that needs neither models nor torch; it is built with the run's `config` besides its own keys."""

    @abstractmethod
    def run(self) -> Findings:
        """What was found.

        Raises:
            FusionEvalError: what the user can put right.
        """
