"""The component base that the contract of task pools fixes: YAML in and out, registered arguments, devices."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from fusion_eval.component import Component, accepted_keywords
from fusion_eval.errors import ConfigError, Fault, did_you_mean

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from omegaconf import DictConfig

_C = TypeVar("_C", bound=type)


class BaseYAMLSerializable(Component):
    """A component that knows the arguments it was built from, and so can be written as YAML and read again.

    Keywords that no constructor of the class takes are refused, since they are misspelt ones.
    """

    _config_key: ClassVar[str | None] = None
    _arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> BaseYAMLSerializable:
        """Remember the arguments, whatever the constructor does with them."""
        self = super().__new__(cls)
        signature = inspect.signature(cls.__init__)
        try:
            bound = signature.bind_partial(self, *args, **kwargs)
        except TypeError:  # the constructor itself will say so, with its own message
            return self
        self._arguments = {}
        for name, value in list(bound.arguments.items())[1:]:
            extra = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            self._arguments.update(value if extra else {name: value})
        return self

    def __init__(self, **kwargs: Any) -> None:
        if kwargs:
            known = accepted_keywords(type(self))
            raise ConfigError(
                *(
                    Fault(
                        f"{self._config_key or type(self).__name__}.{name}",
                        f"{type(self).__name__} takes no '{name}'",
                        do=did_you_mean(name, known) or f"It takes: {', '.join(sorted(known))}.",
                    )
                    for name in kwargs
                )
            )

    @property
    def config(self) -> DictConfig:
        """The arguments and the `_target_` that build this component again."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        target = f"{type(self).__module__}.{type(self).__qualname__}"
        try:
            return OmegaConf.create({"_target_": target, **self._arguments})
        except OmegaConfBaseException as error:
            raise ConfigError(
                Fault(target, f"an argument has no YAML form ({error})", do="Build it from a config with _target_.")
            ) from error

    def to_yaml(self, path: str | Path) -> None:
        """Write the component's config."""
        from omegaconf import OmegaConf

        Path(path).write_text(OmegaConf.to_yaml(self.config), encoding="utf-8")

    @classmethod
    def from_yaml(cls, path: str | Path) -> Any:
        """Build the component that a file describes; without a `_target_`, one of this class."""
        from omegaconf import OmegaConf

        from fusion_eval.build import build

        config = OmegaConf.load(path)
        if "_target_" not in config:
            config = OmegaConf.merge({"_target_": f"{cls.__module__}.{cls.__qualname__}"}, config)
        return build(config)


def auto_register_config(cls: _C) -> _C:
    """Set every constructor argument as an attribute of the same name before the constructor's body runs."""
    original: Callable[..., None] = cls.__init__  # type: ignore[misc]
    signature = inspect.signature(original)

    @functools.wraps(original)
    def registering(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        for name, value in list(bound.arguments.items())[1:]:
            variadic = signature.parameters[name].kind in (
                inspect.Parameter.VAR_KEYWORD,
                inspect.Parameter.VAR_POSITIONAL,
            )
            if not variadic and not isinstance(getattr(type(self), name, None), property):
                setattr(self, name, value)
        original(self, *args, **kwargs)

    cls.__init__ = registering  # type: ignore[misc]
    return cls


class LightningFabricMixin:
    """Devices for a component: the program's Fabric, or one device of its own when it is used alone."""

    _fabric: Fabric | None = None
    _program: Any = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    @property
    def fabric(self) -> Fabric:
        """The Fabric that places models and gathers results."""
        if self._fabric is None and self._program is not None:
            return self._program.fabric  # type: ignore[no-any-return]
        if self._fabric is None:
            from lightning.fabric import Fabric

            self._fabric = Fabric(accelerator="auto", devices=1)
        return self._fabric

    @fabric.setter
    def fabric(self, fabric: Fabric) -> None:
        self._fabric = fabric

    def fabric_if_needed(self) -> Fabric | None:
        """The Fabric that was given, or None in a run that needs none."""
        return self._fabric
