from __future__ import annotations

from typing import Any

import pytest

from fusion_eval.errors import DataError
from fusion_eval.harness.dataset import DataRequest, DataSource


def test_a_hub_that_cannot_be_reached_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from huggingface_hub import constants

    seen: list[Any] = []

    def unreachable(**given: Any) -> Any:
        seen.append((given["path"], constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE))
        if given["path"] == "org/kept":
            return {"test": [1]}
        raise ConnectionError("Couldn't reach it on the Hub")

    monkeypatch.setattr("datasets.load.load_dataset", unreachable)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    source = DataSource()
    for name in ("org/one", "org/two"):
        with pytest.raises(DataError, match="Couldn't reach it"):
            source.load(DataRequest(name))
    assert source.load(DataRequest("org/kept")) == {"test": [1]}
    assert seen == [("org/one", False, False), ("org/two", True, True), ("org/kept", True, True)]
    assert (constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE) == (False, False)
