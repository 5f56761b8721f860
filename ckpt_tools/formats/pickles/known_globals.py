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


def read_names(table: str) -> frozenset[str]:
    """The names in a table: a word that ends in a colon begins each name behind it, one with {a,b} once with
    each of both. ``#`` begins a comment.
    """
    found, beginnings = set[str](), [""]
    for word in re.sub(r"#.*", "", table).split():
        if word.endswith(":"):
            before, _, rest = word[:-1].partition("{")
            either, _, after = rest.partition("}")
            beginnings = [before + one + after for one in either.split(",")]
        else:
            found.update(beginning + word for beginning in beginnings)
    return frozenset(found)


_LIGHTNING = read_names("""
    {lightning.pytorch,pytorch_lightning,lightning.fabric,lightning_fabric}.: utilities.parsing.AttributeDict
        utilities.data.AttributeDict callbacks.model_checkpoint.ModelCheckpoint utilities.types._PATH
""")
EXACT = _LIGHTNING | read_names("""
    # Python
    builtins.: bool int float complex str bytes bytearray list tuple dict set frozenset range slice object
        Ellipsis NotImplemented NoneType
    collections.: OrderedDict Counter defaultdict deque UserDict
    datetime.: date datetime time timedelta timezone
    copyreg.: _reconstructor __newobj__ __newobj_ex__
    : _codecs.encode argparse.Namespace types.SimpleNamespace decimal.Decimal fractions.Fraction uuid.UUID
        uuid.SafeUUID signal.Signals signal.Handlers urllib.parse.ParseResult urllib.parse.SplitResult
        _io.BytesIO io.BytesIO random.Random
    pathlib.: Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath
    pathlib._local.: Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath
    typing.: Any Union Optional List Dict Tuple Set Literal
    # NumPy, joblib
    numpy.: dtype ndarray bool bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64
        longdouble complex64 complex128 str_ bytes_ datetime64 timedelta64 intc uintc longlong ulonglong int_
        uint
    : joblib.numpy_pickle.NumpyArrayWrapper ml_dtypes.bfloat16 ml_dtypes.int4 ml_dtypes.uint4
        numpy.core.numeric._frombuffer numpy._core.numeric._frombuffer
    ml_dtypes.float8_: e3m4 e4m3 e4m3b11fnuz e4m3fn e4m3fnuz e5m2 e5m2fnuz e8m0fnu
    numpy.core.multiarray.: _reconstruct scalar
    numpy._core.multiarray.: _reconstruct scalar
    numpy.random._pickle.: __randomstate_ctor __generator_ctor __bit_generator_ctor
    numpy.random.: RandomState Generator mtrand.RandomState _generator.Generator _mt19937.MT19937 _pcg64.PCG64
        _pcg64.PCG64DXSM _philox.Philox _sfc64.SFC64 bit_generator.SeedSequence
        bit_generator.__pyx_unpickle_SeedSequence
    # torch; of torch.utils.data what a loader keeps that goes on where it stopped (LitGPT)
    torch.storage.: _load_from_bytes TypedStorage UntypedStorage _LegacyStorage
    torch._C.: Generator _LinAlgBackend DisableTorchFunctionSubclass
    torch.utils.data.: dataloader.DataLoader _utils.collate.default_collate _utils.collate.default_convert
        dataset.ConcatDataset dataset.Subset dataset.TensorDataset distributed.DistributedSampler
    torch.utils.data.sampler.: BatchSampler RandomSampler SequentialSampler SubsetRandomSampler
        WeightedRandomSampler
    torch.nested._internal.nested_tensor.: NestedTensor _rebuild_njt
    torch._dynamo.eval_frame.: OptimizedModule OptimizeContext
    torch._dynamo.convert_frame.: CatchErrorsWrapper ConvertFrame ConvertFrameAssert ConvertFrameBox
    torch._dynamo.: decorators._DimRange hooks.Hooks repro.after_dynamo.WrapBackendDebug
    : torch._TorchCompileInductorWrapper torch._TorchCompileInductorWrapper.get_compiler_config
        torch.torch_version.TorchVersion contextlib.nullcontext
    torch.nn.functional.: relu gelu silu elu leaky_relu selu softplus tanh sigmoid mish hardswish softmax
        log_softmax
    torch.distributed._mesh_layout.: _MeshLayout _FlatLayout
    torch.jit._pickle.: build_intlist build_tensorlist build_doublelist build_boollist build_tensor_from_id
        restore_type_tag
    torch.amp.grad_scaler.: GradScaler OptState _refresh_per_optimizer_state
    torch.cuda.amp.grad_scaler.: GradScaler OptState _refresh_per_optimizer_state
    torch.distributed.tensor.: DTensor Shard Replicate Partial _api.DTensor device_mesh.DeviceMesh
    torch.distributed.tensor._dtensor_spec.: DTensorSpec TensorMeta ShardOrderEntry
    torch.distributed.tensor.placement_types.: Placement Shard Replicate Partial _StridedShard
    torch.distributed._tensor.placement_types.: Placement Shard Replicate Partial _StridedShard DTensorSpec
        TensorMeta
    torch.distributed._tensor.api.: DTensor
    torch.distributed.: device_mesh.DeviceMesh _tensor.DTensor remote_device._remote_device
    torch.distributed._shard.sharded_tensor.: api.ShardedTensor shard.Shard metadata.ShardedTensorMetadata
    torch.distributed._shard.sharded_tensor.metadata.: TensorProperties MEM_FORMAT_ENCODING
    torch.distributed._shard.: metadata.ShardMetadata sharding_spec.chunk_sharding_spec.ChunkShardingSpec
    torch.distributed._shard.sharding_spec.api.: EnumerableShardingSpec
    # torch.distributed.checkpoint
    torch.distributed.{checkpoint,_shard.checkpoint}.metadata.: Metadata TensorStorageMetadata
        ChunkStorageMetadata BytesStorageMetadata MetadataIndex StorageMeta TensorProperties
        _MEM_FORMAT_ENCODING
    torch.distributed.{checkpoint,_shard.checkpoint}.planner.: SavePlan LoadPlan WriteItem ReadItem
        WriteItemType LoadItemType TensorWriteData
    torch.distributed.{checkpoint,_shard.checkpoint}.: filesystem._StorageInfo hf_storage._HFStorageInfo
        storage.WriteResult
    # Megatron-LM, Transformer Engine
    megatron.core.enums.: ModelType Fp8Recipe Fp4Recipe
    megatron.core.rerun_state_machine.: RerunDiagnostic RerunMode RerunState RerunValidationStatus
    megatron.core.transformer.enums.: AttnBackend AttnMaskType AttnType LayerType ModelType CudaGraphModule
        CudaGraphScope InferenceCudaGraphScope
    megatron.: enums.PositionEmbeddingType enums.ModelType model.enums.AttnMaskType model.enums.AttnType
        model.enums.LayerType
    megatron.model.enums.: ModelType PositionEmbeddingType
    megatron.legacy.model.enums.: AttnMaskType AttnType LayerType ModelType PositionEmbeddingType
    megatron.core.optimizer.: OptimizerConfig optimizer_config.OptimizerConfig
    megatron.core.transformer.transformer_config.: TransformerConfig MLATransformerConfig
    megatron.core.: model_parallel_config.ModelParallelConfig
        distributed.distributed_data_parallel_config.DistributedDataParallelConfig
    megatron.core.dist_checkpointing.mapping.: ShardedTensor ShardedObject ShardedTensorFactory
        LocalNonpersistentObject
    megatron.core.dist_checkpointing.: core.CheckpointingConfig
        tensor_aware_state_dict.MCoreTensorAwareStateDict
    megatron.core.dist_checkpointing.state_dict_utils.: MCoreTensorAwareStateDict
    megatron.core.dist_checkpointing.strategies.torch.: MCoreMetadata MCoreSavePlan
    megatron.core.extensions.transformer_engine.: TEDelayedScaling
    transformer_engine.common.recipe.: DelayedScaling Float8CurrentScaling Float8BlockScaling
        MXFP8BlockScaling NVFP4BlockScaling Format _FormatHelper MMParams QParams
    nvidia_resiliency_ext.checkpointing.local.: basic_state_dict.BasicTensorAwareStateDict
        base_state_dict.TensorAwareStateDict
    # DeepSpeed
    deepspeed.runtime.fp16.loss_scaler.: LossScaler LossScalerBase DynamicLossScaler
    deepspeed.runtime.zero.config.: ZeroStageEnum DeepSpeedZeroConfig
    deepspeed.runtime.zero.offload_config.: OffloadDeviceEnum OffloadStateTypeEnum
        DeepSpeedZeroOffloadParamConfig DeepSpeedZeroOffloadOptimizerConfig
    deepspeed.utils.tensor_fragment.: fragment_address tensor_fragment
    # Transformers, Accelerate, TRL
    transformers.training_args.: TrainingArguments OptimizerNames ParallelMode
    : transformers.training_args_seq2seq.Seq2SeqTrainingArguments
        transformers.trainer_pt_utils.AcceleratorConfig
    transformers.trainer_utils.: IntervalStrategy SchedulerType HubStrategy EvaluationStrategy FSDPOption
        SaveStrategy ShardedDDPOption
    transformers.: debug_utils.DebugOption integrations.deepspeed.HfTrainerDeepSpeedConfig
        integrations.deepspeed.HfDeepSpeedConfig deepspeed.HfTrainerDeepSpeedConfig
        deepspeed.HfDeepSpeedConfig
    accelerate.: state.PartialState utils.deepspeed.HfDeepSpeedConfig
    accelerate.utils.dataclasses.: DistributedType DeepSpeedPlugin FullyShardedDataParallelPlugin
        GradientAccumulationPlugin DynamoBackend PrecisionType SageMakerDistributedType
    trl.trainer.: sft_config.SFTConfig dpo_config.DPOConfig dpo_config.FDivergenceType grpo_config.GRPOConfig
        kto_config.KTOConfig
    llamafactory.hparams.training_args.: TrainingArguments
    sentence_transformers.training_args.: BatchSamplers MultiDatasetBatchSamplers
    sentence_transformers.base.sampler.: BatchSamplers MultiDatasetBatchSamplers
    # MMEngine: logged values as arrays, and the statistics of them, which are named and not called
    mmengine.logging.history_buffer.: HistoryBuffer
    mmengine.logging.history_buffer.HistoryBuffer.: min max current mean
    # OmegaConf
    omegaconf.: DictConfig ListConfig dictconfig.DictConfig listconfig.ListConfig base.ContainerMetadata
        base.Metadata base.SCMode
    omegaconf.nodes.: AnyNode BooleanNode BytesNode EnumNode FloatNode IntegerNode PathNode StringNode
    # PaddlePaddle
    paddle.distributed.{flex_checkpoint.dcp,checkpoint}.metadata.: Metadata LocalTensorMetadata
        LocalTensorIndex
    : paddle.base.libpaddle.GeneratorState paddleformers.trainer.trainer_callback.TrainerState
    # Stable-Baselines3
    stable_baselines3.common.: buffers.ReplayBuffer buffers.DictReplayBuffer
        vec_env.vec_normalize.VecNormalize running_mean_std.RunningMeanStd
    gymnasium.spaces.: box.Box discrete.Discrete multi_discrete.MultiDiscrete multi_binary.MultiBinary
        dict.Dict tuple.Tuple
    # RLlib
    ray.rllib.algorithms.algorithm_config.: TorchCompileWhatToCompile
    ray.rllib.core.rl_module.: rl_module.RLModuleSpec multi_rl_module.MultiRLModuleSpec
    # optax: named tuples, all of them
    optax._src.transform.ScaleBy: AdaDeltaState AdamState AdanState AmsgradState BeliefState LBFGSState
        LionState NovogradState RStdDevState RStdDevWithCountState RmsState RmsWithCountState RpropState
        RssState SM3State ScheduleState
    optax._src.: base.EmptyState factorized.FactoredState lookahead.LookaheadState
    optax.schedules._inject.: InjectHyperparamsState InjectStatefulHyperparamsState
    optax.transforms._accumulation.: EmaState MultiStepsState TraceState
    optax.transforms._masking.: MaskedNode MaskedState
    optax.transforms.: _combining.PartitionState _conditionality.ApplyIfFiniteState
    optax.contrib._: muon.MuonState prodigy.ProdigyState schedule_free.ScheduleFreeState
    # others
    : tokenizers.AddedToken tokenizers.Tokenizer fastcore.foundation.L pycocotools.cocoeval.Params
    nanotron.random.: RandomState RandomStates
    olmo_core.distributed.checkpoint.filesystem.: _StorageInfo
""")
_ENUMERATIONS = read_names("""
    {torch.distributed.checkpoint,torch.distributed._shard.checkpoint}.: metadata._MEM_FORMAT_ENCODING
        planner.WriteItemType planner.LoadItemType
    : torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING uuid.SafeUUID omegaconf.base.SCMode
        transformers.debug_utils.DebugOption trl.trainer.dpo_config.FDivergenceType
    torch.amp.grad_scaler.: OptState
    torch.cuda.amp.grad_scaler.: OptState
    megatron.core.rerun_state_machine.: RerunDiagnostic RerunMode RerunState RerunValidationStatus
    transformer_engine.common.recipe.: Format
    deepspeed.runtime.zero.: config.ZeroStageEnum offload_config.OffloadDeviceEnum
        offload_config.OffloadStateTypeEnum
    transformers.training_args.: OptimizerNames ParallelMode
    transformers.trainer_utils.: IntervalStrategy SchedulerType HubStrategy EvaluationStrategy FSDPOption
        SaveStrategy ShardedDDPOption
    sentence_transformers.training_args.: BatchSamplers MultiDatasetBatchSamplers
    sentence_transformers.base.sampler.: BatchSamplers MultiDatasetBatchSamplers
    accelerate.utils.dataclasses.: DistributedType DynamoBackend PrecisionType SageMakerDistributedType
    ray.rllib.algorithms.algorithm_config.: TorchCompileWhatToCompile
""")
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
CALLING = read_names("""
    : torch._tensor._rebuild_from_type_v2 copyreg._reconstructor copyreg.__newobj__ copyreg.__newobj_ex__
        numpy.random._pickle.__randomstate_ctor numpy.random._pickle.__generator_ctor
        numpy.random._pickle.__bit_generator_ctor torch.utils.data.dataloader.DataLoader
        torch._dynamo.eval_frame.OptimizedModule torch._dynamo.eval_frame.OptimizeContext
        torch._dynamo.convert_frame.CatchErrorsWrapper torch._dynamo.convert_frame.ConvertFrame
        torch._dynamo.convert_frame.ConvertFrameAssert torch._dynamo.convert_frame.ConvertFrameBox
        torch._dynamo.hooks.Hooks torch._dynamo.repro.after_dynamo.WrapBackendDebug
        torch._TorchCompileInductorWrapper mmengine.logging.history_buffer.HistoryBuffer
        transformer_engine.common.recipe.DelayedScaling
        megatron.core.dist_checkpointing.mapping.ShardedTensorFactory
    # with hooks, which are called in training
    torch._utils._rebuild_: wrapper_subclass parameter_with_state parameter qtensor tensor_v2 tensor_v3
""")
"""Of these names, and of those that torch allows, the ones that call what they are given."""
ONLY_MADE = frozenset(n for n in _LIGHTNING if n.endswith(".ModelCheckpoint")) | read_names("""
    : transformers.training_args.TrainingArguments transformers.training_args_seq2seq.Seq2SeqTrainingArguments
        transformers.integrations.deepspeed.HfTrainerDeepSpeedConfig
        transformers.integrations.deepspeed.HfDeepSpeedConfig transformers.deepspeed.HfTrainerDeepSpeedConfig
        transformers.deepspeed.HfDeepSpeedConfig accelerate.utils.deepspeed.HfDeepSpeedConfig
        accelerate.state.PartialState accelerate.utils.dataclasses.DeepSpeedPlugin
        accelerate.utils.dataclasses.FullyShardedDataParallelPlugin torch.distributed.device_mesh.DeviceMesh
        llamafactory.hparams.training_args.TrainingArguments torch.utils.data.dataloader.DataLoader
        torch.distributed.tensor.device_mesh.DeviceMesh omegaconf.DictConfig omegaconf.dictconfig.DictConfig
        torch.distributed._shard.sharded_tensor.api.ShardedTensor omegaconf.ListConfig
        omegaconf.listconfig.ListConfig stable_baselines3.common.vec_env.vec_normalize.VecNormalize
        ray.rllib.core.rl_module.rl_module.RLModuleSpec
        ray.rllib.core.rl_module.multi_rl_module.MultiRLModuleSpec
""")
"""Of them the classes that picklers make without calling them: their ``__init__`` does more than keep what it
is given.
"""


def calls_arguments(full: str) -> bool:
    """Whether a name that is allowed or known calls what it is given, as a scheduler does when it is made."""
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
