"""Names that frameworks write into their checkpoints, and that do no more than build plain values, whatever
they are called with; CALLING and ONLY_MADE name those of which that is not so.

Of ``torch.save``, torch.distributed.checkpoint, Megatron-LM (megatron/core/safe_globals.py), DeepSpeed,
Transformers, Accelerate, Lightning, MMEngine, OmegaConf, PaddlePaddle,
Stable-Baselines3, RLlib, optax and numpy.
``torch.load(weights_only=True)`` refuses most of them; loaders that unpickle without asking need no question
for them.
"""

from __future__ import annotations

import re
from functools import lru_cache


def words(prefix: str, names: str) -> frozenset[str]:
    """Each of the names behind the prefix."""
    return frozenset(prefix + n for n in names.split())


_STDLIB = (
    words(
        "builtins.",
        "bool int float complex str bytes bytearray list tuple dict set frozenset range slice object",
    )
    | words("builtins.", "Ellipsis NotImplemented NoneType")
    | words("collections.", "OrderedDict Counter defaultdict deque UserDict")
    | words("datetime.", "date datetime time timedelta timezone")
    | words("copyreg.", "_reconstructor __newobj__ __newobj_ex__")
    | words(
        "",
        "_codecs.encode argparse.Namespace types.SimpleNamespace decimal.Decimal fractions.Fraction uuid.UUID"
        " uuid.SafeUUID",
    )
    | words("pathlib.", "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath")
    | words("pathlib._local.", "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath")
    | words("typing.", "Any Union Optional List Dict Tuple Set Literal")
    | words(
        "",
        "signal.Signals signal.Handlers urllib.parse.ParseResult urllib.parse.SplitResult _io.BytesIO"
        " io.BytesIO random.Random",
    )
)
_NUMPY_TYPES = (
    "dtype ndarray bool bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
    " longdouble complex64 complex128 str_ bytes_ datetime64 timedelta64 intc uintc longlong ulonglong int_"
    " uint"
)
_NUMPY = (
    words("numpy.", _NUMPY_TYPES)
    | words("", "joblib.numpy_pickle.NumpyArrayWrapper ml_dtypes.bfloat16 ml_dtypes.int4 ml_dtypes.uint4")
    | words("ml_dtypes.float8_", "e3m4 e4m3 e4m3b11fnuz e4m3fn e4m3fnuz e5m2 e5m2fnuz e8m0fnu")
    | words("numpy.core.multiarray.", "_reconstruct scalar")
    | words("numpy._core.multiarray.", "_reconstruct scalar")
    | words("", "numpy.core.numeric._frombuffer numpy._core.numeric._frombuffer")
    | words("numpy.random._pickle.", "__randomstate_ctor __generator_ctor __bit_generator_ctor")
    | words(
        "numpy.random.",
        "RandomState Generator mtrand.RandomState _generator.Generator _mt19937.MT19937 _pcg64.PCG64"
        " _pcg64.PCG64DXSM",
    )
    | words(
        "numpy.random.",
        "_philox.Philox _sfc64.SFC64 bit_generator.SeedSequence bit_generator.__pyx_unpickle_SeedSequence",
    )
)
_TORCH = (
    words("torch.storage.", "_load_from_bytes TypedStorage UntypedStorage _LegacyStorage")
    | words("torch._C.", "Generator _LinAlgBackend DisableTorchFunctionSubclass")
    | words(  # of a loader that goes on where it stopped (LitGPT's state)
        "torch.utils.data.",
        "dataloader.DataLoader _utils.collate.default_collate _utils.collate.default_convert"
        " dataset.ConcatDataset dataset.Subset dataset.TensorDataset distributed.DistributedSampler",
    )
    | words(
        "torch.utils.data.sampler.",
        "BatchSampler RandomSampler SequentialSampler SubsetRandomSampler WeightedRandomSampler",
    )
    | words("torch.nested._internal.nested_tensor.", "NestedTensor _rebuild_njt")
    | words("torch._dynamo.eval_frame.", "OptimizedModule OptimizeContext")
    | words(
        "torch._dynamo.convert_frame.", "CatchErrorsWrapper ConvertFrame ConvertFrameAssert ConvertFrameBox"
    )
    | words("torch._dynamo.", "decorators._DimRange hooks.Hooks repro.after_dynamo.WrapBackendDebug")
    | words(
        "",
        "torch._TorchCompileInductorWrapper torch._TorchCompileInductorWrapper.get_compiler_config"
        " torch.torch_version.TorchVersion contextlib.nullcontext",
    )
    | words(
        "torch.nn.functional.",
        "relu gelu silu elu leaky_relu selu softplus tanh sigmoid mish hardswish softmax log_softmax",
    )
    | words("torch.distributed._mesh_layout.", "_MeshLayout _FlatLayout")
    | words(
        "torch.jit._pickle.",
        "build_intlist build_tensorlist build_doublelist build_boollist build_tensor_from_id"
        " restore_type_tag",
    )
    | words("torch.amp.grad_scaler.", "GradScaler OptState _refresh_per_optimizer_state")
    | words("torch.cuda.amp.grad_scaler.", "GradScaler OptState _refresh_per_optimizer_state")
    | words(
        "torch.distributed.tensor.", "DTensor Shard Replicate Partial _api.DTensor device_mesh.DeviceMesh"
    )
    | words("torch.distributed.tensor._dtensor_spec.", "DTensorSpec TensorMeta ShardOrderEntry")
    | words("torch.distributed.tensor.placement_types.", "Placement Shard Replicate Partial _StridedShard")
    | words(
        "torch.distributed._tensor.placement_types.",
        "Placement Shard Replicate Partial _StridedShard DTensorSpec TensorMeta",
    )
    | words("torch.distributed._tensor.api.", "DTensor")
    | words("torch.distributed.", "device_mesh.DeviceMesh _tensor.DTensor remote_device._remote_device")
    | words(
        "torch.distributed._shard.sharded_tensor.",
        "api.ShardedTensor shard.Shard metadata.ShardedTensorMetadata",
    )
    | words("torch.distributed._shard.sharded_tensor.metadata.", "TensorProperties MEM_FORMAT_ENCODING")
    | words(
        "torch.distributed._shard.",
        "metadata.ShardMetadata sharding_spec.chunk_sharding_spec.ChunkShardingSpec",
    )
    | words("torch.distributed._shard.sharding_spec.api.", "EnumerableShardingSpec")
)
_DCP = frozenset(
    f"torch.distributed.{package}.{name}"
    for package in ("checkpoint", "_shard.checkpoint")
    for name in (
        *(
            f"metadata.{n}"
            for n in ("Metadata", "TensorStorageMetadata", "ChunkStorageMetadata", "BytesStorageMetadata")
        ),
        *(
            f"metadata.{n}"
            for n in ("MetadataIndex", "StorageMeta", "TensorProperties", "_MEM_FORMAT_ENCODING")
        ),
        *(
            f"planner.{n}"
            for n in (
                "SavePlan",
                "LoadPlan",
                "WriteItem",
                "ReadItem",
                "WriteItemType",
                "LoadItemType",
                "TensorWriteData",
            )
        ),
        *("filesystem._StorageInfo", "hf_storage._HFStorageInfo", "storage.WriteResult"),
    )
)
_MEGATRON = (
    words("megatron.core.enums.", "ModelType Fp8Recipe Fp4Recipe")
    | words(
        "megatron.core.rerun_state_machine.", "RerunDiagnostic RerunMode RerunState RerunValidationStatus"
    )
    | words("megatron.core.transformer.enums.", "AttnBackend AttnMaskType AttnType LayerType ModelType")
    | words("megatron.core.transformer.enums.", "CudaGraphModule CudaGraphScope InferenceCudaGraphScope")
    | words(
        "megatron.",
        "enums.PositionEmbeddingType enums.ModelType model.enums.AttnMaskType model.enums.AttnType"
        " model.enums.LayerType",
    )
    | words("megatron.model.enums.", "ModelType PositionEmbeddingType")
    | words("megatron.legacy.model.enums.", "AttnMaskType AttnType LayerType ModelType PositionEmbeddingType")
    | words("megatron.core.optimizer.", "OptimizerConfig optimizer_config.OptimizerConfig")
    | words("megatron.core.transformer.transformer_config.", "TransformerConfig MLATransformerConfig")
    | words(
        "megatron.core.",
        "model_parallel_config.ModelParallelConfig"
        " distributed.distributed_data_parallel_config.DistributedDataParallelConfig",
    )
    | words(
        "megatron.core.dist_checkpointing.mapping.",
        "ShardedTensor ShardedObject ShardedTensorFactory LocalNonpersistentObject",
    )
    | words(
        "megatron.core.dist_checkpointing.",
        "core.CheckpointingConfig tensor_aware_state_dict.MCoreTensorAwareStateDict",
    )
    | words("megatron.core.dist_checkpointing.state_dict_utils.", "MCoreTensorAwareStateDict")
    | words("megatron.core.dist_checkpointing.strategies.torch.", "MCoreMetadata MCoreSavePlan")
    | words("megatron.core.extensions.transformer_engine.", "TEDelayedScaling")
    | words(
        "transformer_engine.common.recipe.",
        "DelayedScaling Float8CurrentScaling Float8BlockScaling MXFP8BlockScaling NVFP4BlockScaling",
    )
    | words("transformer_engine.common.recipe.", "Format _FormatHelper MMParams QParams")
    | words(
        "nvidia_resiliency_ext.checkpointing.local.",
        "basic_state_dict.BasicTensorAwareStateDict base_state_dict.TensorAwareStateDict",
    )
)
_DEEPSPEED = (
    words("deepspeed.runtime.fp16.loss_scaler.", "LossScaler LossScalerBase DynamicLossScaler")
    | words("deepspeed.runtime.zero.config.", "ZeroStageEnum DeepSpeedZeroConfig")
    | words("deepspeed.runtime.zero.offload_config.", "OffloadDeviceEnum OffloadStateTypeEnum")
    | words(
        "deepspeed.runtime.zero.offload_config.",
        "DeepSpeedZeroOffloadParamConfig DeepSpeedZeroOffloadOptimizerConfig",
    )
    | words("deepspeed.utils.tensor_fragment.", "fragment_address tensor_fragment")
)
_TRANSFORMERS = (
    words("transformers.training_args.", "TrainingArguments OptimizerNames ParallelMode")
    | words(
        "",
        "transformers.training_args_seq2seq.Seq2SeqTrainingArguments"
        " transformers.trainer_pt_utils.AcceleratorConfig",
    )
    | words(
        "transformers.trainer_utils.",
        "IntervalStrategy SchedulerType HubStrategy EvaluationStrategy FSDPOption SaveStrategy"
        " ShardedDDPOption",
    )
    | words(
        "transformers.",
        "debug_utils.DebugOption integrations.deepspeed.HfTrainerDeepSpeedConfig"
        " integrations.deepspeed.HfDeepSpeedConfig",
    )
    | words("transformers.", "deepspeed.HfTrainerDeepSpeedConfig deepspeed.HfDeepSpeedConfig")
    | words("accelerate.", "state.PartialState utils.deepspeed.HfDeepSpeedConfig")
    | words(
        "accelerate.utils.dataclasses.",
        "DistributedType DeepSpeedPlugin FullyShardedDataParallelPlugin GradientAccumulationPlugin",
    )
    | words("accelerate.utils.dataclasses.", "DynamoBackend PrecisionType SageMakerDistributedType")
    | words(
        "trl.trainer.",
        "sft_config.SFTConfig dpo_config.DPOConfig dpo_config.FDivergenceType grpo_config.GRPOConfig"
        " kto_config.KTOConfig",
    )
    | words("llamafactory.hparams.training_args.", "TrainingArguments")
    | words("sentence_transformers.training_args.", "BatchSamplers MultiDatasetBatchSamplers")
    | words("sentence_transformers.base.sampler.", "BatchSamplers MultiDatasetBatchSamplers")
)
_LIGHTNING = frozenset(
    f"{top}.{name}"
    for top in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric")
    for name in (
        "utilities.parsing.AttributeDict",
        "utilities.data.AttributeDict",
        "callbacks.model_checkpoint.ModelCheckpoint",
        "utilities.types._PATH",
    )
)
_OMEGACONF = words(
    "omegaconf.",
    "DictConfig ListConfig dictconfig.DictConfig listconfig.ListConfig base.ContainerMetadata base.Metadata"
    " base.SCMode",
) | words(
    "omegaconf.nodes.", "AnyNode BooleanNode BytesNode EnumNode FloatNode IntegerNode PathNode StringNode"
)
_MMENGINE = words("mmengine.logging.history_buffer.", "HistoryBuffer") | words(
    "mmengine.logging.history_buffer.HistoryBuffer.", "min max current mean"
)
"""Logged values as arrays, and the statistics that are taken of them, which are named and not called."""
_PADDLE = frozenset(
    f"paddle.distributed.{package}.metadata.{name}"
    for package in ("flex_checkpoint.dcp", "checkpoint")
    for name in ("Metadata", "LocalTensorMetadata", "LocalTensorIndex")
) | {"paddle.base.libpaddle.GeneratorState", "paddleformers.trainer.trainer_callback.TrainerState"}
_BASELINES = words(
    "stable_baselines3.common.",
    "buffers.ReplayBuffer buffers.DictReplayBuffer vec_env.vec_normalize.VecNormalize"
    " running_mean_std.RunningMeanStd",
) | words(
    "gymnasium.spaces.",
    "box.Box discrete.Discrete multi_discrete.MultiDiscrete multi_binary.MultiBinary dict.Dict tuple.Tuple",
)
_RLLIB = words("ray.rllib.algorithms.algorithm_config.", "TorchCompileWhatToCompile") | words(
    "ray.rllib.core.rl_module.", "rl_module.RLModuleSpec multi_rl_module.MultiRLModuleSpec"
)
_OPTAX = (  # named tuples, all of them
    words(
        "optax._src.transform.ScaleBy",
        "AdaDeltaState AdamState AdanState AmsgradState BeliefState LBFGSState LionState NovogradState"
        " RStdDevState RStdDevWithCountState RmsState RmsWithCountState RpropState RssState SM3State"
        " ScheduleState",
    )
    | words("optax._src.", "base.EmptyState factorized.FactoredState lookahead.LookaheadState")
    | words("optax.schedules._inject.", "InjectHyperparamsState InjectStatefulHyperparamsState")
    | words("optax.transforms._accumulation.", "EmaState MultiStepsState TraceState")
    | words("optax.transforms._masking.", "MaskedNode MaskedState")
    | words("optax.transforms.", "_combining.PartitionState _conditionality.ApplyIfFiniteState")
    | words("optax.contrib._", "muon.MuonState prodigy.ProdigyState schedule_free.ScheduleFreeState")
)
EXACT: frozenset[str] = (
    _STDLIB
    | _NUMPY
    | _TORCH
    | _DCP
    | _MEGATRON
    | _DEEPSPEED
    | _TRANSFORMERS
    | _LIGHTNING
    | _MMENGINE
    | _OMEGACONF
    | _PADDLE
    | _BASELINES
    | _RLLIB
    | _OPTAX
    | words(
        "", "tokenizers.AddedToken tokenizers.Tokenizer fastcore.foundation.L pycocotools.cocoeval.Params"
    )
    | words("nanotron.random.", "RandomState RandomStates")
    | words("olmo_core.distributed.checkpoint.filesystem.", "_StorageInfo")
)
_ENUMERATIONS: frozenset[str] = (
    frozenset(
        f"{package}.metadata._MEM_FORMAT_ENCODING"
        for package in ("torch.distributed.checkpoint", "torch.distributed._shard.checkpoint")
    )
    | words(
        "",
        "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING uuid.SafeUUID"
        " omegaconf.base.SCMode",
    )
    | words("torch.distributed.checkpoint.planner.", "WriteItemType LoadItemType")
    | words("torch.distributed._shard.checkpoint.planner.", "WriteItemType LoadItemType")
    | words("torch.amp.grad_scaler.", "OptState")
    | words("torch.cuda.amp.grad_scaler.", "OptState")
    | words(
        "megatron.core.rerun_state_machine.", "RerunDiagnostic RerunMode RerunState RerunValidationStatus"
    )
    | words("transformer_engine.common.recipe.", "Format")
    | words(
        "deepspeed.runtime.zero.",
        "config.ZeroStageEnum offload_config.OffloadDeviceEnum offload_config.OffloadStateTypeEnum",
    )
    | words("transformers.training_args.", "OptimizerNames ParallelMode")
    | words(
        "transformers.trainer_utils.",
        "IntervalStrategy SchedulerType HubStrategy EvaluationStrategy FSDPOption SaveStrategy"
        " ShardedDDPOption",
    )
    | words("", "transformers.debug_utils.DebugOption trl.trainer.dpo_config.FDivergenceType")
    | words("sentence_transformers.training_args.", "BatchSamplers MultiDatasetBatchSamplers")
    | words("sentence_transformers.base.sampler.", "BatchSamplers MultiDatasetBatchSamplers")
    | words(
        "accelerate.utils.dataclasses.",
        "DistributedType DynamoBackend PrecisionType SageMakerDistributedType",
    )
    | words("ray.rllib.algorithms.algorithm_config.", "TorchCompileWhatToCompile")
)
"""Of them the enumerations: Python 3.11.0 to 3.11.3, and so Debian 12, pickles a member as ``getattr`` of the
class and its name.
"""
_ARGUMENTS = (
    # what is derived from the Trainer's arguments, which it pickles with every save
    r"trl\.(trainer|experimental\.[a-z0-9_]+)\.[a-z0-9_]+_config\.[A-Z]\w*Config"
    r"|sentence_transformers(\.[a-z_]+)?\.training_args\.[A-Z]\w*TrainingArguments"
    r"|axolotl\.core\.(training_args|trainers\.[a-z0-9_]+\.args)\.Axolotl\w*(Config|Arguments)"
    r"|swift\.(trainers|rlhf_trainers)\.arguments\.[A-Z]\w*(Config|Arguments)"
    # what RLlib keeps beside each state, to make its algorithm from: attributes, and no more
    r"|ray\.rllib\.algorithms\.([a-z0-9_]+\.[a-z0-9_]+|algorithm_config)\.[A-Z]\w*Config"
)
_PREFIXES = re.compile(
    r"numpy\.dtypes\.\w+DType"
    # a whole model: layers are built without a call, their attributes set
    r"|torch\.nn\.modules\.[a-z_]+\.[A-Z]\w*"
    r"|torch\.nn\.(parameter|backends\.thnn)\.[A-Z]\w*"
    r"|torch\.optim\.(?!swa_utils)[a-z_]+\.[A-Z]\w*"
    r"|(signal\.Signals|megatron(\.\w+)*\.enums\.[A-Z]\w*)\.(?!_)\w+"  # a member of an enumeration, by name
    r"|" + _ARGUMENTS
)
# What each name does with arguments that somebody else chose (sources of torch 2.13, NumPy 2.4, CPython and
# MMEngine were read for it; of other frameworks what their classes are for), and what follows:
#
# unpickles bytes: _load_from_bytes. What it is given is read; where it is a value itself, it is unsafe.
# gives any attribute: getattr. Followed; where it is a value itself, it is unsafe.
# holds files that frameworks unpickle: BytesIO (Transformer Engine's _extra_state). They are read.
# calls what it is given or what its state holds, at once, when it is iterated or in training: CALLING.
#     What no list has is a call there. A defaultdict's factory is looked at where it is given to one of them.
# opens files, joins process groups or calls classes in __init__: ONLY_MADE. Its call is unsafe.
# reaches an enumeration's methods by a name with an underline: removed.
# iterates, compares, converts, allocates or keeps: all others (values, tuples, enumerations, arrays, layers,
#     optimizers, samplers, spaces, metadata); no list has what these would call.
CALLING: frozenset[str] = words(
    "",
    "torch._tensor._rebuild_from_type_v2 copyreg._reconstructor copyreg.__newobj__ copyreg.__newobj_ex__"
    " numpy.random._pickle.__randomstate_ctor numpy.random._pickle.__generator_ctor"
    " numpy.random._pickle.__bit_generator_ctor torch.utils.data.dataloader.DataLoader"
    " torch._dynamo.eval_frame.OptimizedModule torch._dynamo.eval_frame.OptimizeContext"
    " torch._dynamo.convert_frame.CatchErrorsWrapper torch._dynamo.convert_frame.ConvertFrame"
    " torch._dynamo.convert_frame.ConvertFrameAssert torch._dynamo.convert_frame.ConvertFrameBox"
    " torch._dynamo.hooks.Hooks torch._dynamo.repro.after_dynamo.WrapBackendDebug"
    " torch._TorchCompileInductorWrapper mmengine.logging.history_buffer.HistoryBuffer"
    " transformer_engine.common.recipe.DelayedScaling"
    " megatron.core.dist_checkpointing.mapping.ShardedTensorFactory",
) | words(
    "torch._utils._rebuild_",  # with hooks, which are called in training
    "wrapper_subclass parameter_with_state parameter qtensor tensor_v2 tensor_v3",
)
"""Of these names, and of those that torch allows, the ones that call what they are given."""
ONLY_MADE: frozenset[str] = words(
    "",
    "transformers.training_args.TrainingArguments transformers.training_args_seq2seq.Seq2SeqTrainingArguments"
    " transformers.integrations.deepspeed.HfTrainerDeepSpeedConfig"
    " transformers.integrations.deepspeed.HfDeepSpeedConfig transformers.deepspeed.HfTrainerDeepSpeedConfig"
    " transformers.deepspeed.HfDeepSpeedConfig accelerate.utils.deepspeed.HfDeepSpeedConfig"
    " accelerate.state.PartialState accelerate.utils.dataclasses.DeepSpeedPlugin"
    " accelerate.utils.dataclasses.FullyShardedDataParallelPlugin torch.distributed.device_mesh.DeviceMesh"
    " llamafactory.hparams.training_args.TrainingArguments torch.utils.data.dataloader.DataLoader"
    " torch.distributed.tensor.device_mesh.DeviceMesh omegaconf.DictConfig omegaconf.dictconfig.DictConfig"
    " torch.distributed._shard.sharded_tensor.api.ShardedTensor omegaconf.ListConfig"
    " omegaconf.listconfig.ListConfig stable_baselines3.common.vec_env.vec_normalize.VecNormalize"
    " ray.rllib.core.rl_module.rl_module.RLModuleSpec"
    " ray.rllib.core.rl_module.multi_rl_module.MultiRLModuleSpec",
) | frozenset(n for n in _LIGHTNING if n.endswith(".ModelCheckpoint"))
"""Of them the classes that picklers make without calling them: their ``__init__`` does more than keep what it
is given.
"""


def calls_arguments(full: str) -> bool:
    """Whether a name that is allowed or known calls what it is given: a scheduler that is made calls its
    function.
    """
    return full in CALLING or full.startswith("torch.optim.lr_scheduler.")


@lru_cache(1024)
def only_made(module: str, name: str) -> bool:
    """Whether that is a class which picklers make without a call, and whose call reaches further."""
    full = f"{module[:1000]}.{name[:1000]}"
    return full in ONLY_MADE or re.fullmatch(_ARGUMENTS, full) is not None


def known(full: str) -> bool:
    """Whether a dotted name is one that frameworks write."""
    of, _, member = full.rpartition(".")
    return (
        full in EXACT
        or (of in _ENUMERATIONS and not member.startswith("_"))
        or _PREFIXES.fullmatch(full) is not None
    )
