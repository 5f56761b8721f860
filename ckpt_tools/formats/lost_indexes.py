"""Indexes that can be written anew from the files that they describe."""

from __future__ import annotations

from ckpt_tools.formats.safetensors.index_of_shards import text_of, whole_sets

__all__ = ["text_of", "whole_sets"]
