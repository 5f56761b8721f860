"""What is said where no store answers: the cause, and what to do."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest
from fsspec.registry import _registry

from ckpt_tools import api
from ckpt_tools.errors import CannotLook


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("sftp://127.0.0.1:1/data", "nothing answers at the store's address"),
        ("nowhere://host/run", "no such kind of store is known"),
        ("http://127.0.0.1:1/model.pt", "nothing answers at the store's address"),
    ],
)
def test_the_cause_is_named(url: str, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPT_STORE_OPTION", "max_retries=0")
    with pytest.raises(CannotLook, match=cause) as error:
        api.scan(url)
    assert "docs/stores.md" in error.value.hint


@pytest.mark.parametrize(
    ("url", "package"), [("hf://org/model", "huggingface_hub"), ("s3://bucket/run", "obstore")]
)
def test_a_package_that_is_missing_is_named(url: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return imported(name, *args, **kwargs)

    imported = builtins.__import__
    for name in [n for n in sys.modules if n.partition(".")[0] == package]:  # that others have imported
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(_registry, "hf", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with pytest.raises(CannotLook, match=package):
        api.scan(url)
