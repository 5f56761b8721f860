"""What each format says about names, copied from its file so that a name can be looked up without importing
any: tests/formats/test_formats.py holds the two together.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import NamedTuple


class Named(NamedTuple):
    """A format's name, the folder of its family, its suffixes, an expression for whole names ("" without
    one), whether it describes files beside it (an index), and whether only a training run writes it (else it
    lies beside code and models as well).
    """

    name: str
    family: str
    suffixes: tuple[str, ...]
    names: str = ""
    describes: bool = False
    state: bool = True


TORCH_SUFFIXES = (
    *(".pt", ".pth", ".pth.tar", ".ckpt", ".pkl"),
    *("optimizer.bin", "scheduler.bin", "training_args.bin", "pytorch_model.bin", "adapter_model.bin"),
    "scaler.bin",
)
"""Names that torch.save's files have. ``.bin`` alone is used by too many other programs."""
JOBLIB_SUFFIXES = (".pkl", *(f".joblib{end}" for end in ("", ".z", ".gz", ".bz2", ".xz", ".lzma", ".lz4")))
"""Names of joblib's compressed pickles; .pkl.gz is a data set as often."""
_STATES = (
    "trainer_state|train_state|running_states|checkpoint_metadata|sampler_state|scheduler_state|"
    "dataloader_state|data_state|optimizer_state|rng_state|optimizer_param_groups|training_step"
)
_MODELS = (
    "training_info|training_metadata|config|generation_config|adapter_config|adapter_model_config|quantize_config|"
    "quantization_config|quant_config|hf_quant_config|training_args|model_index|modules|model_args|params|"
    "ds_config|deepspeed_config|model_config|optimizer_config|scheduler_config|recipe|args|hparams|hyperparameters|run_config"
)
_TOKENS = (
    "tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|preprocessor_config|processor_config|"
    "video_preprocessor_config|feature_extractor|chat_template|config_sentence_transformers|"
    "sentence_bert_config"
)
_RECORDS = (
    "metadata|common|meta|health_ckpts|all_results|train_results|eval_results|process_metadata|"
    "global_process_metadata|mesh_metadata|checkpoint"
)
_SAVES = "_CHECKPOINT_METADATA|_ROOT_METADATA|_sharding"
JSON_MEMBERS = (
    rf"(?:{_STATES}|{_MODELS}|{_TOKENS}|{_RECORDS})\.json|{_SAVES}|"
    r"_strings\.json|process_\d{1,7}|pygrain_states\.json|\.zattrs|\.zgroup|\.zmetadata"
)
"""Whole names of JSON files. Indexes of shards (*.index.json), integrity.json, Orbax's _METADATA and zarr's
array metadata are formats of their own.
"""
_SUMS = "md5|sha1|sha224|sha256|sha384|sha512|b2|b3|blake3"
CHECKSUM_NAMES = (
    rf"(?i:(?:{_SUMS}|sha|blake2b?|check)[-_]?sums?(?:\.txt)?|(?:.+)\.(?:{_SUMS})(?:sums?)?(?:\.txt)?)"
)
"""Names of files with a digest for each of several files, or with the one of the file beside them."""
MANIFESTS = "manifests"
TEXTS = "texts"
"""The family of formats that are plain text, as what else is not: only a name or a place says that it is."""
LISTS = frozenset({MANIFESTS, "seals"})
"""Families that know digests of files, and not what these are."""
"""The family of formats that only say what others held: none is a checkpoint, or a part of one."""
NAMED = (
    Named("torch_zip", "torch", TORCH_SUFFIXES),
    Named("npz", "numpy", (".npz",), state=False),
    Named("zip_archive", "archives", (".keras",)),
    Named("torch_legacy", "torch", TORCH_SUFFIXES),
    Named("torch_tar", "torch", TORCH_SUFFIXES),
    Named("nemo", "archives", (".nemo",)),
    Named("mindspore_encrypted", "mindspore", (".ckpt",)),
    Named("dcp", "dcp", (".metadata", ".distcp"), "", True),
    Named("paddle_tensors", "paddle", (".pdiparams", ".pdparams")),
    Named("paddle_dist", "paddle", (), r"\d+\.metadata", True),
    Named(
        "pickle_plain",
        "pickles",
        (".pkl", ".pdparams", ".pdopt", ".pdckpt", ".pdstates", ".pdema", ".joblib"),
        r"\d+_\d+\.distcp",
    ),
    Named("joblib", "pickles", JOBLIB_SUFFIXES),
    Named("safetensors", "safetensors", (".safetensors",)),
    Named(
        "safetensors_index",
        "safetensors",
        (".safetensors.index.json", ".bin.index.json"),
        r".+\.(?:safetensors|bin)\.index\.[\w-]+\.json",
        True,
    ),
    Named("tf_bundle", "tensorflow", (".index",), r"(.+)\.data-\d{5,}-of-\d{5,}", True),
    Named("hdf5", "hdf5", (".h5", ".hdf5")),
    Named("gguf", "exports", (".gguf",)),
    Named("saved_model", "tensorflow", (), r"saved_model\.pb", True),
    Named("tf_fingerprint", "tensorflow", (), r"fingerprint\.pb", True),
    Named("mindspore_strategy", "mindspore", (".ckpt",), r"(?:src|dst)_\w*strategy\w*\.json", state=False),
    Named("onnx", "exports", (".onnx",), r"(.+)\.onnx(?:\.data|_data(?:_\d+)?)", True),
    Named("ocdbt", "tensorstore", (), r"manifest\.(?:ocdbt|[0-9a-f]{16})", True),
    Named("zarr", "tensorstore", (), r"\.zarray|zarr\.json", True),
    Named("orbax_tree", "tensorstore", (), "_METADATA", True),
    Named("mindspore_ckpt", "mindspore", (".ckpt",)),
    Named("seal", "seals", (".ckpt-seal.json",)),
    Named("json_member", "json_files", (), JSON_MEMBERS, state=False),
    Named("npy", "numpy", (".npy",), state=False),
    Named("eqx", "numpy", (".eqx",)),
    Named("torchsnapshot", "torchsnapshot", (), r"\.snapshot_metadata", True),
    Named("mcore_integrity", "json_files", (), r"integrity\.json", True),
    Named("msgpack_stream", "msgpack", (), r"streaming_(?:params|train_state)(?:_\d{1,18})?"),
    Named("msgpack", "msgpack", (".msgpack",), r"checkpoint_\d{1,18}", True),
    Named("checksums", MANIFESTS, (), CHECKSUM_NAMES, True, state=False),
    Named("hf_cache", MANIFESTS, (), state=False),
    Named("hf_download", MANIFESTS, (), describes=True, state=False),
    Named("ollama", MANIFESTS, (), describes=True, state=False),
    Named("wandb_manifest", MANIFESTS, (), r"(?:wandb_)?manifest\.json", True, state=False),
    Named("dvc", MANIFESTS, (), r".+\.dvc", True, state=False),
    Named("model_signing", MANIFESTS, (), r"(?:.+\.)?model\.sig|.+\.sig", True, state=False),
    Named("text_member", TEXTS, (), r"CKPT\.yaml"),
)
"""In the order in which magics are tried, most specific first."""


