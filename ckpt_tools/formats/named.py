"""The file names of each format, so that a name can be looked up without importing any format."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import NamedTuple


class Named(NamedTuple):
    """One format: its name, the folder of its family, its suffixes, an expression for whole names ("" for
    none), whether it describes files beside it (an index), and whether only a training run writes it (if not,
    it lies beside code and models as well).
    """

    name: str
    family: str
    suffixes: tuple[str, ...]
    names: str = ""
    describes: bool = False
    state: bool = True


TORCH_SUFFIXES = (
    *(".pt", ".pth", ".pth.tar", ".ckpt", ".pkl", ".th", ".pyth", ".torch"),
    *(".pth.lora", ".pth.adapter", ".pth.adapter_v2", ".checkpoint"),
    *("optimizer.bin", "scheduler.bin", "training_args.bin", "pytorch_model.bin", "adapter_model.bin"),
    "scaler.bin",
)
"""Suffixes of files of torch.save. ``.bin`` alone is used by too many other programs."""
JOBLIB_SUFFIXES = (".pkl", *(f".joblib{end}" for end in ("", ".z", ".gz", ".bz2", ".xz", ".lzma", ".lz4")))
"""Suffixes of joblib's compressed pickles; .pkl.gz is left out: it is a data set as often."""
PICKLE_SUFFIXES = (
    *(".pkl", ".pdparams", ".pdparam", ".pdz", ".pdopt", ".pdckpt", ".pdstates", ".states", ".pdema"),
    *(".joblib", "training_args.bin"),
)
"""Suffixes of plain pickles, most of paddle.save. Its .distcp begin with a number, torch's with "__"."""
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
_PROGRESS = "state|progress|training_progress|train_progress"
_RECORDS = (
    "metadata|common|meta|health_ckpts|all_results|train_results|eval_results|process_metadata|"
    "global_process_metadata|mesh_metadata|checkpoint"
)
_SAVES = "_CHECKPOINT_METADATA|_ROOT_METADATA|_sharding"
JSON_MEMBERS = (
    rf"(?:{_STATES}|{_MODELS}|{_TOKENS}|{_PROGRESS}|{_RECORDS})\.json|{_SAVES}|"
    r"_strings\.json|process_\d{1,7}|pygrain_states\.json|\.zattrs|\.zgroup|\.zmetadata"
)
"""Whole names of JSON files. Indexes of shards (*.index.json), integrity.json, Orbax's _METADATA and zarr's
array metadata are formats of their own.
"""
_SUMS = "md5|sha1|sha224|sha256|sha384|sha512|b2|b3|blake3"
CHECKSUM_NAMES = (
    rf"(?i:(?:{_SUMS}|sha|blake2b?|check)[-_]?sums?(?:\.txt)?|(?:.+)\.(?:{_SUMS})(?:sums?)?(?:\.txt)?|"
    rf"(?:md5|sha(?:1|224|256|384|512))\.txt|shasums(?:1|224|256|384|512)(?:\.txt)?|"
    rf"(?:.+[-_])?checksums?[-_](?:{_SUMS})(?:\.txt)?|(?:.+[-_])?(?:{_SUMS})?[-_]?checksums?(?:\.txt)?|"
    rf"(?:tag)?manifest-(?:{_SUMS})\.txt|(?:.+_)?checklist\.chk)"
)
"""Names of files with a digest for each of several files, or with the one of the file beside them: those of
coreutils, Node.js (SHASUMS256.txt), BagIt (RFC 8493: manifest-sha256.txt), Meta's Llama (checklist.chk), and
names that people choose.
"""
MANIFESTS = "manifests"
TEXTS = "texts"
"""The family of plain text formats: only the name or place of a file tells them from any other text."""
LISTS = frozenset({MANIFESTS, "seals"})
"""Families that know the digests of files, but not their formats."""
CALLED_SO = frozenset({"nemo", "joblib"})
"""Formats that begin like any tar or compressed file: only the name of a file tells them."""
NAMED = (
    Named("torch_zip", "torch", TORCH_SUFFIXES),
    Named("npz", "numpy", (".npz",), state=False),
    Named("zip_archive", "archives", (".keras",)),
    Named("torch_legacy", "torch", TORCH_SUFFIXES),
    Named("torch_tar", "torch", TORCH_SUFFIXES),
    Named("nemo", "archives", (".nemo",)),
    Named("mindspore_encrypted", "mindspore", (".ckpt",)),
    Named("dcp", "dcp", (".metadata", ".distcp"), "", True),
    Named("paddle_tensors", "paddle", (".pdiparams", ".pdparams", ".pdparam")),
    Named("paddle_dist", "paddle", (), r"\d+\.metadata", True),
    Named("pickle_plain", "pickles", PICKLE_SUFFIXES, r"\d+_\d+\.distcp"),
    Named("joblib", "pickles", JOBLIB_SUFFIXES),
    Named("safetensors", "safetensors", (".safetensors",)),
    Named(
        "safetensors_index",
        "safetensors",
        (".safetensors.index.json", ".bin.index.json"),
        r".+\.(?:safetensors|bin)\.index\.[\w-]+\.json",
        True,
    ),
    Named("keras_shards", "hdf5", (".weights.json",), "", True),
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
    Named("torchsnapshot", "dcp", (), r"\.snapshot_metadata", True),
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
ROWS = {row.name: row for row in NAMED}

_KEPT_ELSEWHERE = (
    r"(?i:.*\.(?:pt|pth|bin|ckpt|safetensors|pkl|h5|keras|msgpack|onnx|gguf)"
    r"|.*(?:checkpoint|ckpt|epoch|step|iter|weights).*|.*[-_]state|\d+)\.dvc"
)
_STATE = rf"(?:{_STATES}|pygrain_states)\.json|{_SAVES}|{_KEPT_ELSEWHERE}"
"""JSON members that are only written with a checkpoint, and the .dvc files of checkpoints; other members lie
beside code and pretrained models as well.
"""


class Placed(NamedTuple):
    """One index that its path alone tells: its format, and the directory that its paths are relative to."""

    format: str
    base: str


_PLACED = (
    (r"(.*)/\.cache/huggingface/download/.+\.metadata", "hf_download"),
    (r"(.*)/manifests/[^/]*[.][^/]*/[^/]+/[^/]+/[^/]+", "ollama"),
)
_ADDRESSED = (
    r"(?:.*/)?(?:models|datasets|spaces)--[^/]+/(?:snapshots/[^/]+/.+|blobs/(?:[0-9a-f]{40}|[0-9a-f]{64}))"
)


class Names:
    """The formats by file name."""

    def __init__(self, named: tuple[Named, ...], list_plugins: Callable[[], tuple[Named, ...]]) -> None:
        """The rows of plug-ins go before ``named``; they are listed when the first name is looked up."""
        self._own, self._list_plugins = named, list_plugins
        self.forget()

    def forget(self) -> None:
        """Clear all caches, so that plug-ins are listed again."""
        for cached in [key for key in vars(self) if key not in ("_own", "_list_plugins")]:
            del vars(self)[cached]
        self.allowed: Callable[[str], tuple[str, ...]] = lru_cache(1000)(self._look_up)
        self._find_whole = lru_cache(100)(self._match_whole)  # a name is asked about several times in a row

    @cached_property
    def named(self) -> tuple[Named, ...]:
        return (*self._list_plugins(), *self._own)

    @cached_property
    def family(self) -> dict[str, str]:
        """The family of each format, by the format's name."""
        return {row.name: row.family for row in self.named}

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The names of all formats, in the order in which magics are tried."""
        return tuple(self.family)

    @cached_property
    def told_by_magic(self) -> tuple[str, ...]:
        """The formats that the first bytes of a file tell, without its name."""
        any_text = (MANIFESTS, TEXTS)
        return tuple(r.name for r in self.named if r.family not in any_text and r.name not in CALLED_SO)

    @cached_property
    def _stateless(self) -> frozenset[str]:
        """The formats that other programs than training runs write as well."""
        return frozenset(row.name for row in self.named if not row.state)

    @cached_property
    def _suffixes(self) -> dict[str, list[str]]:
        """Lower-case suffix -> formats, the longest suffix first."""
        found: dict[str, list[str]] = {}
        for row in self.named:
            for suffix in row.suffixes:
                found.setdefault(suffix.lower(), []).append(row.name)
        return dict(sorted(found.items(), key=lambda item: -len(item[0])))

    @cached_property
    def index_suffixes(self) -> tuple[str, ...]:
        """The suffixes of all formats that describe files beside them."""
        return tuple(s for row in self.named if row.describes for s in row.suffixes)

    def _look_up(self, name: str) -> tuple[str, ...]:
        """Return the formats of the whole name, then those of its suffixes in any case, longest first."""
        low = name.lower()
        found = [row.name for row in self._find_whole(name)]
        for suffix, formats in self._suffixes.items():
            found += formats if low.endswith(suffix) else ()
        return tuple(dict.fromkeys(found))

    def known(self, name: str) -> bool:
        """Return True if files of that name may have a format of these."""
        return name.lower().endswith(tuple(self._suffixes)) or bool(self._find_whole(name))

    def state(self, name: str) -> bool:
        """Return True if a name is that of a file with state: no configuration, vocabulary or manifest."""
        has_format = any(fmt != "json_member" and self.family[fmt] != MANIFESTS for fmt in self.allowed(name))
        return has_format or re.fullmatch(_STATE, name) is not None or self._kept_elsewhere(name)

    def beside(self, name: str) -> bool:
        """Return True if a file in a checkpoint was written by its save: state or training progress."""
        return self.state(name) or re.fullmatch(rf"(?:{_PROGRESS})\.json", name) is not None

    def only_state(self, name: str) -> bool:
        """Return True if only a training run writes files of this name, whatever their content."""
        formats = self.allowed(name)
        has_format = bool(formats) and all(map(self.holds_state, formats))
        return has_format or re.fullmatch(_STATE, name) is not None or self._kept_elsewhere(name)

    def _kept_elsewhere(self, name: str) -> bool:
        """Return True for a .dvc file of a file that only a training run writes."""
        return name.endswith(".dvc") and self.only_state(name.removesuffix(".dvc"))

    def holds_state(self, format_name: str) -> bool:
        """Return True if only a training run writes files of a format."""
        return format_name not in self._stateless

    def is_text(self, format_name: str | None) -> bool:
        """Return True if files of a format are plain text, which only their names tell from other text."""
        return format_name is not None and self.family.get(format_name) == TEXTS

    def is_manifest(self, name: str) -> bool:
        """Return True if a name is that of a manifest, which is a part of no layout."""
        return any(self.family[fmt] == MANIFESTS for fmt in self.allowed(name))

    def of_directories(self, name: str) -> bool:
        """Return True for a file name that directories have as often, such as ``checkpoint_5``."""
        return re.fullmatch(r"checkpoint_\d+", name) is not None

    def may_be_index(self, name: str) -> bool:
        """Return True if a file of this name may describe the files beside it."""
        return name.endswith(self.index_suffixes) or any(row.describes for row in self._find_whole(name))

    def near_placed(self, path: str) -> bool:
        """Return True if a path may lie in or above a directory whose indexes are known by their place."""
        return "/.cache/huggingface/" in path or "/manifests/" in path

    def placed(self, path: str) -> Placed | None:
        """Return the index that a path tells: Hugging Face's metadata of a download, or a manifest of Ollama,
        whose name may be anything but that of a checkpoint file. None for all other paths.
        """
        if not self.near_placed(path):
            return None
        found = ((re.fullmatch(pattern, path), fmt) for pattern, fmt in _PLACED)
        placed = next((Placed(fmt, match[1]) for match, fmt in found if match), None)
        is_other = placed and placed.format == "ollama" and self.known(path.rpartition("/")[2])
        return None if is_other else placed

    def addressed(self, path: str) -> bool:
        """Return True for a path in Hugging Face's cache, where the name of a blob is its digest."""
        return "s--" in path and re.fullmatch(_ADDRESSED, path) is not None

    @cached_property
    def _own_whole(self) -> re.Pattern[str]:
        """One expression for the whole names of all formats but plug-ins: most names match none of them."""
        return re.compile("|".join(f"(?:{row.names})" for row in self._own if row.names))

    def _match_whole(self, name: str) -> list[Named]:
        """Return the rows of the formats whose regular expression matches the whole of a file's name."""
        count = len(self.named) - (0 if self._own_whole.fullmatch(name) else len(self._own))
        return [row for row in self.named[:count] if row.names and re.fullmatch(row.names, name)]


UNREAD = re.compile(
    r".*\.(ubj|xgb|lgb|cbm|bst|cbsnapshot|snapshot_iter_\d+|memmap|tdz|tdc|mpk(\.gz)?|solverstate|dill)",
    re.IGNORECASE,
)
"""Names of files with state in formats that nothing here reads: XGBoost, LightGBM (which names its snapshots
``model.txt.snapshot_iter_100``), CatBoost, TensorDict (a ``.memmap`` for each tensor,
archives ``.tdz``, ``.tdc``), Burn, Caffe.
"""
