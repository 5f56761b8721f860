"""Indexes that can be written anew from the files that they describe, and what may stand in for those."""

from __future__ import annotations

from ckpt_tools.formats.safetensors.index_of_shards import names_of_whole, text_of, whole_sets

__all__ = ["names_of_whole", "text_of", "whole_sets"]