_KEPT_ELSEWHERE = (
    r"(?i:.*\.(?:pt|pth|bin|ckpt|safetensors|pkl|h5|keras|msgpack|onnx|gguf)"
    r"|.*(?:checkpoint|ckpt|epoch|step|iter|weights).*|.*[-_]state|\d+)\.dvc"
)
_STATE = re.compile(rf"(?:{_STATES}|pygrain_states)\.json|{_SAVES}|{_KEPT_ELSEWHERE}")
"""JSON members that are written with a checkpoint only, and what stands for one that DVC keeps; the others
lie beside code and pretrained models as well.
"""


class Placed(NamedTuple):
    """An index that its place tells, whatever its name: its format, and the directory that its paths count
    from.
    """

    format: str
    base: str


_PLACED = (
    (re.compile(r"(.*)/\.cache/huggingface/download/.+\.metadata"), "hf_download"),
    (re.compile(r"(.*)/manifests/[^/]*[.][^/]*/[^/]+/[^/]+/[^/]+"), "ollama"),
)
_ADDRESSED = re.compile(
    r"(?:.*/)?(?:models|datasets|spaces)--[^/]+/(?:snapshots/[^/]+/.+|blobs/(?:[0-9a-f]{40}|[0-9a-f]{64}))"
)
_DIRECTORIES = re.compile(r"checkpoint_\d+")


