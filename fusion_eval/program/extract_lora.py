"""Turn fine-tuned models into LoRA adapters of their base, and evaluate what is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from fusion_eval.errors import Fault, listed
from fusion_eval.merge.lora import adapted
from fusion_eval.merge.lora_extract import extract_lora
from fusion_eval.modelpool.base_pool import BaseModelPool
from fusion_eval.program.base_program import BaseProgram
from fusion_eval.report.values import ModelResult
from fusion_eval.taskpool.base_pool import BaseTaskPool


class ExtractLoraProgram(BaseProgram):
    """Write an adapter for each expert into a folder, and evaluate each expert beside the base with its adapter.

    Args:
        modelpool: the models, with a base.
        taskpool: the tasks.
        save: the folder; it gets one adapter folder per expert.
        rank: the largest rank.
        epsilon: singular values up to this share of the largest are left out.
        exclude: regular expressions; tensors that they find stay as in the base.
        **kwargs: see `BaseProgram`.
    """

    given_by_launch: ClassVar[tuple[str, ...]] = ("modelpool", "taskpool", "save")

    def __init__(
        self,
        modelpool: BaseModelPool,
        taskpool: BaseTaskPool,
        *,
        save: str | Path | None = None,
        rank: int = 16,
        epsilon: float = 0.0,
        exclude: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(modelpool, taskpool, **kwargs)
        self.save = None if save is None else Path(save)
        self.rank, self.epsilon, self.exclude = rank, epsilon, tuple(exclude or ())

    def faults(self) -> list[Fault]:
        """No base, no place, numbers out of range."""
        found = []
        if self.modelpool.base_name is None:
            found.append(Fault("modelpool.base", "no base model", "the model that the experts descend from"))
        if self.save is None:
            found.append(Fault("save", "unset", "a folder for the adapters", "Set save=<folder>."))
        elif taken := [name for name in self.modelpool.expert_names if (self.save / name).exists()]:
            found.append(Fault("save", f"{self.save} has {listed(taken)} already", do="Choose a new folder."))
        if self.rank < 1:
            found.append(Fault("program.rank", f"{self.rank}", "at least 1"))
        if not 0 <= self.epsilon < 1:
            found.append(Fault("program.epsilon", f"{self.epsilon}", "a number in [0, 1)"))
        return found

    def work(self) -> Iterator[ModelResult]:
        """Each expert, then the base with its adapter."""
        base_name = self.modelpool.base_name
        assert base_name is not None
        assert self.save is not None
        base = self.modelpool.checkpoint(base_name)
        self.note_input(base_name)
        for name in self.modelpool.expert_names:
            yield self.evaluate_stored(name, "expert", self.own_tasks(name))
            folder = self.save / name
            if self.devices.is_zero:
                with self.timed("extract"):
                    found = extract_lora(
                        base,
                        self.modelpool.checkpoint(name),
                        rank=self.rank,
                        epsilon=self.epsilon,
                        exclude=self.exclude,
                        base_name=base.source,
                    )
                    found.save(folder)
                kept = (
                    f"{len(found.errors)} matrices to rank {self.rank}, {100 * found.lost:.1f} % of their change lost"
                )
                self.notes.append(f"adapter of '{name}': {kept}")
            self.devices.barrier()
            model = self.modelpool.build(adapted(base, [folder]))
            yield self.evaluate_model(model, f"{name} (rank {self.rank})", "expert", self.own_tasks(name))