class Names:
    """Formats by file names."""

    def __init__(self, named: tuple[Named, ...], more: Callable[[], tuple[Named, ...]] = lambda: ()) -> None:
        """``more`` are tried before ``named``, and asked for when the first name is looked up."""
        self._own, self._more = named, more
        self._allowed = lru_cache(1000)(self._look_up)

    def forget(self) -> None:
        """Ask for ``more`` again."""
        for made in [key for key in vars(self) if key not in ("_own", "_more", "_allowed")]:
            del vars(self)[made]
        self._allowed.cache_clear()

    @cached_property
    def named(self) -> tuple[Named, ...]:
        return (*self._more(), *self._own)

    @cached_property
    def family(self) -> dict[str, str]:
        return {row.name: row.family for row in self.named}

    @cached_property
    def order(self) -> tuple[str, ...]:
        return tuple(self.family)

    @cached_property
    def told_by_magic(self) -> tuple[str, ...]:
        return tuple(row.name for row in self.named if row.family not in (MANIFESTS, TEXTS))

    @cached_property
    def _stateless(self) -> frozenset[str]:
        return frozenset(row.name for row in self.named if not row.state)

    @cached_property
    def _suffixes(self) -> list[tuple[str, list[str]]]:
        suffixes = {
            s: [row.name for row in self.named if s in row.suffixes]
            for row in self.named
            for s in row.suffixes
        }
        return sorted(suffixes.items(), key=lambda row: -len(row[0]))

    @cached_property
    def _endings(self) -> tuple[str, ...]:
        return tuple(s.lower() for s, _ in self._suffixes)

    @cached_property
    def index_suffixes(self) -> tuple[str, ...]:
        return tuple(s for row in self.named if row.describes for s in row.suffixes)

    def allowed(self, name: str) -> tuple[str, ...]:
        """The formats whose whole names match ``name``, then those whose suffixes it ends with, the longest
        suffix first. Some file systems lose the case of names, so that of suffixes tells nothing.
        """
        return self._allowed(name)

    def _look_up(self, name: str) -> tuple[str, ...]:
        whole = [of for pattern, of in self._whole if pattern.fullmatch(name)]
        low = name.lower()
        by_suffix = (of for s, formats in self._suffixes if low.endswith(s.lower()) for of in formats)
        return tuple(dict.fromkeys([*whole, *by_suffix]))

    def known(self, name: str) -> bool:
        """Whether a name says that a file has one of the formats."""
        known = self._any.fullmatch(name) is not None
        return known or (not name.islower() and name.lower().endswith(self._endings))

    def state(self, name: str) -> bool:
        """Whether a name says that a file was written by a save: one of the formats, and not a configuration
        or a vocabulary.
        """
        known = any(of != "json_member" and self.family[of] != MANIFESTS for of in self.allowed(name))
        return known or _STATE.fullmatch(name) is not None or self._kept_elsewhere(name)

    def only_state(self, name: str) -> bool:
        """Whether a name says that only a training run writes such a file, whatever is in it."""
        formats = self.allowed(name)
        known = bool(formats) and all(map(self.holds_state, formats))
        return known or _STATE.fullmatch(name) is not None or self._kept_elsewhere(name)

    def _kept_elsewhere(self, name: str) -> bool:
        """Whether it stands for a file that DVC keeps, and that only a training run writes."""
        return name.endswith(".dvc") and self.only_state(name.removesuffix(".dvc"))

    def holds_state(self, format_name: str) -> bool:
        """Whether only a training run writes files of a format."""
        return format_name not in self._stateless

    def is_text(self, format_name: str | None) -> bool:
        """Whether files of a format are plain text that nothing tells from other text."""
        return format_name is not None and self.family.get(format_name) == TEXTS

    def is_manifest(self, name: str) -> bool:
        """Whether a file of this name only says what others held, and is a part of none of their layouts."""
        return any(self.family[of] == MANIFESTS for of in self.allowed(name))

    def of_directories(self, name: str) -> bool:
        """Whether a name of a file is as often that of a directory: ``checkpoint_5``."""
        return _DIRECTORIES.fullmatch(name) is not None

    def may_be_index(self, name: str) -> bool:
        """Whether a file of this name may describe the files beside it."""
        return self._indexes.fullmatch(name) is not None

    def may_be_renamed(self, name: str) -> bool:
        """Whether a name that no format has tells of a checkpoint all the same (``step_300.pt.1``)."""
        return self._inside.search(name) is not None

    def near_placed(self, path: str) -> bool:
        """Whether there may be such an index in the directory, or below it."""
        return "/.cache/huggingface/" in path or "/manifests/" in path

    def placed(self, path: str) -> Placed | None:
        """What a path says to be an index: metadata that Hugging Face keeps of a download, and a manifest of
        Ollama, whose last part may be anything but a name of a checkpoint file.
        """
        if not self.near_placed(path):
            return None
        found = ((pattern.fullmatch(path), of) for pattern, of in _PLACED)
        placed = next((Placed(of, match[1]) for match, of in found if match), None)
        hides = placed and placed.format == "ollama" and self.known(path.rpartition("/")[2])
        return None if hides else placed

    def addressed(self, path: str) -> bool:
        """Whether a path lies in Hugging Face's cache, where blobs are called by their digests."""
        return "s--" in path and _ADDRESSED.fullmatch(path) is not None

    @cached_property
    def _whole(self) -> list[tuple[re.Pattern[str], str]]:
        return [(re.compile(row.names), row.name) for row in self.named if row.names]

    @cached_property
    def _any(self) -> re.Pattern[str]:
        return _expression(self.named)

    @cached_property
    def _inside(self) -> re.Pattern[str]:
        endings = "|".join(map(re.escape, self._endings))
        return re.compile(rf"(?i:(?:{endings})\W|checkpoint|ckpt|epoch|step|iter|last|latest)")

    @cached_property
    def _indexes(self) -> re.Pattern[str]:
        return _expression([row for row in self.named if row.describes])


def _expression(named: list[Named] | tuple[Named, ...]) -> re.Pattern[str]:
    suffixes = sorted({s for row in named for s in row.suffixes}, key=len, reverse=True)
    return re.compile(
        "|".join([f".*(?:{'|'.join(map(re.escape, suffixes))})", *(row.names for row in named if row.names)])
    )


UNREAD = re.compile(r".*\.(ubj|xgb|lgb|cbm|bst)", re.IGNORECASE)
"""Names of formats that hold a state, and that nothing here reads: XGBoost, LightGBM, CatBoost."""
