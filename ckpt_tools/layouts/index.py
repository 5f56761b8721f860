"""What names are compared with, so that a layout is imported only where a file of its own lies.

INDEX is copied from the layouts by docs/make.py, and its --check compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import NamedTuple

from ckpt_tools.layouts.common.layout import Layout, Piece
from ckpt_tools.layouts.common.places import PieceName, PieceNames

INDEX = """
mindio_ttp mindio-ttp
  tft_saved_checkpoints-step_{step}[{tmp}]/rank_{rank}/
    tft:ttp_rank_{rank}-{epoch}_{step_in_epoch}.ckpt
  ttp_saved_checkpoints-step_{step}[{tmp}]/rank_{rank}/
    ttp:ttp_rank_{rank}-{epoch}_{step_in_epoch}.ckpt

mindformers mindformers note:latest_checkpointed_iteration.txt
  iteration_{step:08d}/
    model:model-{shard:07d}-{of:07d}.safetensors
    model_prefixed:{name}-model-{shard:07d}-{of:07d}.safetensors
    optimizer:opt-{shard:07d}-{of:07d}.safetensors
    optimizer_prefixed:{name}-opt-{shard:07d}-{of:07d}.safetensors common:common.json index:metadata.json

nemo_rl nemo-rl
  step_{step}/policy/weights/iter_0000000/
    metadata_json_mcore_policy:metadata.json index_mcore_policy:.metadata common_mcore_policy:common.pt
    data_mcore_policy:__{rank}_{shard}.distcp prefixed_mcore_policy:{name}__{rank}_{shard}.distcp
    integrity_mcore_policy:integrity.json train_state_mcore_policy:train_state.pt
    run_config_mcore_policy:run_config.yaml dataloader_mcore_policy:train_dataloader_dprank{dp:03d}.pt
  step_{step}/policy/weights/iter_0000000/{name}/
    array_mcore_policy:.zarray
  step_{step}/policy/weights/
    metadata_policy_model:.metadata rank_metadata_policy_model:__{rank}.metadata
    data_policy_model:__{rank}_{shard}.distcp prefixed_policy_model:{name}__{rank}_{shard}.distcp
  step_{step}/policy/weights/model/
    metadata_policy_model_inner:.metadata rank_metadata_policy_model_inner:__{rank}.metadata
    data_policy_model_inner:__{rank}_{shard}.distcp
    prefixed_policy_model_inner:{name}__{rank}_{shard}.distcp
  step_{step}/policy/optimizer/
    metadata_policy_optimizer:.metadata rank_metadata_policy_optimizer:__{rank}.metadata
    data_policy_optimizer:__{rank}_{shard}.distcp prefixed_policy_optimizer:{name}__{rank}_{shard}.distcp
  step_{step}/policy/optimizer/optim/
    metadata_policy_optimizer_inner:.metadata rank_metadata_policy_optimizer_inner:__{rank}.metadata
    data_policy_optimizer_inner:__{rank}_{shard}.distcp
    prefixed_policy_optimizer_inner:{name}__{rank}_{shard}.distcp
  step_{step}/policy/weights/model/
    safetensors_policy:{name}.safetensors
  step_{step}/value/weights/iter_0000000/
    metadata_json_mcore_value:metadata.json index_mcore_value:.metadata common_mcore_value:common.pt
    data_mcore_value:__{rank}_{shard}.distcp prefixed_mcore_value:{name}__{rank}_{shard}.distcp
    integrity_mcore_value:integrity.json train_state_mcore_value:train_state.pt
    run_config_mcore_value:run_config.yaml dataloader_mcore_value:train_dataloader_dprank{dp:03d}.pt
  step_{step}/value/weights/iter_0000000/{name}/
    array_mcore_value:.zarray
  step_{step}/value/weights/
    metadata_value_model:.metadata rank_metadata_value_model:__{rank}.metadata
    data_value_model:__{rank}_{shard}.distcp prefixed_value_model:{name}__{rank}_{shard}.distcp
  step_{step}/value/weights/model/
    metadata_value_model_inner:.metadata rank_metadata_value_model_inner:__{rank}.metadata
    data_value_model_inner:__{rank}_{shard}.distcp
    prefixed_value_model_inner:{name}__{rank}_{shard}.distcp
  step_{step}/value/optimizer/
    metadata_value_optimizer:.metadata rank_metadata_value_optimizer:__{rank}.metadata
    data_value_optimizer:__{rank}_{shard}.distcp prefixed_value_optimizer:{name}__{rank}_{shard}.distcp
  step_{step}/value/optimizer/optim/
    metadata_value_optimizer_inner:.metadata rank_metadata_value_optimizer_inner:__{rank}.metadata
    data_value_optimizer_inner:__{rank}_{shard}.distcp
    prefixed_value_optimizer_inner:{name}__{rank}_{shard}.distcp
  step_{step}/value/weights/model/
    safetensors_value:{name}.safetensors
  step_{step}/
    info:training_info.json data:train_dataloader.pt config:config.yaml
  tmp_step_{step}/policy/weights/iter_0000000/
    metadata_json_mcore_policy_tmp:metadata.json index_mcore_policy_tmp:.metadata
    common_mcore_policy_tmp:common.pt data_mcore_policy_tmp:__{rank}_{shard}.distcp
    prefixed_mcore_policy_tmp:{name}__{rank}_{shard}.distcp integrity_mcore_policy_tmp:integrity.json
    train_state_mcore_policy_tmp:train_state.pt run_config_mcore_policy_tmp:run_config.yaml
    dataloader_mcore_policy_tmp:train_dataloader_dprank{dp:03d}.pt
  tmp_step_{step}/policy/weights/iter_0000000/{name}/
    array_mcore_policy_tmp:.zarray
  tmp_step_{step}/policy/weights/
    metadata_policy_model_tmp:.metadata rank_metadata_policy_model_tmp:__{rank}.metadata
    data_policy_model_tmp:__{rank}_{shard}.distcp prefixed_policy_model_tmp:{name}__{rank}_{shard}.distcp
  tmp_step_{step}/policy/weights/model/
    metadata_policy_model_inner_tmp:.metadata rank_metadata_policy_model_inner_tmp:__{rank}.metadata
    data_policy_model_inner_tmp:__{rank}_{shard}.distcp
    prefixed_policy_model_inner_tmp:{name}__{rank}_{shard}.distcp
  tmp_step_{step}/policy/optimizer/
    metadata_policy_optimizer_tmp:.metadata rank_metadata_policy_optimizer_tmp:__{rank}.metadata
    data_policy_optimizer_tmp:__{rank}_{shard}.distcp
    prefixed_policy_optimizer_tmp:{name}__{rank}_{shard}.distcp
  tmp_step_{step}/policy/optimizer/optim/
    metadata_policy_optimizer_inner_tmp:.metadata
    rank_metadata_policy_optimizer_inner_tmp:__{rank}.metadata
    data_policy_optimizer_inner_tmp:__{rank}_{shard}.distcp
    prefixed_policy_optimizer_inner_tmp:{name}__{rank}_{shard}.distcp
  tmp_step_{step}/policy/weights/model/
    safetensors_policy_tmp:{name}.safetensors
  tmp_step_{step}/value/weights/iter_0000000/
    metadata_json_mcore_value_tmp:metadata.json index_mcore_value_tmp:.metadata
    common_mcore_value_tmp:common.pt data_mcore_value_tmp:__{rank}_{shard}.distcp
    prefixed_mcore_value_tmp:{name}__{rank}_{shard}.distcp integrity_mcore_value_tmp:integrity.json
    train_state_mcore_value_tmp:train_state.pt run_config_mcore_value_tmp:run_config.yaml
    dataloader_mcore_value_tmp:train_dataloader_dprank{dp:03d}.pt
  tmp_step_{step}/value/weights/iter_0000000/{name}/
    array_mcore_value_tmp:.zarray
  tmp_step_{step}/value/weights/
    metadata_value_model_tmp:.metadata rank_metadata_value_model_tmp:__{rank}.metadata
    data_value_model_tmp:__{rank}_{shard}.distcp prefixed_value_model_tmp:{name}__{rank}_{shard}.distcp
  tmp_step_{step}/value/weights/model/
    metadata_value_model_inner_tmp:.metadata rank_metadata_value_model_inner_tmp:__{rank}.metadata
    data_value_model_inner_tmp:__{rank}_{shard}.distcp
    prefixed_value_model_inner_tmp:{name}__{rank}_{shard}.distcp
  tmp_step_{step}/value/optimizer/
    metadata_value_optimizer_tmp:.metadata rank_metadata_value_optimizer_tmp:__{rank}.metadata
    data_value_optimizer_tmp:__{rank}_{shard}.distcp
    prefixed_value_optimizer_tmp:{name}__{rank}_{shard}.distcp
  tmp_step_{step}/value/optimizer/optim/
    metadata_value_optimizer_inner_tmp:.metadata rank_metadata_value_optimizer_inner_tmp:__{rank}.metadata
    data_value_optimizer_inner_tmp:__{rank}_{shard}.distcp
    prefixed_value_optimizer_inner_tmp:{name}__{rank}_{shard}.distcp
  tmp_step_{step}/value/weights/model/
    safetensors_value_tmp:{name}.safetensors
  tmp_step_{step}/
    info_tmp:training_info.json data_tmp:train_dataloader.pt config_tmp:config.yaml

nemo nemo
  [{name}-][epoch={epoch}-]step={step}[-{name}]/weights/
    metadata_json:metadata.json index:.metadata common:common.pt data:__{rank}_{shard}.distcp
    prefixed:{name}__{rank}_{shard}.distcp integrity:integrity.json train_state:train_state.pt
    run_config:run_config.yaml dataloader:train_dataloader_dprank{dp:03d}.pt
  [{name}-][epoch={epoch}-]step={step}[-{name}]/weights/{name}/
    array:.zarray
  [{name}-][epoch={epoch}-]step={step}[-{name}]/context/
    context:io.json config:model.yaml
  .
    unfinished:[{name}-][epoch={epoch}-]step={step}[-{name}]-unfinished

openrlhf openrlhf note:latest note:latest
  _actor/global_step{step}/
    model_actor:mp_rank_{tp:02d}_model_states.pt
    zero3_actor:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim_actor:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer_actor:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert_actor:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim_actor:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt
  _actor/best_global_step{step}/
    model_actor_best:mp_rank_{tp:02d}_model_states.pt
    zero3_actor_best:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim_actor_best:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer_actor_best:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert_actor_best:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim_actor_best:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt
  _critic/global_step{step}/
    model_critic:mp_rank_{tp:02d}_model_states.pt
    zero3_critic:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim_critic:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer_critic:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert_critic:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim_critic:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt
  _critic/best_global_step{step}/
    model_critic_best:mp_rank_{tp:02d}_model_states.pt
    zero3_critic_best:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim_critic_best:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer_critic_best:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert_critic_best:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim_critic_best:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt

ms_swift ms-swift
  checkpoint-{step}/iter_{step:07d}/
    metadata_json:metadata.json index:.metadata common:common.pt data:__{rank}_{shard}.distcp
    prefixed:{name}__{rank}_{shard}.distcp integrity:integrity.json train_state:train_state.pt
    run_config:run_config.yaml dataloader:train_dataloader_dprank{dp:03d}.pt
  checkpoint-{step}/iter_{step:07d}/{name}/
    array:.zarray
  checkpoint-{step}/
    tracker:latest_checkpointed_iteration.txt model:<model|adapter_model>.safetensors
    shard:model-{shard:05d}-of-{of:05d}.safetensors model_index:model.safetensors.index.json
  checkpoint-{step}-merged/iter_{step:07d}/
    merged:common.pt
  checkpoint-{step}-merged/
    tracker_merged:latest_checkpointed_iteration.txt model_merged:<model|adapter_model>.safetensors
    shard_merged:model-{shard:05d}-of-{of:05d}.safetensors model_index_merged:model.safetensors.index.json

megatron megatron note:latest_checkpointed_iteration.txt
  iter_{step:07d}/mp_rank_{tp:02d}[_{pp:03d}][_{ep:03d}]/
    model:model_optim_rng.pt distrib_optim:distrib_optim.pt model_rng:model_rng.pt
  iter_{step:07d}/mp_rank_{tp:02d}[_{pp:03d}]_{dp:03d}/
    optim:optim.pt
  iter_{step:07d}/mp_rank_{tp:02d}[_{pp:03d}][_{ep:03d}]/
    layer_wise:layer_wise_optimizer_{dp}.pt model_rank:model_optim_rng_{rank}.pt
    distrib_optim_rank:distrib_optim_{rank}.pt model_ckpt:model_optim_rng.ckpt
    optim_ckpt:distrib_optim.ckpt
  iter_{step:07d}_tmp/mp_rank_{tp:02d}[_{pp:03d}][_{ep:03d}]/
    model_gasp:model_optim_rng.pt distrib_optim_gasp:distrib_optim.pt model_rng_gasp:model_rng.pt
  iter_{step:07d}_tmp/mp_rank_{tp:02d}[_{pp:03d}]_{dp:03d}/
    optim_gasp:optim.pt
  iter_{step:07d}_tmp/mp_rank_{tp:02d}[_{pp:03d}][_{ep:03d}]/
    layer_wise_gasp:layer_wise_optimizer_{dp}.pt model_rank_gasp:model_optim_rng_{rank}.pt
    distrib_optim_rank_gasp:distrib_optim_{rank}.pt model_ckpt_gasp:model_optim_rng.ckpt
    optim_ckpt_gasp:distrib_optim.ckpt
  release/mp_rank_{tp:02d}[_{pp:03d}][_{ep:03d}]/
    model_release:model_optim_rng.pt distrib_optim_release:distrib_optim.pt model_rng_release:model_rng.pt
  release/mp_rank_{tp:02d}[_{pp:03d}]_{dp:03d}/
    optim_release:optim.pt
  release/mp_rank_{tp:02d}[_{pp:03d}][_{ep:03d}]/
    layer_wise_release:layer_wise_optimizer_{dp}.pt model_rank_release:model_optim_rng_{rank}.pt
    distrib_optim_rank_release:distrib_optim_{rank}.pt model_ckpt_release:model_optim_rng.ckpt
    optim_ckpt_release:distrib_optim.ckpt

megatron_core megatron-core note:latest_checkpointed_iteration.txt
  iter_{step:07d}/
    metadata_json:metadata.json index:.metadata common:common.pt data:__{rank}_{shard}.distcp
    prefixed:{name}__{rank}_{shard}.distcp integrity:integrity.json train_state:train_state.pt
    run_config:run_config.yaml dataloader:train_dataloader_dprank{dp:03d}.pt
  iter_{step:07d}/{name}/
    array:.zarray
  release/
    metadata_json_release:metadata.json index_release:.metadata common_release:common.pt
    data_release:__{rank}_{shard}.distcp prefixed_release:{name}__{rank}_{shard}.distcp
    integrity_release:integrity.json train_state_release:train_state.pt run_config_release:run_config.yaml
    dataloader_release:train_dataloader_dprank{dp:03d}.pt
  release/{name}/
    array_release:.zarray

skyrl skyrl note:latest_ckpt_global_step.txt
  global_step_{step}/policy/
    model:model_world_size_{world}_rank_{rank}.pt optim:optim_world_size_{world}_rank_{rank}.pt
    extra_state:extra_state_world_size_{world}_rank_{rank}.pt config:fsdp_config.json
    metadata_core:.metadata rank_metadata_core:__{rank}.metadata data_core:__{rank}_{shard}.distcp
    prefixed_core:{name}__{rank}_{shard}.distcp core_core:metadata.json common_core:common.pt
  global_step_{step}/critic/
    critic_model:model_world_size_{world}_rank_{rank}.pt
    critic_optim:optim_world_size_{world}_rank_{rank}.pt
    critic_extra_state:extra_state_world_size_{world}_rank_{rank}.pt critic_config:fsdp_config.json
    metadata_critic_core:.metadata rank_metadata_critic_core:__{rank}.metadata
    data_critic_core:__{rank}_{shard}.distcp prefixed_critic_core:{name}__{rank}_{shard}.distcp
    core_critic_core:metadata.json common_critic_core:common.pt
  global_step_{step}/
    data:data.pt trainer:trainer_state.pt async:fully_async_state.pt

verl verl note:latest_checkpointed_iteration.txt
  global_step_{step}/actor/
    model:model_world_size_{world}_rank_{rank}.pt optim:optim_world_size_{world}_rank_{rank}.pt
    extra_state:extra_state_world_size_{world}_rank_{rank}.pt config:fsdp_config.json
  global_step_{step}/critic/
    critic_model:model_world_size_{world}_rank_{rank}.pt
    critic_optim:optim_world_size_{world}_rank_{rank}.pt
    critic_extra_state:extra_state_world_size_{world}_rank_{rank}.pt critic_config:fsdp_config.json
  global_step_{step}/
    model_alone:model_world_size_{world}_rank_{rank}.pt
    optim_alone:optim_world_size_{world}_rank_{rank}.pt
    extra_state_alone:extra_state_world_size_{world}_rank_{rank}.pt config_alone:fsdp_config.json
  global_step_{step}/actor/model/dist_ckpt/
    metadata_dist_model:.metadata rank_metadata_dist_model:__{rank}.metadata
    data_dist_model:__{rank}_{shard}.distcp prefixed_dist_model:{name}__{rank}_{shard}.distcp
    core_dist_model:metadata.json common_dist_model:common.pt
  global_step_{step}/actor/optimizer/dist_ckpt/
    metadata_dist_optimizer:.metadata rank_metadata_dist_optimizer:__{rank}.metadata
    data_dist_optimizer:__{rank}_{shard}.distcp prefixed_dist_optimizer:{name}__{rank}_{shard}.distcp
    core_dist_optimizer:metadata.json common_dist_optimizer:common.pt
  global_step_{step}/actor/extra/dist_ckpt/
    metadata_dist_extra:.metadata rank_metadata_dist_extra:__{rank}.metadata
    data_dist_extra:__{rank}_{shard}.distcp prefixed_dist_extra:{name}__{rank}_{shard}.distcp
    core_dist_extra:metadata.json common_dist_extra:common.pt
  global_step_{step}/actor/dist_ckpt/
    metadata_dist_:.metadata rank_metadata_dist_:__{rank}.metadata data_dist_:__{rank}_{shard}.distcp
    prefixed_dist_:{name}__{rank}_{shard}.distcp core_dist_:metadata.json common_dist_:common.pt
  global_step_{step}/actor/model/huggingface/
    hf_model:model.safetensors hf_model_shard:model-{shard:05d}-of-{of:05d}.safetensors
    hf_model_index:model.safetensors.index.json hf_adapter:adapter_model.safetensors
    hf_adapter_shard:adapter_model-{shard:05d}-of-{of:05d}.safetensors
    hf_adapter_index:adapter_model.safetensors.index.json hf_bin:pytorch_model.bin
    hf_bin_shard:pytorch_model-{shard:05d}-of-{of:05d}.bin hf_bin_index:pytorch_model.bin.index.json
    hf_adapter_bin:adapter_model.bin hf_adapter_bin_shard:adapter_model-{shard:05d}-of-{of:05d}.bin
    hf_adapter_bin_index:adapter_model.bin.index.json
  global_step_{step}/critic/model/dist_ckpt/
    metadata_dist_critic_model:.metadata rank_metadata_dist_critic_model:__{rank}.metadata
    data_dist_critic_model:__{rank}_{shard}.distcp
    prefixed_dist_critic_model:{name}__{rank}_{shard}.distcp core_dist_critic_model:metadata.json
    common_dist_critic_model:common.pt
  global_step_{step}/critic/optimizer/dist_ckpt/
    metadata_dist_critic_optimizer:.metadata rank_metadata_dist_critic_optimizer:__{rank}.metadata
    data_dist_critic_optimizer:__{rank}_{shard}.distcp
    prefixed_dist_critic_optimizer:{name}__{rank}_{shard}.distcp core_dist_critic_optimizer:metadata.json
    common_dist_critic_optimizer:common.pt
  global_step_{step}/critic/extra/dist_ckpt/
    metadata_dist_critic_extra:.metadata rank_metadata_dist_critic_extra:__{rank}.metadata
    data_dist_critic_extra:__{rank}_{shard}.distcp
    prefixed_dist_critic_extra:{name}__{rank}_{shard}.distcp core_dist_critic_extra:metadata.json
    common_dist_critic_extra:common.pt
  global_step_{step}/critic/dist_ckpt/
    metadata_dist_critic_:.metadata rank_metadata_dist_critic_:__{rank}.metadata
    data_dist_critic_:__{rank}_{shard}.distcp prefixed_dist_critic_:{name}__{rank}_{shard}.distcp
    core_dist_critic_:metadata.json common_dist_critic_:common.pt
  global_step_{step}/critic/model/huggingface/
    hf_critic_model:model.safetensors hf_critic_model_shard:model-{shard:05d}-of-{of:05d}.safetensors
    hf_critic_model_index:model.safetensors.index.json hf_critic_adapter:adapter_model.safetensors
    hf_critic_adapter_shard:adapter_model-{shard:05d}-of-{of:05d}.safetensors
    hf_critic_adapter_index:adapter_model.safetensors.index.json hf_critic_bin:pytorch_model.bin
    hf_critic_bin_shard:pytorch_model-{shard:05d}-of-{of:05d}.bin
    hf_critic_bin_index:pytorch_model.bin.index.json hf_critic_adapter_bin:adapter_model.bin
    hf_critic_adapter_bin_shard:adapter_model-{shard:05d}-of-{of:05d}.bin
    hf_critic_adapter_bin_index:adapter_model.bin.index.json
  global_step_{step}/model/dist_ckpt/
    metadata_dist_model_alone:.metadata rank_metadata_dist_model_alone:__{rank}.metadata
    data_dist_model_alone:__{rank}_{shard}.distcp prefixed_dist_model_alone:{name}__{rank}_{shard}.distcp
    core_dist_model_alone:metadata.json common_dist_model_alone:common.pt
  global_step_{step}/optimizer/dist_ckpt/
    metadata_dist_optimizer_alone:.metadata rank_metadata_dist_optimizer_alone:__{rank}.metadata
    data_dist_optimizer_alone:__{rank}_{shard}.distcp
    prefixed_dist_optimizer_alone:{name}__{rank}_{shard}.distcp core_dist_optimizer_alone:metadata.json
    common_dist_optimizer_alone:common.pt
  global_step_{step}/extra/dist_ckpt/
    metadata_dist_extra_alone:.metadata rank_metadata_dist_extra_alone:__{rank}.metadata
    data_dist_extra_alone:__{rank}_{shard}.distcp prefixed_dist_extra_alone:{name}__{rank}_{shard}.distcp
    core_dist_extra_alone:metadata.json common_dist_extra_alone:common.pt
  global_step_{step}/dist_ckpt/
    metadata_dist__alone:.metadata rank_metadata_dist__alone:__{rank}.metadata
    data_dist__alone:__{rank}_{shard}.distcp prefixed_dist__alone:{name}__{rank}_{shard}.distcp
    core_dist__alone:metadata.json common_dist__alone:common.pt
  global_step_{step}/model/huggingface/
    hf_model_alone:model.safetensors hf_model_shard_alone:model-{shard:05d}-of-{of:05d}.safetensors
    hf_model_index_alone:model.safetensors.index.json hf_adapter_alone:adapter_model.safetensors
    hf_adapter_shard_alone:adapter_model-{shard:05d}-of-{of:05d}.safetensors
    hf_adapter_index_alone:adapter_model.safetensors.index.json hf_bin_alone:pytorch_model.bin
    hf_bin_shard_alone:pytorch_model-{shard:05d}-of-{of:05d}.bin
    hf_bin_index_alone:pytorch_model.bin.index.json hf_adapter_bin_alone:adapter_model.bin
    hf_adapter_bin_shard_alone:adapter_model-{shard:05d}-of-{of:05d}.bin
    hf_adapter_bin_index_alone:adapter_model.bin.index.json
  global_step_{step}/
    data:data.pt data_rank:data_{dp}.pt

colossalai colossalai
  epoch-{epoch}_step-{step_in_epoch}/modeling/
    model_bin:pytorch_model[-stage-{layer:05d}-shard]-{shard:05d}[-of-{of:05d}].bin
    model_bin_index:pytorch_model.bin.index.json
    model_safetensors:model[-stage-{layer:05d}-shard]-{shard:05d}[-of-{of:05d}].safetensors
    model_safetensors_index:model.safetensors.index.json
  epoch-{epoch}_step-{step_in_epoch}/optimizer/
    optimizer_bin:pytorch_optim[-stage-{layer:05d}-shard]-{shard:05d}[-of-{of:05d}].bin
    optimizer_bin_index:pytorch_optim.bin.index.json
    optimizer_safetensors:optimizer[-stage-{layer:05d}-shard]-{shard:05d}[-of-{of:05d}].safetensors
    optimizer_safetensors_index:optimizer.safetensors.index.json groups:pytorch_optim_group.bin
  epoch-{epoch}_step-{step_in_epoch}/modeling/
    adapter:adapter_model.safetensors adapter_bin:adapter_model.bin
    config:<config|generation_config|adapter_config>.json
  epoch-{epoch}_step-{step_in_epoch}/
    scheduler:lr_scheduler state:running_states.json
  epoch{epoch}-global_step{step}/model/
    model_bin_sora:pytorch_model[-stage-{layer:05d}-shard]-{shard:05d}[-of-{of:05d}].bin
    model_bin_index_sora:pytorch_model.bin.index.json
    model_safetensors_sora:model[-stage-{layer:05d}-shard]-{shard:05d}[-of-{of:05d}].safetensors
    model_safetensors_index_sora:model.safetensors.index.json
  epoch{epoch}-global_step{step}/optimizer/
    optimizer_bin_sora:pytorch_optim[-stage-{layer:05d}-shard]-{shard:05d}[-of-{of:05d}].bin
    optimizer_bin_index_sora:pytorch_optim.bin.index.json
    optimizer_safetensors_sora:optimizer[-stage-{layer:05d}-shard]-{shard:05d}[-of-{of:05d}].safetensors
    optimizer_safetensors_index_sora:optimizer.safetensors.index.json groups_sora:pytorch_optim_group.bin
  epoch{epoch}-global_step{step}/model/
    adapter_sora:adapter_model.safetensors adapter_bin_sora:adapter_model.bin
    config_sora:<config|generation_config|adapter_config>.json
  epoch{epoch}-global_step{step}/
    scheduler_sora:lr_scheduler state_sora:running_states.json
  epoch{epoch}-step{step_in_epoch}/model/
    model_bin_example:pytorch_model[-stage-{layer:05d}-shard]-{shard:05d}[-of-{of:05d}].bin
    model_bin_index_example:pytorch_model.bin.index.json
    model_safetensors_example:model[-stage-{layer:05d}-shard]-{shard:05d}[-of-{of:05d}].safetensors
    model_safetensors_index_example:model.safetensors.index.json
  epoch{epoch}-step{step_in_epoch}/optimizer/
    optimizer_bin_example:pytorch_optim[-stage-{layer:05d}-shard]-{shard:05d}[-of-{of:05d}].bin
    optimizer_bin_index_example:pytorch_optim.bin.index.json
    optimizer_safetensors_example:optimizer[-stage-{layer:05d}-shard]-{shard:05d}[-of-{of:05d}].safetensors
    optimizer_safetensors_index_example:optimizer.safetensors.index.json
    groups_example:pytorch_optim_group.bin
  epoch{epoch}-step{step_in_epoch}/model/
    adapter_example:adapter_model.safetensors adapter_bin_example:adapter_model.bin
    config_example:<config|generation_config|adapter_config>.json
  epoch{epoch}-step{step_in_epoch}/
    scheduler_example:lr_scheduler state_example:running_states.json
  epoch{epoch}-global_step{step}/
    ema_sora:ema.pt
  epoch{epoch}-step{step_in_epoch}/
    ema_example:ema.pt
  epoch{epoch}-global_step{step}/
    sampler_sora:sampler ema_arrays_sora:ema.safetensors master_arrays_sora:master.safetensors

nanotron nanotron note:latest.txt
  {step}/model/
    model0:model_{name}.safetensors
  {step}/model/{name}/
    model1:model_{name}.safetensors
  {step}/model/{name}/{name}/
    model2:model_{name}.safetensors
  {step}/model/{name}/{name}/{name}/
    model3:model_{name}.safetensors
  {step}/model/{name}/{name}/{name}/{name}/
    model4:model_{name}.safetensors
  {step}/model/{name}/{name}/{name}/{name}/{name}/
    model5:model_{name}.safetensors
  {step}/model/{name}/{name}/{name}/{name}/{name}/{name}/
    model6:model_{name}.safetensors
  {step}/model/{name}/{name}/{name}/{name}/{name}/{name}/{name}/
    model7:model_{name}.safetensors
  {step}/model/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/
    model8:model_{name}.safetensors
  {step}/model/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/
    model9:model_{name}.safetensors
  {step}/model/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/
    model10:model_{name}.safetensors
  {step}/optimizer/
    optimizer:optimizer_{name}.pt
  {step}/lr_scheduler/
    lr_scheduler:lr_scheduler_{name}.pt
  {step}/random/
    random:tp-{name}.pt
  {step}/
    metadata:checkpoint_metadata.json
  {step}/optimizer/
    optimizer_config:optimizer_config.json
  {step}/
    model_config:model_config.json config:config.yaml

lerobot lerobot
  {step:06d}/pretrained_model/
    model:model.safetensors adapter:adapter_model.safetensors config:train_config.json
    policy:<config|adapter_config>.json processor:policy_<preprocessor|postprocessor>.json
    statistics:policy_<preprocessor|postprocessor>_step_{layer}_{name}.safetensors
  {step:06d}/training_state/
    progress:training_step.json rng:rng_state.safetensors optimizer:optimizer_state.safetensors
    groups:optimizer_param_groups.json
  {step:06d}/training_state/{name}/
    optimizer_each:optimizer_state.safetensors groups_each:optimizer_param_groups.json
  {step:06d}/training_state/
    scheduler:scheduler_state.json

olmo_core olmo-core
  step{step}/model_and_optim/
    metadata:.metadata rank_metadata:__{rank}.metadata data:__{rank}_{shard}.distcp
    prefixed:{name}__{rank}_{shard}.distcp
  step{step}/train/
    trainer:rank{rank}.pt
  step{step}/
    done:.metadata.json config:config.json
  step{step}-tmp/model_and_optim/
    metadata_tmp:.metadata rank_metadata_tmp:__{rank}.metadata data_tmp:__{rank}_{shard}.distcp
    prefixed_tmp:{name}__{rank}_{shard}.distcp
  step{step}-tmp/train/
    trainer_tmp:rank{rank}.pt
  step{step}-tmp/
    done_tmp:.metadata.json config_tmp:config.json
  {name}/model_and_optim/
    metadata_any:.metadata rank_metadata_any:__{rank}.metadata data_any:__{rank}_{shard}.distcp
    prefixed_any:{name}__{rank}_{shard}.distcp
  {name}/train/
    trainer_any:rank{rank}.pt
  {name}/
    done_any:.metadata.json

cosmos cosmos note:latest_checkpoint.txt
  iter_{step:09d}/model/
    metadata_model:.metadata rank_metadata_model:__{rank}.metadata data_model:__{rank}_{shard}.distcp
    prefixed_model:{name}__{rank}_{shard}.distcp
  iter_{step:09d}/optim[_{name}]/
    metadata_optim:.metadata rank_metadata_optim:__{rank}.metadata data_optim:__{rank}_{shard}.distcp
    prefixed_optim:{name}__{rank}_{shard}.distcp
  iter_{step:09d}/scheduler[_{name}]/
    metadata_scheduler:.metadata rank_metadata_scheduler:__{rank}.metadata
    data_scheduler:__{rank}_{shard}.distcp prefixed_scheduler:{name}__{rank}_{shard}.distcp
  iter_{step:09d}/trainer/
    metadata_trainer:.metadata rank_metadata_trainer:__{rank}.metadata
    data_trainer:__{rank}_{shard}.distcp prefixed_trainer:{name}__{rank}_{shard}.distcp

dcp_set dcp-set note:latest_checkpointed_iteration.json note:LATEST.txt note:.xtuner
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/model/
    metadata_model:.metadata rank_metadata_model:__{rank}.metadata data_model:__{rank}_{shard}.distcp
    prefixed_model:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/weights/
    metadata_weights:.metadata rank_metadata_weights:__{rank}.metadata
    data_weights:__{rank}_{shard}.distcp prefixed_weights:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/model_optimizer/
    metadata_model_optimizer:.metadata rank_metadata_model_optimizer:__{rank}.metadata
    data_model_optimizer:__{rank}_{shard}.distcp prefixed_model_optimizer:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/trainer/
    metadata_trainer:.metadata rank_metadata_trainer:__{rank}.metadata
    data_trainer:__{rank}_{shard}.distcp prefixed_trainer:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/policy/
    metadata_policy:.metadata rank_metadata_policy:__{rank}.metadata data_policy:__{rank}_{shard}.distcp
    prefixed_policy:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/actor/
    metadata_actor:.metadata rank_metadata_actor:__{rank}.metadata data_actor:__{rank}_{shard}.distcp
    prefixed_actor:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/dcp/
    metadata_dcp:.metadata rank_metadata_dcp:__{rank}.metadata data_dcp:__{rank}_{shard}.distcp
    prefixed_dcp:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/optimizer/
    metadata_optimizer:.metadata rank_metadata_optimizer:__{rank}.metadata
    data_optimizer:__{rank}_{shard}.distcp prefixed_optimizer:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/optim/
    metadata_optim:.metadata rank_metadata_optim:__{rank}.metadata data_optim:__{rank}_{shard}.distcp
    prefixed_optim:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/critic/
    metadata_critic:.metadata rank_metadata_critic:__{rank}.metadata data_critic:__{rank}_{shard}.distcp
    prefixed_critic:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/value/
    metadata_value:.metadata rank_metadata_value:__{rank}.metadata data_value:__{rank}_{shard}.distcp
    prefixed_value:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/scheduler/
    metadata_scheduler:.metadata rank_metadata_scheduler:__{rank}.metadata
    data_scheduler:__{rank}_{shard}.distcp prefixed_scheduler:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/lr_scheduler/
    metadata_lr_scheduler:.metadata rank_metadata_lr_scheduler:__{rank}.metadata
    data_lr_scheduler:__{rank}_{shard}.distcp prefixed_lr_scheduler:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/ema/
    metadata_ema:.metadata rank_metadata_ema:__{rank}.metadata data_ema:__{rank}_{shard}.distcp
    prefixed_ema:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/
    state:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>[[<_global|_dp>][<_|->][rank][<_|->]{shard}].<pt|pth>
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>/
    state_below:[<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>][<_global|_dp>][<_|->][rank][<_|->]{shard}.<pt|pth>
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/
    state_of_loop:metadata.pth told:<train_state|trainer_state>[_{shard}].json
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/<model|weights|model_optimizer|trainer|policy|actor|dcp>/
    state_deep:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>[[<_global|_dp>][<_|->][rank][<_|->]{shard}].<pt|pth>
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/<model|weights|model_optimizer|trainer|policy|actor|dcp>/<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>/
    state_below_deep:[<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>][<_global|_dp>][<_|->][rank][<_|->]{shard}.<pt|pth>
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/<model|weights|model_optimizer|trainer|policy|actor|dcp>/
    state_of_loop_deep:metadata.pth told_deep:<train_state|trainer_state>[_{shard}].json
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/
    incomplete:.incomplete
    plain:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>
    complete:CHECKPOINT_COMPLETE
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/<optimizer|optim>/
    single_optimizer:state_dict.pt
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/
    single:<step_scheduler|progress|scheduler>.pt single_counts:metadata.json
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/orchestrator/
    orchestrator:progress.pt
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/model/
    safetensors:{name}.safetensors
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/model/consolidated/
    exported:{name}.safetensors
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/model/
    adapter:<adapter_config|automodel_peft_config>.json
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/model/consolidated/
    index:model.safetensors.index.json
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/{name}/dcp/
    metadata_worker:.metadata rank_metadata_worker:__{rank}.metadata data_worker:__{rank}_{shard}.distcp
    prefixed_worker:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/{name}/
    worker_weights:{name}.safetensors worker_weights_index:model.safetensors.index.json
  <step-|step_|step|global_step_|global_step|global-step-|checkpoint-|checkpoint_|ckpt-|ckpt_|ckpt-step-|ckpt_step_|snapshot-step-|iter_|iteration_>{step}/pipeline/
    pipeline:rng_state_pipeline.pth pipeline_counts:worker_state_pipeline.json
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/model/
    metadata_model_epoch_step:.metadata rank_metadata_model_epoch_step:__{rank}.metadata
    data_model_epoch_step:__{rank}_{shard}.distcp prefixed_model_epoch_step:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/weights/
    metadata_weights_epoch_step:.metadata rank_metadata_weights_epoch_step:__{rank}.metadata
    data_weights_epoch_step:__{rank}_{shard}.distcp
    prefixed_weights_epoch_step:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/model_optimizer/
    metadata_model_optimizer_epoch_step:.metadata
    rank_metadata_model_optimizer_epoch_step:__{rank}.metadata
    data_model_optimizer_epoch_step:__{rank}_{shard}.distcp
    prefixed_model_optimizer_epoch_step:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/trainer/
    metadata_trainer_epoch_step:.metadata rank_metadata_trainer_epoch_step:__{rank}.metadata
    data_trainer_epoch_step:__{rank}_{shard}.distcp
    prefixed_trainer_epoch_step:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/policy/
    metadata_policy_epoch_step:.metadata rank_metadata_policy_epoch_step:__{rank}.metadata
    data_policy_epoch_step:__{rank}_{shard}.distcp
    prefixed_policy_epoch_step:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/actor/
    metadata_actor_epoch_step:.metadata rank_metadata_actor_epoch_step:__{rank}.metadata
    data_actor_epoch_step:__{rank}_{shard}.distcp prefixed_actor_epoch_step:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/dcp/
    metadata_dcp_epoch_step:.metadata rank_metadata_dcp_epoch_step:__{rank}.metadata
    data_dcp_epoch_step:__{rank}_{shard}.distcp prefixed_dcp_epoch_step:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/optimizer/
    metadata_optimizer_epoch_step:.metadata rank_metadata_optimizer_epoch_step:__{rank}.metadata
    data_optimizer_epoch_step:__{rank}_{shard}.distcp
    prefixed_optimizer_epoch_step:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/optim/
    metadata_optim_epoch_step:.metadata rank_metadata_optim_epoch_step:__{rank}.metadata
    data_optim_epoch_step:__{rank}_{shard}.distcp prefixed_optim_epoch_step:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/critic/
    metadata_critic_epoch_step:.metadata rank_metadata_critic_epoch_step:__{rank}.metadata
    data_critic_epoch_step:__{rank}_{shard}.distcp
    prefixed_critic_epoch_step:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/value/
    metadata_value_epoch_step:.metadata rank_metadata_value_epoch_step:__{rank}.metadata
    data_value_epoch_step:__{rank}_{shard}.distcp prefixed_value_epoch_step:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/scheduler/
    metadata_scheduler_epoch_step:.metadata rank_metadata_scheduler_epoch_step:__{rank}.metadata
    data_scheduler_epoch_step:__{rank}_{shard}.distcp
    prefixed_scheduler_epoch_step:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/lr_scheduler/
    metadata_lr_scheduler_epoch_step:.metadata rank_metadata_lr_scheduler_epoch_step:__{rank}.metadata
    data_lr_scheduler_epoch_step:__{rank}_{shard}.distcp
    prefixed_lr_scheduler_epoch_step:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/ema/
    metadata_ema_epoch_step:.metadata rank_metadata_ema_epoch_step:__{rank}.metadata
    data_ema_epoch_step:__{rank}_{shard}.distcp prefixed_ema_epoch_step:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/
    state_epoch_step:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>[[<_global|_dp>][<_|->][rank][<_|->]{shard}].<pt|pth>
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>/
    state_below_epoch_step:[<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>][<_global|_dp>][<_|->][rank][<_|->]{shard}.<pt|pth>
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/
    state_of_loop_epoch_step:metadata.pth told_epoch_step:<train_state|trainer_state>[_{shard}].json
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/<model|weights|model_optimizer|trainer|policy|actor|dcp>/
    state_deep_epoch_step:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>[[<_global|_dp>][<_|->][rank][<_|->]{shard}].<pt|pth>
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/<model|weights|model_optimizer|trainer|policy|actor|dcp>/<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>/
    state_below_deep_epoch_step:[<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>][<_global|_dp>][<_|->][rank][<_|->]{shard}.<pt|pth>
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/<model|weights|model_optimizer|trainer|policy|actor|dcp>/
    state_of_loop_deep_epoch_step:metadata.pth
    told_deep_epoch_step:<train_state|trainer_state>[_{shard}].json
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/
    incomplete_epoch_step:.incomplete
    plain_epoch_step:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>
    complete_epoch_step:CHECKPOINT_COMPLETE
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/<optimizer|optim>/
    single_optimizer_epoch_step:state_dict.pt
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/
    single_epoch_step:<step_scheduler|progress|scheduler>.pt single_counts_epoch_step:metadata.json
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/orchestrator/
    orchestrator_epoch_step:progress.pt
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/model/
    safetensors_epoch_step:{name}.safetensors
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/model/consolidated/
    exported_epoch_step:{name}.safetensors
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/model/
    adapter_epoch_step:<adapter_config|automodel_peft_config>.json
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/model/consolidated/
    index_epoch_step:model.safetensors.index.json
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/{name}/dcp/
    metadata_worker_epoch_step:.metadata rank_metadata_worker_epoch_step:__{rank}.metadata
    data_worker_epoch_step:__{rank}_{shard}.distcp
    prefixed_worker_epoch_step:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/{name}/
    worker_weights_epoch_step:{name}.safetensors
    worker_weights_index_epoch_step:model.safetensors.index.json
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/pipeline/
    pipeline_epoch_step:rng_state_pipeline.pth pipeline_counts_epoch_step:worker_state_pipeline.json
  <epoch-|epoch_|epoch=>{epoch}/model/
    metadata_model_epoch:.metadata rank_metadata_model_epoch:__{rank}.metadata
    data_model_epoch:__{rank}_{shard}.distcp prefixed_model_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/weights/
    metadata_weights_epoch:.metadata rank_metadata_weights_epoch:__{rank}.metadata
    data_weights_epoch:__{rank}_{shard}.distcp prefixed_weights_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/model_optimizer/
    metadata_model_optimizer_epoch:.metadata rank_metadata_model_optimizer_epoch:__{rank}.metadata
    data_model_optimizer_epoch:__{rank}_{shard}.distcp
    prefixed_model_optimizer_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/trainer/
    metadata_trainer_epoch:.metadata rank_metadata_trainer_epoch:__{rank}.metadata
    data_trainer_epoch:__{rank}_{shard}.distcp prefixed_trainer_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/policy/
    metadata_policy_epoch:.metadata rank_metadata_policy_epoch:__{rank}.metadata
    data_policy_epoch:__{rank}_{shard}.distcp prefixed_policy_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/actor/
    metadata_actor_epoch:.metadata rank_metadata_actor_epoch:__{rank}.metadata
    data_actor_epoch:__{rank}_{shard}.distcp prefixed_actor_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/dcp/
    metadata_dcp_epoch:.metadata rank_metadata_dcp_epoch:__{rank}.metadata
    data_dcp_epoch:__{rank}_{shard}.distcp prefixed_dcp_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/optimizer/
    metadata_optimizer_epoch:.metadata rank_metadata_optimizer_epoch:__{rank}.metadata
    data_optimizer_epoch:__{rank}_{shard}.distcp prefixed_optimizer_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/optim/
    metadata_optim_epoch:.metadata rank_metadata_optim_epoch:__{rank}.metadata
    data_optim_epoch:__{rank}_{shard}.distcp prefixed_optim_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/critic/
    metadata_critic_epoch:.metadata rank_metadata_critic_epoch:__{rank}.metadata
    data_critic_epoch:__{rank}_{shard}.distcp prefixed_critic_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/value/
    metadata_value_epoch:.metadata rank_metadata_value_epoch:__{rank}.metadata
    data_value_epoch:__{rank}_{shard}.distcp prefixed_value_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/scheduler/
    metadata_scheduler_epoch:.metadata rank_metadata_scheduler_epoch:__{rank}.metadata
    data_scheduler_epoch:__{rank}_{shard}.distcp prefixed_scheduler_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/lr_scheduler/
    metadata_lr_scheduler_epoch:.metadata rank_metadata_lr_scheduler_epoch:__{rank}.metadata
    data_lr_scheduler_epoch:__{rank}_{shard}.distcp
    prefixed_lr_scheduler_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/ema/
    metadata_ema_epoch:.metadata rank_metadata_ema_epoch:__{rank}.metadata
    data_ema_epoch:__{rank}_{shard}.distcp prefixed_ema_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/
    state_epoch:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>[[<_global|_dp>][<_|->][rank][<_|->]{shard}].<pt|pth>
  <epoch-|epoch_|epoch=>{epoch}/<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>/
    state_below_epoch:[<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>][<_global|_dp>][<_|->][rank][<_|->]{shard}.<pt|pth>
  <epoch-|epoch_|epoch=>{epoch}/
    state_of_loop_epoch:metadata.pth told_epoch:<train_state|trainer_state>[_{shard}].json
  <epoch-|epoch_|epoch=>{epoch}/<model|weights|model_optimizer|trainer|policy|actor|dcp>/
    state_deep_epoch:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>[[<_global|_dp>][<_|->][rank][<_|->]{shard}].<pt|pth>
  <epoch-|epoch_|epoch=>{epoch}/<model|weights|model_optimizer|trainer|policy|actor|dcp>/<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>/
    state_below_deep_epoch:[<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>][<_global|_dp>][<_|->][rank][<_|->]{shard}.<pt|pth>
  <epoch-|epoch_|epoch=>{epoch}/<model|weights|model_optimizer|trainer|policy|actor|dcp>/
    state_of_loop_deep_epoch:metadata.pth told_deep_epoch:<train_state|trainer_state>[_{shard}].json
  <epoch-|epoch_|epoch=>{epoch}/
    incomplete_epoch:.incomplete
    plain_epoch:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>
    complete_epoch:CHECKPOINT_COMPLETE
  <epoch-|epoch_|epoch=>{epoch}/<optimizer|optim>/
    single_optimizer_epoch:state_dict.pt
  <epoch-|epoch_|epoch=>{epoch}/
    single_epoch:<step_scheduler|progress|scheduler>.pt single_counts_epoch:metadata.json
  <epoch-|epoch_|epoch=>{epoch}/orchestrator/
    orchestrator_epoch:progress.pt
  <epoch-|epoch_|epoch=>{epoch}/model/
    safetensors_epoch:{name}.safetensors
  <epoch-|epoch_|epoch=>{epoch}/model/consolidated/
    exported_epoch:{name}.safetensors
  <epoch-|epoch_|epoch=>{epoch}/model/
    adapter_epoch:<adapter_config|automodel_peft_config>.json
  <epoch-|epoch_|epoch=>{epoch}/model/consolidated/
    index_epoch:model.safetensors.index.json
  <epoch-|epoch_|epoch=>{epoch}/{name}/dcp/
    metadata_worker_epoch:.metadata rank_metadata_worker_epoch:__{rank}.metadata
    data_worker_epoch:__{rank}_{shard}.distcp prefixed_worker_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/{name}/
    worker_weights_epoch:{name}.safetensors worker_weights_index_epoch:model.safetensors.index.json
  <epoch-|epoch_|epoch=>{epoch}/pipeline/
    pipeline_epoch:rng_state_pipeline.pth pipeline_counts_epoch:worker_state_pipeline.json
  model/
    metadata_model_here:.metadata rank_metadata_model_here:__{rank}.metadata
    data_model_here:__{rank}_{shard}.distcp prefixed_model_here:{name}__{rank}_{shard}.distcp
  weights/
    metadata_weights_here:.metadata rank_metadata_weights_here:__{rank}.metadata
    data_weights_here:__{rank}_{shard}.distcp prefixed_weights_here:{name}__{rank}_{shard}.distcp
  model_optimizer/
    metadata_model_optimizer_here:.metadata rank_metadata_model_optimizer_here:__{rank}.metadata
    data_model_optimizer_here:__{rank}_{shard}.distcp
    prefixed_model_optimizer_here:{name}__{rank}_{shard}.distcp
  trainer/
    metadata_trainer_here:.metadata rank_metadata_trainer_here:__{rank}.metadata
    data_trainer_here:__{rank}_{shard}.distcp prefixed_trainer_here:{name}__{rank}_{shard}.distcp
  policy/
    metadata_policy_here:.metadata rank_metadata_policy_here:__{rank}.metadata
    data_policy_here:__{rank}_{shard}.distcp prefixed_policy_here:{name}__{rank}_{shard}.distcp
  actor/
    metadata_actor_here:.metadata rank_metadata_actor_here:__{rank}.metadata
    data_actor_here:__{rank}_{shard}.distcp prefixed_actor_here:{name}__{rank}_{shard}.distcp
  dcp/
    metadata_dcp_here:.metadata rank_metadata_dcp_here:__{rank}.metadata
    data_dcp_here:__{rank}_{shard}.distcp prefixed_dcp_here:{name}__{rank}_{shard}.distcp
  optimizer/
    metadata_optimizer_here:.metadata rank_metadata_optimizer_here:__{rank}.metadata
    data_optimizer_here:__{rank}_{shard}.distcp prefixed_optimizer_here:{name}__{rank}_{shard}.distcp
  optim/
    metadata_optim_here:.metadata rank_metadata_optim_here:__{rank}.metadata
    data_optim_here:__{rank}_{shard}.distcp prefixed_optim_here:{name}__{rank}_{shard}.distcp
  critic/
    metadata_critic_here:.metadata rank_metadata_critic_here:__{rank}.metadata
    data_critic_here:__{rank}_{shard}.distcp prefixed_critic_here:{name}__{rank}_{shard}.distcp
  value/
    metadata_value_here:.metadata rank_metadata_value_here:__{rank}.metadata
    data_value_here:__{rank}_{shard}.distcp prefixed_value_here:{name}__{rank}_{shard}.distcp
  scheduler/
    metadata_scheduler_here:.metadata rank_metadata_scheduler_here:__{rank}.metadata
    data_scheduler_here:__{rank}_{shard}.distcp prefixed_scheduler_here:{name}__{rank}_{shard}.distcp
  lr_scheduler/
    metadata_lr_scheduler_here:.metadata rank_metadata_lr_scheduler_here:__{rank}.metadata
    data_lr_scheduler_here:__{rank}_{shard}.distcp
    prefixed_lr_scheduler_here:{name}__{rank}_{shard}.distcp
  ema/
    metadata_ema_here:.metadata rank_metadata_ema_here:__{rank}.metadata
    data_ema_here:__{rank}_{shard}.distcp prefixed_ema_here:{name}__{rank}_{shard}.distcp
  .
    state_here:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>[[<_global|_dp>][<_|->][rank][<_|->]{shard}].<pt|pth>
  <extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>/
    state_below_here:[<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>][<_global|_dp>][<_|->][rank][<_|->]{shard}.<pt|pth>
  .
    state_of_loop_here:metadata.pth told_here:<train_state|trainer_state>[_{shard}].json
  <model|weights|model_optimizer|trainer|policy|actor|dcp>/
    state_deep_here:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>[[<_global|_dp>][<_|->][rank][<_|->]{shard}].<pt|pth>
  <model|weights|model_optimizer|trainer|policy|actor|dcp>/<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>/
    state_below_deep_here:[<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>][<_global|_dp>][<_|->][rank][<_|->]{shard}.<pt|pth>
  <model|weights|model_optimizer|trainer|policy|actor|dcp>/
    state_of_loop_deep_here:metadata.pth told_deep_here:<train_state|trainer_state>[_{shard}].json
  .
    single_here:<step_scheduler|progress|scheduler>.pt single_counts_here:metadata.json
  orchestrator/
    orchestrator_here:progress.pt
  model/
    safetensors_here:{name}.safetensors
  model/consolidated/
    exported_here:{name}.safetensors
  model/
    adapter_here:<adapter_config|automodel_peft_config>.json
  model/consolidated/
    index_here:model.safetensors.index.json

hf_trainer hf-trainer note:dlrover_latest.txt
  checkpoint-{step}/
    state:trainer_state.json model:model.safetensors model_shard:model-{shard:05d}-of-{of:05d}.safetensors
    model_index:model.safetensors.index.json adapter:adapter_model.safetensors
    adapter_shard:adapter_model-{shard:05d}-of-{of:05d}.safetensors
    adapter_index:adapter_model.safetensors.index.json bin:pytorch_model.bin
    bin_shard:pytorch_model-{shard:05d}-of-{of:05d}.bin bin_index:pytorch_model.bin.index.json
    adapter_bin:adapter_model.bin adapter_bin_shard:adapter_model-{shard:05d}-of-{of:05d}.bin
    adapter_bin_index:adapter_model.bin.index.json
  checkpoint-{step}/0_{name}/
    model_model:model.safetensors model_pytorch_model:pytorch_model.bin
  checkpoint-{step}/{layer}_{name}/
    module_model:model.safetensors module_pytorch_model:pytorch_model.bin
  checkpoint-{step}/
    modules:modules.json
  checkpoint-{step}/{layer}_{name}/
    module_config:config.json
  checkpoint-{step}/{name}/
    named_adapter:adapter_model.safetensors named_adapter_bin:adapter_model.bin
  checkpoint-{step}/
    optimizer:optimizer.pt optimizer_bin:optimizer.bin scheduler:scheduler.pt scaler:scaler.pt
    rng:rng_state.pth rng_rank:rng_state_{rank}.pth args:training_args.bin config:config.json
    adapter_config:adapter_config.json
  checkpoint-{step}/{name}/
    named_adapter_config:adapter_config.json
  checkpoint-{step}/
    tokenizer:<generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|preprocessor_config>.json
  tmp-checkpoint-{step}/
    tmp:{name}
  checkpoint-{step}/
    pd_model:model_state[.tp{tp:02d}][<.|_>pp{pp:02d}].pdparams
    pd_optimizer:optimizer[.tp{tp:02d}][<.|_>pp{pp:02d}][<.|_>shard{dp:02d}].pdopt
    pd_scheduler:scheduler.pdparams pd_scaler:scaler.pdparams pd_done:<.checkpoint_done|.model_done>
    pd_signal:saved_signal_{shard}
    pd_weights_done:<.model_weight|.optimizer_weight|.master_weight>.done.{shard}
    unified_optimizer:optimizer[-{shard:05d}-of-{of:05d}].safetensors
    unified_optimizer_index:optimizer.safetensors.index.json
    unified_master_weights:master_weights[-{shard:05d}-of-{of:05d}].safetensors
    unified_master_weights_index:master_weights.safetensors.index.json flex_state:trainer_state.bin
  checkpoint-{step}/model_state/
    flex_model_state_index:{name}.metadata flex_model_state:{shard}_{name}.distcp
  checkpoint-{step}/optimizer_state/
    flex_optimizer_state_index:{name}.metadata flex_optimizer_state:{shard}_{name}.distcp
  checkpoint-{step}/master_weight/
    flex_master_weight_index:{name}.metadata flex_master_weight:{shard}_{name}.distcp
  checkpoint-{step}/ema_state/
    flex_ema_state_index:{name}.metadata flex_ema_state:{shard}_{name}.distcp
  checkpoint-{step}/
    fsdp:pytorch_model_fsdp[_{shard}].bin
    pytorch_model_fsdp_rank:pytorch_model_fsdp[_{shard}]_rank{rank}.bin
  checkpoint-{step}/pytorch_model_fsdp_{node}/
    metadata_pytorch_model_fsdp:.metadata rank_metadata_pytorch_model_fsdp:__{rank}.metadata
    data_pytorch_model_fsdp:__{rank}_{shard}.distcp
    prefixed_pytorch_model_fsdp:{name}__{rank}_{shard}.distcp
  checkpoint-{step}/
    optimizer_rank:optimizer[_{shard}]_rank{rank}.bin
  checkpoint-{step}/optimizer_{node}/
    metadata_optimizer:.metadata rank_metadata_optimizer:__{rank}.metadata
    data_optimizer:__{rank}_{shard}.distcp prefixed_optimizer:{name}__{rank}_{shard}.distcp
  checkpoint-{step}/global_step{step}/
    model_deepspeed:mp_rank_{tp:02d}_model_states.pt
    zero3_deepspeed:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim_deepspeed:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer_deepspeed:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert_deepspeed:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim_deepspeed:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt
  checkpoint-{step}/
    latest_deepspeed:latest

accelerate accelerate
  checkpoint_{generation}/
    rng:random_states_{rank}.pkl model:model[_{shard}].safetensors
    model_shard:model-{shard:05d}-of-{of:05d}.safetensors bin:pytorch_model[_{shard}].bin
    bin_shard:pytorch_model-{shard:05d}-of-{of:05d}.bin
    index:<model.safetensors|pytorch_model.bin>.index.json optimizer:optimizer[_{shard}].bin
    scheduler:scheduler[_{shard}].bin sampler:sampler[_{shard}].bin dataloader:dl_state_dict[_{shard}].bin
    scaler:scaler.pt custom:custom_checkpoint_{shard}.pkl
  checkpoint_{generation}/unet/
    unet:diffusion_pytorch_model.safetensors unet_bin:diffusion_pytorch_model.bin
    unet_shard:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    unet_index:diffusion_pytorch_model.<safetensors|bin>.index.json unet_config:config.json
  checkpoint_{generation}/unet_ema/
    unet_ema:diffusion_pytorch_model.safetensors unet_ema_bin:diffusion_pytorch_model.bin
    unet_ema_shard:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    unet_ema_index:diffusion_pytorch_model.<safetensors|bin>.index.json unet_ema_config:config.json
  checkpoint_{generation}/transformer/
    transformer:diffusion_pytorch_model.safetensors transformer_bin:diffusion_pytorch_model.bin
    transformer_shard:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    transformer_index:diffusion_pytorch_model.<safetensors|bin>.index.json transformer_config:config.json
  checkpoint_{generation}/transformer_ema/
    transformer_ema:diffusion_pytorch_model.safetensors transformer_ema_bin:diffusion_pytorch_model.bin
    transformer_ema_shard:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    transformer_ema_index:diffusion_pytorch_model.<safetensors|bin>.index.json
    transformer_ema_config:config.json
  checkpoint_{generation}/controlnet/
    controlnet:diffusion_pytorch_model.safetensors controlnet_bin:diffusion_pytorch_model.bin
    controlnet_shard:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    controlnet_index:diffusion_pytorch_model.<safetensors|bin>.index.json controlnet_config:config.json
  checkpoint_{generation}/prior/
    prior:diffusion_pytorch_model.safetensors prior_bin:diffusion_pytorch_model.bin
    prior_shard:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    prior_index:diffusion_pytorch_model.<safetensors|bin>.index.json prior_config:config.json
  checkpoint_{generation}/prior_ema/
    prior_ema:diffusion_pytorch_model.safetensors prior_ema_bin:diffusion_pytorch_model.bin
    prior_ema_shard:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    prior_ema_index:diffusion_pytorch_model.<safetensors|bin>.index.json prior_ema_config:config.json
  checkpoint_{generation}/
    lora:pytorch_lora_weights.safetensors fsdp:pytorch_model_fsdp[_{shard}].bin
    pytorch_model_fsdp_rank:pytorch_model_fsdp[_{shard}]_rank{rank}.bin
  checkpoint_{generation}/pytorch_model_fsdp_{node}/
    metadata_pytorch_model_fsdp:.metadata rank_metadata_pytorch_model_fsdp:__{rank}.metadata
    data_pytorch_model_fsdp:__{rank}_{shard}.distcp
    prefixed_pytorch_model_fsdp:{name}__{rank}_{shard}.distcp
  checkpoint_{generation}/
    optimizer_rank:optimizer[_{shard}]_rank{rank}.bin
  checkpoint_{generation}/optimizer_{node}/
    metadata_optimizer:.metadata rank_metadata_optimizer:__{rank}.metadata
    data_optimizer:__{rank}_{shard}.distcp prefixed_optimizer:{name}__{rank}_{shard}.distcp
  checkpoint_{generation}/pytorch_model[_{node}]/
    model_deepspeed:mp_rank_{tp:02d}_model_states.pt
    zero3_deepspeed:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim_deepspeed:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer_deepspeed:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert_deepspeed:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim_deepspeed:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt
  <checkpoint-|checkpoint_step_|checkpoint-step-|step_|step-|iter_>{step}/
    rng_step:random_states_{rank}.pkl model_step:model[_{shard}].safetensors
    model_shard_step:model-{shard:05d}-of-{of:05d}.safetensors bin_step:pytorch_model[_{shard}].bin
    bin_shard_step:pytorch_model-{shard:05d}-of-{of:05d}.bin
    index_step:<model.safetensors|pytorch_model.bin>.index.json optimizer_step:optimizer[_{shard}].bin
    scheduler_step:scheduler[_{shard}].bin sampler_step:sampler[_{shard}].bin
    dataloader_step:dl_state_dict[_{shard}].bin scaler_step:scaler.pt
    custom_step:custom_checkpoint_{shard}.pkl
  <checkpoint-|checkpoint_step_|checkpoint-step-|step_|step-|iter_>{step}/unet/
    unet_step:diffusion_pytorch_model.safetensors unet_bin_step:diffusion_pytorch_model.bin
    unet_shard_step:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    unet_index_step:diffusion_pytorch_model.<safetensors|bin>.index.json unet_config_step:config.json
  <checkpoint-|checkpoint_step_|checkpoint-step-|step_|step-|iter_>{step}/unet_ema/
    unet_ema_step:diffusion_pytorch_model.safetensors unet_ema_bin_step:diffusion_pytorch_model.bin
    unet_ema_shard_step:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    unet_ema_index_step:diffusion_pytorch_model.<safetensors|bin>.index.json
    unet_ema_config_step:config.json
  <checkpoint-|checkpoint_step_|checkpoint-step-|step_|step-|iter_>{step}/transformer/
    transformer_step:diffusion_pytorch_model.safetensors transformer_bin_step:diffusion_pytorch_model.bin
    transformer_shard_step:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    transformer_index_step:diffusion_pytorch_model.<safetensors|bin>.index.json
    transformer_config_step:config.json
  <checkpoint-|checkpoint_step_|checkpoint-step-|step_|step-|iter_>{step}/transformer_ema/
    transformer_ema_step:diffusion_pytorch_model.safetensors
    transformer_ema_bin_step:diffusion_pytorch_model.bin
    transformer_ema_shard_step:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    transformer_ema_index_step:diffusion_pytorch_model.<safetensors|bin>.index.json
    transformer_ema_config_step:config.json
  <checkpoint-|checkpoint_step_|checkpoint-step-|step_|step-|iter_>{step}/controlnet/
    controlnet_step:diffusion_pytorch_model.safetensors controlnet_bin_step:diffusion_pytorch_model.bin
    controlnet_shard_step:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    controlnet_index_step:diffusion_pytorch_model.<safetensors|bin>.index.json
    controlnet_config_step:config.json
  <checkpoint-|checkpoint_step_|checkpoint-step-|step_|step-|iter_>{step}/prior/
    prior_step:diffusion_pytorch_model.safetensors prior_bin_step:diffusion_pytorch_model.bin
    prior_shard_step:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    prior_index_step:diffusion_pytorch_model.<safetensors|bin>.index.json prior_config_step:config.json
  <checkpoint-|checkpoint_step_|checkpoint-step-|step_|step-|iter_>{step}/prior_ema/
    prior_ema_step:diffusion_pytorch_model.safetensors prior_ema_bin_step:diffusion_pytorch_model.bin
    prior_ema_shard_step:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    prior_ema_index_step:diffusion_pytorch_model.<safetensors|bin>.index.json
    prior_ema_config_step:config.json
  <checkpoint-|checkpoint_step_|checkpoint-step-|step_|step-|iter_>{step}/
    lora_step:pytorch_lora_weights.safetensors fsdp_step:pytorch_model_fsdp[_{shard}].bin
    pytorch_model_fsdp_rank_step:pytorch_model_fsdp[_{shard}]_rank{rank}.bin
  <checkpoint-|checkpoint_step_|checkpoint-step-|step_|step-|iter_>{step}/pytorch_model_fsdp_{node}/
    metadata_pytorch_model_fsdp_step:.metadata rank_metadata_pytorch_model_fsdp_step:__{rank}.metadata
    data_pytorch_model_fsdp_step:__{rank}_{shard}.distcp
    prefixed_pytorch_model_fsdp_step:{name}__{rank}_{shard}.distcp
  <checkpoint-|checkpoint_step_|checkpoint-step-|step_|step-|iter_>{step}/
    optimizer_rank_step:optimizer[_{shard}]_rank{rank}.bin
  <checkpoint-|checkpoint_step_|checkpoint-step-|step_|step-|iter_>{step}/optimizer_{node}/
    metadata_optimizer_step:.metadata rank_metadata_optimizer_step:__{rank}.metadata
    data_optimizer_step:__{rank}_{shard}.distcp prefixed_optimizer_step:{name}__{rank}_{shard}.distcp
  <checkpoint-|checkpoint_step_|checkpoint-step-|step_|step-|iter_>{step}/pytorch_model[_{node}]/
    model_deepspeed_step:mp_rank_{tp:02d}_model_states.pt
    zero3_deepspeed_step:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim_deepspeed_step:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer_deepspeed_step:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert_deepspeed_step:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim_deepspeed_step:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt
  <epoch_|epoch-|checkpoint-epoch-|checkpoint_epoch_>{epoch}/
    rng_epoch:random_states_{rank}.pkl model_epoch:model[_{shard}].safetensors
    model_shard_epoch:model-{shard:05d}-of-{of:05d}.safetensors bin_epoch:pytorch_model[_{shard}].bin
    bin_shard_epoch:pytorch_model-{shard:05d}-of-{of:05d}.bin
    index_epoch:<model.safetensors|pytorch_model.bin>.index.json optimizer_epoch:optimizer[_{shard}].bin
    scheduler_epoch:scheduler[_{shard}].bin sampler_epoch:sampler[_{shard}].bin
    dataloader_epoch:dl_state_dict[_{shard}].bin scaler_epoch:scaler.pt
    custom_epoch:custom_checkpoint_{shard}.pkl
  <epoch_|epoch-|checkpoint-epoch-|checkpoint_epoch_>{epoch}/unet/
    unet_epoch:diffusion_pytorch_model.safetensors unet_bin_epoch:diffusion_pytorch_model.bin
    unet_shard_epoch:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    unet_index_epoch:diffusion_pytorch_model.<safetensors|bin>.index.json unet_config_epoch:config.json
  <epoch_|epoch-|checkpoint-epoch-|checkpoint_epoch_>{epoch}/unet_ema/
    unet_ema_epoch:diffusion_pytorch_model.safetensors unet_ema_bin_epoch:diffusion_pytorch_model.bin
    unet_ema_shard_epoch:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    unet_ema_index_epoch:diffusion_pytorch_model.<safetensors|bin>.index.json
    unet_ema_config_epoch:config.json
  <epoch_|epoch-|checkpoint-epoch-|checkpoint_epoch_>{epoch}/transformer/
    transformer_epoch:diffusion_pytorch_model.safetensors
    transformer_bin_epoch:diffusion_pytorch_model.bin
    transformer_shard_epoch:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    transformer_index_epoch:diffusion_pytorch_model.<safetensors|bin>.index.json
    transformer_config_epoch:config.json
  <epoch_|epoch-|checkpoint-epoch-|checkpoint_epoch_>{epoch}/transformer_ema/
    transformer_ema_epoch:diffusion_pytorch_model.safetensors
    transformer_ema_bin_epoch:diffusion_pytorch_model.bin
    transformer_ema_shard_epoch:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    transformer_ema_index_epoch:diffusion_pytorch_model.<safetensors|bin>.index.json
    transformer_ema_config_epoch:config.json
  <epoch_|epoch-|checkpoint-epoch-|checkpoint_epoch_>{epoch}/controlnet/
    controlnet_epoch:diffusion_pytorch_model.safetensors controlnet_bin_epoch:diffusion_pytorch_model.bin
    controlnet_shard_epoch:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    controlnet_index_epoch:diffusion_pytorch_model.<safetensors|bin>.index.json
    controlnet_config_epoch:config.json
  <epoch_|epoch-|checkpoint-epoch-|checkpoint_epoch_>{epoch}/prior/
    prior_epoch:diffusion_pytorch_model.safetensors prior_bin_epoch:diffusion_pytorch_model.bin
    prior_shard_epoch:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    prior_index_epoch:diffusion_pytorch_model.<safetensors|bin>.index.json prior_config_epoch:config.json
  <epoch_|epoch-|checkpoint-epoch-|checkpoint_epoch_>{epoch}/prior_ema/
    prior_ema_epoch:diffusion_pytorch_model.safetensors prior_ema_bin_epoch:diffusion_pytorch_model.bin
    prior_ema_shard_epoch:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    prior_ema_index_epoch:diffusion_pytorch_model.<safetensors|bin>.index.json
    prior_ema_config_epoch:config.json
  <epoch_|epoch-|checkpoint-epoch-|checkpoint_epoch_>{epoch}/
    lora_epoch:pytorch_lora_weights.safetensors fsdp_epoch:pytorch_model_fsdp[_{shard}].bin
    pytorch_model_fsdp_rank_epoch:pytorch_model_fsdp[_{shard}]_rank{rank}.bin
  <epoch_|epoch-|checkpoint-epoch-|checkpoint_epoch_>{epoch}/pytorch_model_fsdp_{node}/
    metadata_pytorch_model_fsdp_epoch:.metadata rank_metadata_pytorch_model_fsdp_epoch:__{rank}.metadata
    data_pytorch_model_fsdp_epoch:__{rank}_{shard}.distcp
    prefixed_pytorch_model_fsdp_epoch:{name}__{rank}_{shard}.distcp
  <epoch_|epoch-|checkpoint-epoch-|checkpoint_epoch_>{epoch}/
    optimizer_rank_epoch:optimizer[_{shard}]_rank{rank}.bin
  <epoch_|epoch-|checkpoint-epoch-|checkpoint_epoch_>{epoch}/optimizer_{node}/
    metadata_optimizer_epoch:.metadata rank_metadata_optimizer_epoch:__{rank}.metadata
    data_optimizer_epoch:__{rank}_{shard}.distcp prefixed_optimizer_epoch:{name}__{rank}_{shard}.distcp
  <epoch_|epoch-|checkpoint-epoch-|checkpoint_epoch_>{epoch}/pytorch_model[_{node}]/
    model_deepspeed_epoch:mp_rank_{tp:02d}_model_states.pt
    zero3_deepspeed_epoch:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim_deepspeed_epoch:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer_deepspeed_epoch:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert_deepspeed_epoch:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim_deepspeed_epoch:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt
  {prefix}-step{step:08d}-state/
    rng_kohya_step:random_states_{rank}.pkl model_kohya_step:model[_{shard}].safetensors
    model_shard_kohya_step:model-{shard:05d}-of-{of:05d}.safetensors
    bin_kohya_step:pytorch_model[_{shard}].bin
    bin_shard_kohya_step:pytorch_model-{shard:05d}-of-{of:05d}.bin
    index_kohya_step:<model.safetensors|pytorch_model.bin>.index.json
    optimizer_kohya_step:optimizer[_{shard}].bin scheduler_kohya_step:scheduler[_{shard}].bin
    sampler_kohya_step:sampler[_{shard}].bin dataloader_kohya_step:dl_state_dict[_{shard}].bin
    scaler_kohya_step:scaler.pt custom_kohya_step:custom_checkpoint_{shard}.pkl
  {prefix}-step{step:08d}-state/unet/
    unet_kohya_step:diffusion_pytorch_model.safetensors unet_bin_kohya_step:diffusion_pytorch_model.bin
    unet_shard_kohya_step:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    unet_index_kohya_step:diffusion_pytorch_model.<safetensors|bin>.index.json
    unet_config_kohya_step:config.json
  {prefix}-step{step:08d}-state/unet_ema/
    unet_ema_kohya_step:diffusion_pytorch_model.safetensors
    unet_ema_bin_kohya_step:diffusion_pytorch_model.bin
    unet_ema_shard_kohya_step:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    unet_ema_index_kohya_step:diffusion_pytorch_model.<safetensors|bin>.index.json
    unet_ema_config_kohya_step:config.json
  {prefix}-step{step:08d}-state/transformer/
    transformer_kohya_step:diffusion_pytorch_model.safetensors
    transformer_bin_kohya_step:diffusion_pytorch_model.bin
    transformer_shard_kohya_step:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    transformer_index_kohya_step:diffusion_pytorch_model.<safetensors|bin>.index.json
    transformer_config_kohya_step:config.json
  {prefix}-step{step:08d}-state/transformer_ema/
    transformer_ema_kohya_step:diffusion_pytorch_model.safetensors
    transformer_ema_bin_kohya_step:diffusion_pytorch_model.bin
    transformer_ema_shard_kohya_step:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    transformer_ema_index_kohya_step:diffusion_pytorch_model.<safetensors|bin>.index.json
    transformer_ema_config_kohya_step:config.json
  {prefix}-step{step:08d}-state/controlnet/
    controlnet_kohya_step:diffusion_pytorch_model.safetensors
    controlnet_bin_kohya_step:diffusion_pytorch_model.bin
    controlnet_shard_kohya_step:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    controlnet_index_kohya_step:diffusion_pytorch_model.<safetensors|bin>.index.json
    controlnet_config_kohya_step:config.json
  {prefix}-step{step:08d}-state/prior/
    prior_kohya_step:diffusion_pytorch_model.safetensors prior_bin_kohya_step:diffusion_pytorch_model.bin
    prior_shard_kohya_step:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    prior_index_kohya_step:diffusion_pytorch_model.<safetensors|bin>.index.json
    prior_config_kohya_step:config.json
  {prefix}-step{step:08d}-state/prior_ema/
    prior_ema_kohya_step:diffusion_pytorch_model.safetensors
    prior_ema_bin_kohya_step:diffusion_pytorch_model.bin
    prior_ema_shard_kohya_step:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    prior_ema_index_kohya_step:diffusion_pytorch_model.<safetensors|bin>.index.json
    prior_ema_config_kohya_step:config.json
  {prefix}-step{step:08d}-state/
    lora_kohya_step:pytorch_lora_weights.safetensors fsdp_kohya_step:pytorch_model_fsdp[_{shard}].bin
    pytorch_model_fsdp_rank_kohya_step:pytorch_model_fsdp[_{shard}]_rank{rank}.bin
  {prefix}-step{step:08d}-state/pytorch_model_fsdp_{node}/
    metadata_pytorch_model_fsdp_kohya_step:.metadata
    rank_metadata_pytorch_model_fsdp_kohya_step:__{rank}.metadata
    data_pytorch_model_fsdp_kohya_step:__{rank}_{shard}.distcp
    prefixed_pytorch_model_fsdp_kohya_step:{name}__{rank}_{shard}.distcp
  {prefix}-step{step:08d}-state/
    optimizer_rank_kohya_step:optimizer[_{shard}]_rank{rank}.bin
  {prefix}-step{step:08d}-state/optimizer_{node}/
    metadata_optimizer_kohya_step:.metadata rank_metadata_optimizer_kohya_step:__{rank}.metadata
    data_optimizer_kohya_step:__{rank}_{shard}.distcp
    prefixed_optimizer_kohya_step:{name}__{rank}_{shard}.distcp
  {prefix}-step{step:08d}-state/pytorch_model[_{node}]/
    model_deepspeed_kohya_step:mp_rank_{tp:02d}_model_states.pt
    zero3_deepspeed_kohya_step:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim_deepspeed_kohya_step:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer_deepspeed_kohya_step:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert_deepspeed_kohya_step:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim_deepspeed_kohya_step:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt
  {prefix}-step{step:08d}-state/
    train_state_kohya_step:train_state.json
  {prefix}-{epoch:06d}-state/
    rng_kohya_epoch:random_states_{rank}.pkl model_kohya_epoch:model[_{shard}].safetensors
    model_shard_kohya_epoch:model-{shard:05d}-of-{of:05d}.safetensors
    bin_kohya_epoch:pytorch_model[_{shard}].bin
    bin_shard_kohya_epoch:pytorch_model-{shard:05d}-of-{of:05d}.bin
    index_kohya_epoch:<model.safetensors|pytorch_model.bin>.index.json
    optimizer_kohya_epoch:optimizer[_{shard}].bin scheduler_kohya_epoch:scheduler[_{shard}].bin
    sampler_kohya_epoch:sampler[_{shard}].bin dataloader_kohya_epoch:dl_state_dict[_{shard}].bin
    scaler_kohya_epoch:scaler.pt custom_kohya_epoch:custom_checkpoint_{shard}.pkl
  {prefix}-{epoch:06d}-state/unet/
    unet_kohya_epoch:diffusion_pytorch_model.safetensors unet_bin_kohya_epoch:diffusion_pytorch_model.bin
    unet_shard_kohya_epoch:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    unet_index_kohya_epoch:diffusion_pytorch_model.<safetensors|bin>.index.json
    unet_config_kohya_epoch:config.json
  {prefix}-{epoch:06d}-state/unet_ema/
    unet_ema_kohya_epoch:diffusion_pytorch_model.safetensors
    unet_ema_bin_kohya_epoch:diffusion_pytorch_model.bin
    unet_ema_shard_kohya_epoch:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    unet_ema_index_kohya_epoch:diffusion_pytorch_model.<safetensors|bin>.index.json
    unet_ema_config_kohya_epoch:config.json
  {prefix}-{epoch:06d}-state/transformer/
    transformer_kohya_epoch:diffusion_pytorch_model.safetensors
    transformer_bin_kohya_epoch:diffusion_pytorch_model.bin
    transformer_shard_kohya_epoch:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    transformer_index_kohya_epoch:diffusion_pytorch_model.<safetensors|bin>.index.json
    transformer_config_kohya_epoch:config.json
  {prefix}-{epoch:06d}-state/transformer_ema/
    transformer_ema_kohya_epoch:diffusion_pytorch_model.safetensors
    transformer_ema_bin_kohya_epoch:diffusion_pytorch_model.bin
    transformer_ema_shard_kohya_epoch:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    transformer_ema_index_kohya_epoch:diffusion_pytorch_model.<safetensors|bin>.index.json
    transformer_ema_config_kohya_epoch:config.json
  {prefix}-{epoch:06d}-state/controlnet/
    controlnet_kohya_epoch:diffusion_pytorch_model.safetensors
    controlnet_bin_kohya_epoch:diffusion_pytorch_model.bin
    controlnet_shard_kohya_epoch:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    controlnet_index_kohya_epoch:diffusion_pytorch_model.<safetensors|bin>.index.json
    controlnet_config_kohya_epoch:config.json
  {prefix}-{epoch:06d}-state/prior/
    prior_kohya_epoch:diffusion_pytorch_model.safetensors
    prior_bin_kohya_epoch:diffusion_pytorch_model.bin
    prior_shard_kohya_epoch:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    prior_index_kohya_epoch:diffusion_pytorch_model.<safetensors|bin>.index.json
    prior_config_kohya_epoch:config.json
  {prefix}-{epoch:06d}-state/prior_ema/
    prior_ema_kohya_epoch:diffusion_pytorch_model.safetensors
    prior_ema_bin_kohya_epoch:diffusion_pytorch_model.bin
    prior_ema_shard_kohya_epoch:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    prior_ema_index_kohya_epoch:diffusion_pytorch_model.<safetensors|bin>.index.json
    prior_ema_config_kohya_epoch:config.json
  {prefix}-{epoch:06d}-state/
    lora_kohya_epoch:pytorch_lora_weights.safetensors fsdp_kohya_epoch:pytorch_model_fsdp[_{shard}].bin
    pytorch_model_fsdp_rank_kohya_epoch:pytorch_model_fsdp[_{shard}]_rank{rank}.bin
  {prefix}-{epoch:06d}-state/pytorch_model_fsdp_{node}/
    metadata_pytorch_model_fsdp_kohya_epoch:.metadata
    rank_metadata_pytorch_model_fsdp_kohya_epoch:__{rank}.metadata
    data_pytorch_model_fsdp_kohya_epoch:__{rank}_{shard}.distcp
    prefixed_pytorch_model_fsdp_kohya_epoch:{name}__{rank}_{shard}.distcp
  {prefix}-{epoch:06d}-state/
    optimizer_rank_kohya_epoch:optimizer[_{shard}]_rank{rank}.bin
  {prefix}-{epoch:06d}-state/optimizer_{node}/
    metadata_optimizer_kohya_epoch:.metadata rank_metadata_optimizer_kohya_epoch:__{rank}.metadata
    data_optimizer_kohya_epoch:__{rank}_{shard}.distcp
    prefixed_optimizer_kohya_epoch:{name}__{rank}_{shard}.distcp
  {prefix}-{epoch:06d}-state/pytorch_model[_{node}]/
    model_deepspeed_kohya_epoch:mp_rank_{tp:02d}_model_states.pt
    zero3_deepspeed_kohya_epoch:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim_deepspeed_kohya_epoch:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer_deepspeed_kohya_epoch:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert_deepspeed_kohya_epoch:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim_deepspeed_kohya_epoch:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt
  {prefix}-{epoch:06d}-state/
    train_state_kohya_epoch:train_state.json
  {prefix}-state/
    rng_kohya:random_states_{rank}.pkl model_kohya:model[_{shard}].safetensors
    model_shard_kohya:model-{shard:05d}-of-{of:05d}.safetensors bin_kohya:pytorch_model[_{shard}].bin
    bin_shard_kohya:pytorch_model-{shard:05d}-of-{of:05d}.bin
    index_kohya:<model.safetensors|pytorch_model.bin>.index.json optimizer_kohya:optimizer[_{shard}].bin
    scheduler_kohya:scheduler[_{shard}].bin sampler_kohya:sampler[_{shard}].bin
    dataloader_kohya:dl_state_dict[_{shard}].bin scaler_kohya:scaler.pt
    custom_kohya:custom_checkpoint_{shard}.pkl
  {prefix}-state/unet/
    unet_kohya:diffusion_pytorch_model.safetensors unet_bin_kohya:diffusion_pytorch_model.bin
    unet_shard_kohya:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    unet_index_kohya:diffusion_pytorch_model.<safetensors|bin>.index.json unet_config_kohya:config.json
  {prefix}-state/unet_ema/
    unet_ema_kohya:diffusion_pytorch_model.safetensors unet_ema_bin_kohya:diffusion_pytorch_model.bin
    unet_ema_shard_kohya:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    unet_ema_index_kohya:diffusion_pytorch_model.<safetensors|bin>.index.json
    unet_ema_config_kohya:config.json
  {prefix}-state/transformer/
    transformer_kohya:diffusion_pytorch_model.safetensors
    transformer_bin_kohya:diffusion_pytorch_model.bin
    transformer_shard_kohya:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    transformer_index_kohya:diffusion_pytorch_model.<safetensors|bin>.index.json
    transformer_config_kohya:config.json
  {prefix}-state/transformer_ema/
    transformer_ema_kohya:diffusion_pytorch_model.safetensors
    transformer_ema_bin_kohya:diffusion_pytorch_model.bin
    transformer_ema_shard_kohya:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    transformer_ema_index_kohya:diffusion_pytorch_model.<safetensors|bin>.index.json
    transformer_ema_config_kohya:config.json
  {prefix}-state/controlnet/
    controlnet_kohya:diffusion_pytorch_model.safetensors controlnet_bin_kohya:diffusion_pytorch_model.bin
    controlnet_shard_kohya:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    controlnet_index_kohya:diffusion_pytorch_model.<safetensors|bin>.index.json
    controlnet_config_kohya:config.json
  {prefix}-state/prior/
    prior_kohya:diffusion_pytorch_model.safetensors prior_bin_kohya:diffusion_pytorch_model.bin
    prior_shard_kohya:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    prior_index_kohya:diffusion_pytorch_model.<safetensors|bin>.index.json prior_config_kohya:config.json
  {prefix}-state/prior_ema/
    prior_ema_kohya:diffusion_pytorch_model.safetensors prior_ema_bin_kohya:diffusion_pytorch_model.bin
    prior_ema_shard_kohya:diffusion_pytorch_model-{shard:05d}-of-{of:05d}.safetensors
    prior_ema_index_kohya:diffusion_pytorch_model.<safetensors|bin>.index.json
    prior_ema_config_kohya:config.json
  {prefix}-state/
    lora_kohya:pytorch_lora_weights.safetensors fsdp_kohya:pytorch_model_fsdp[_{shard}].bin
    pytorch_model_fsdp_rank_kohya:pytorch_model_fsdp[_{shard}]_rank{rank}.bin
  {prefix}-state/pytorch_model_fsdp_{node}/
    metadata_pytorch_model_fsdp_kohya:.metadata rank_metadata_pytorch_model_fsdp_kohya:__{rank}.metadata
    data_pytorch_model_fsdp_kohya:__{rank}_{shard}.distcp
    prefixed_pytorch_model_fsdp_kohya:{name}__{rank}_{shard}.distcp
  {prefix}-state/
    optimizer_rank_kohya:optimizer[_{shard}]_rank{rank}.bin
  {prefix}-state/optimizer_{node}/
    metadata_optimizer_kohya:.metadata rank_metadata_optimizer_kohya:__{rank}.metadata
    data_optimizer_kohya:__{rank}_{shard}.distcp prefixed_optimizer_kohya:{name}__{rank}_{shard}.distcp
  {prefix}-state/pytorch_model[_{node}]/
    model_deepspeed_kohya:mp_rank_{tp:02d}_model_states.pt
    zero3_deepspeed_kohya:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim_deepspeed_kohya:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer_deepspeed_kohya:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert_deepspeed_kohya:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim_deepspeed_kohya:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt
  {prefix}-state/
    train_state_kohya:train_state.json

lightning lightning
  .
    best:best[<-|_>{name}]-epoch={epoch}-step={step}[-v{generation}].ckpt
  mp_rank_{tp:02d}/
    ~mp_rank:{name}.ckpt
  tp_rank_{tp:02d}_pp_rank_{pp:03d}/
    ~tp_rank:{name}.ckpt
  .
    called:<end|last|step|steps|every|interval|periodic|regular>-epoch={epoch}-step={step}[-v{generation}].ckpt
    checkpoint:[{prefix}-]epoch={epoch}-step={step}[-v{generation}].ckpt
  [{prefix}-]epoch={epoch}-[step={step}-]{name}/
    slashed:{name}={metric}[-v{generation}].ckpt
  .
    last:last[-v{generation}].ckpt ~named:{name}.ckpt
  {prefix}:v{generation}/
    ~artifact:model.ckpt
  [{prefix}-]epoch={epoch}-step={step}[-v{generation}].ckpt/
    metadata_sharded:.metadata rank_metadata_sharded:__{rank}.metadata
    data_sharded:__{rank}_{shard}.distcp prefixed_sharded:{name}__{rank}_{shard}.distcp
    meta_sharded:meta.pt
  [{prefix}-]epoch={epoch}-step={step}[-v{generation}].ckpt/checkpoint/
    model_deepspeed_sharded:mp_rank_{tp:02d}_model_states.pt
    zero3_deepspeed_sharded:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim_deepspeed_sharded:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer_deepspeed_sharded:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert_deepspeed_sharded:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim_deepspeed_sharded:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt
  [{prefix}-]epoch={epoch}-step={step}[-v{generation}].ckpt/
    tag_sharded:latest
  last[-v{generation}].ckpt/
    metadata_sharded_last:.metadata rank_metadata_sharded_last:__{rank}.metadata
    data_sharded_last:__{rank}_{shard}.distcp prefixed_sharded_last:{name}__{rank}_{shard}.distcp
    meta_sharded_last:meta.pt
  last[-v{generation}].ckpt/checkpoint/
    model_deepspeed_sharded_last:mp_rank_{tp:02d}_model_states.pt
    zero3_deepspeed_sharded_last:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim_deepspeed_sharded_last:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer_deepspeed_sharded_last:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert_deepspeed_sharded_last:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim_deepspeed_sharded_last:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt
  last[-v{generation}].ckpt/
    tag_sharded_last:latest
  <global_step|global_step_|step|step_|step-|checkpoint-|checkpoint_|iter_>{step}/checkpoint/
    model_deepspeed_fabric:mp_rank_{tp:02d}_model_states.pt
    zero3_deepspeed_fabric:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim_deepspeed_fabric:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer_deepspeed_fabric:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert_deepspeed_fabric:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim_deepspeed_fabric:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt
  .
    hpc:hpc_ckpt_{name}.ckpt on_exception:on_exception.ckpt

deepspeed_universal deepspeed-universal note:latest_universal
  global_step{step}_universal/zero/{name}/
    parameter:<fp32|exp_avg|exp_avg_sq|step>.pt
  global_step{step}_universal/zero/
    optimizer:optimizer_state.pt
  global_step{step}_universal/
    model:mp_rank_{tp:02d}_model_states.pt zero3:zero_pp_rank_0_mp_rank_{tp:02d}_model_states.pt
    zero3_others:zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    layer:layer_{layer:02d}-model_{tp:02d}-model_states.pt

deepspeed deepspeed note:latest stateless:zero_to_fp32.py stateless:zero_to_torch.py
  <global_step|global_step_|step|step_|step-|checkpoint-|checkpoint_|iter_>{step}/
    model:mp_rank_{tp:02d}_model_states.pt
    zero3:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt
  {name}/
    model_any:mp_rank_{tp:02d}_model_states.pt
    zero3_any:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt
    optim_any:[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt
    layer_any:layer_{layer:02d}[-model_{tp:02d}]-model_states.pt
    expert_any:[layer_{layer}_]expert_{expert}_mp_rank_{tp:02d}_model_states.pt
    expert_optim_any:expp_rank_{ep}_mp_rank_{tp:02d}_optim_states.pt

dlrover dlrover note:dlrover_latest.txt
  checkpoint-{step}/
    rank:rank_{rank}.pt
  {step}/
    rank_plain:rank_{rank}.pt
  .
    whole:checkpoint-{step}<.pt|.pth>
  ._dlrover_ckpt_stage/{step}.done/
    stage:{rank}

nvrx_local nvrx-local
  {node}/
    dirty:iter_{step:07d}_{rank}_local.dirty.pt dirty_end:iter_{step:07d}_{rank}_local.pt.dirty
    local:iter_{step:07d}_{rank}_local.pt

pytorch_sample pytorch-sample
  rank_{rank}/
    checkpoint:checkpoint.pth.tar model_best:model_best.pth.tar

composer composer
  .
    rank:ep{epoch}-ba{step}-rank{shard}.pt latest:latest-rank{shard}.pt
  ep{epoch}-ba{step}/
    metadata_sharded:.metadata rank_metadata_sharded:__{rank}.metadata
    data_sharded:__{rank}_{shard}.distcp prefixed_sharded:{name}__{rank}_{shard}.distcp

basicsr basicsr
  training_states/
    state:{step}.state
  models/
    network:net_{name}_{step}.pth latest:net_{name}_latest.pth

nanochat nanochat
  .
    optimizer:optim_{step:06d}_rank{rank}.pt model:model_{step:06d}.pt meta:meta_{step:06d}.json

timm timm
  .
    ~epoch:checkpoint-{epoch}.pth.tar ~last:last.pth.tar
    ~recovery:recovery-{epoch}-{step_in_epoch}.pth.tar ~best:model_best.pth.tar

fairseq fairseq
  .
    ~update_shard:checkpoint_{epoch}_{step}-shard{rank}.pt ~epoch_shard:checkpoint{epoch}-shard{rank}.pt
    ~last_shard:checkpoint_last-shard{rank}.pt ~best_shard:checkpoint_best-shard{rank}.pt
    ~best_of_shard:checkpoint.best_{name}-shard{rank}.pt ~update:checkpoint_{epoch}_{step}.pt
    ~epoch:checkpoint{epoch}.pt ~last:checkpoint_last.pt ~best:checkpoint_best.pt
    ~best_of:checkpoint.best_{name}.pt

fairseq2 fairseq2
  step_{step}/model/pp_{name}/tp_{name}/
    model:sdp_{shard:02d}.pt
  step_{step}/optimizer/pp_{name}/tp_{name}/
    optimizer:sdp_{shard:02d}.pt
  step_{step}/data_reader/
    data_reader:dp_{shard:02d}.pt
  step_{step}/trainer/
    trainer:rank_{shard:02d}.pt
  step_{step}.tmp/model/pp_{name}/tp_{name}/
    model_tmp:sdp_{shard:02d}.pt
  step_{step}.tmp/optimizer/pp_{name}/tp_{name}/
    optimizer_tmp:sdp_{shard:02d}.pt
  step_{step}.tmp/data_reader/
    data_reader_tmp:dp_{shard:02d}.pt
  step_{step}.tmp/trainer/
    trainer_tmp:rank_{shard:02d}.pt

mmengine mmengine note:last_checkpoint
  .
    ~iter:iter_{step}.pth ~epoch:epoch_{epoch}.pth ~best_iter:best_{name}_iter_{step}.pth
    ~best_epoch:best_{name}_epoch_{epoch}.pth

detectron2 detectron2 note:last_checkpoint
  .
    ~model:model_{step:07d}.pth ~final:model_final.pth

stable_baselines3 stable-baselines3
  .
    model:{prefix}_{step}_steps.zip replay_buffer:{prefix}_replay_buffer_{step}_steps.pkl
    vecnormalize:{prefix}_vecnormalize_{step}_steps.pkl ~best:best_model.zip

paddle_dist paddle-dist
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/
    metadata:{generation}.metadata distcp:{rank}_{generation}.distcp
    safetensors:{rank}_{generation}.safetensors
  {step}/
    metadata_number:{generation}.metadata distcp_number:{rank}_{generation}.distcp
    safetensors_number:{rank}_{generation}.safetensors
  <epoch-|epoch_|epoch=>{epoch}/
    metadata_epoch:{generation}.metadata distcp_epoch:{rank}_{generation}.distcp
    safetensors_epoch:{rank}_{generation}.safetensors
  {name}/
    metadata_any:{generation}.metadata distcp_any:{rank}_{generation}.distcp
    safetensors_any:{rank}_{generation}.safetensors

torchsnapshot torchsnapshot
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/
    metadata:.snapshot_metadata
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/batched/
    slab:{name}-{name}-{name}-{name}-{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/<0|replicated|sharded>/
    data1:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}/
    ?other1:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/<0|replicated|sharded>/{name}/
    data2:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}/{name}/
    ?other2:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/<0|replicated|sharded>/{name}/{name}/
    data3:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}/{name}/{name}/
    ?other3:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/<0|replicated|sharded>/{name}/{name}/{name}/
    data4:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}/{name}/{name}/{name}/
    ?other4:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/<0|replicated|sharded>/{name}/{name}/{name}/{name}/
    data5:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}/{name}/{name}/{name}/{name}/
    ?other5:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/<0|replicated|sharded>/{name}/{name}/{name}/{name}/{name}/
    data6:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}/{name}/{name}/{name}/{name}/{name}/
    ?other6:{name}
  <epoch-|epoch_|epoch=>{epoch}/
    metadata_epoch:.snapshot_metadata
  <epoch-|epoch_|epoch=>{epoch}/batched/
    slab_epoch:{name}-{name}-{name}-{name}-{name}
  <epoch-|epoch_|epoch=>{epoch}/<0|replicated|sharded>/
    data1_epoch:{name}
  <epoch-|epoch_|epoch=>{epoch}/{name}/
    ?other1_epoch:{name}
  <epoch-|epoch_|epoch=>{epoch}/<0|replicated|sharded>/{name}/
    data2_epoch:{name}
  <epoch-|epoch_|epoch=>{epoch}/{name}/{name}/
    ?other2_epoch:{name}
  <epoch-|epoch_|epoch=>{epoch}/<0|replicated|sharded>/{name}/{name}/
    data3_epoch:{name}
  <epoch-|epoch_|epoch=>{epoch}/{name}/{name}/{name}/
    ?other3_epoch:{name}
  <epoch-|epoch_|epoch=>{epoch}/<0|replicated|sharded>/{name}/{name}/{name}/
    data4_epoch:{name}
  <epoch-|epoch_|epoch=>{epoch}/{name}/{name}/{name}/{name}/
    ?other4_epoch:{name}
  <epoch-|epoch_|epoch=>{epoch}/<0|replicated|sharded>/{name}/{name}/{name}/{name}/
    data5_epoch:{name}
  <epoch-|epoch_|epoch=>{epoch}/{name}/{name}/{name}/{name}/{name}/
    ?other5_epoch:{name}
  <epoch-|epoch_|epoch=>{epoch}/<0|replicated|sharded>/{name}/{name}/{name}/{name}/{name}/
    data6_epoch:{name}
  <epoch-|epoch_|epoch=>{epoch}/{name}/{name}/{name}/{name}/{name}/{name}/
    ?other6_epoch:{name}
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/
    metadata_epoch_step:.snapshot_metadata
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/batched/
    slab_epoch_step:{name}-{name}-{name}-{name}-{name}
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/<0|replicated|sharded>/
    data1_epoch_step:{name}
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/{name}/
    ?other1_epoch_step:{name}
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/<0|replicated|sharded>/{name}/
    data2_epoch_step:{name}
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/{name}/{name}/
    ?other2_epoch_step:{name}
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/<0|replicated|sharded>/{name}/{name}/
    data3_epoch_step:{name}
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/{name}/{name}/{name}/
    ?other3_epoch_step:{name}
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/<0|replicated|sharded>/{name}/{name}/{name}/
    data4_epoch_step:{name}
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/{name}/{name}/{name}/{name}/
    ?other4_epoch_step:{name}
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/<0|replicated|sharded>/{name}/{name}/{name}/{name}/
    data5_epoch_step:{name}
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/{name}/{name}/{name}/{name}/{name}/
    ?other5_epoch_step:{name}
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/<0|replicated|sharded>/{name}/{name}/{name}/{name}/{name}/
    data6_epoch_step:{name}
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/{name}/{name}/{name}/{name}/{name}/{name}/
    ?other6_epoch_step:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/
    metadata_file:.snapshot_metadata
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/batched/
    slab_file:{name}-{name}-{name}-{name}-{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/<0|replicated|sharded>/
    data1_file:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/{name}/
    ?other1_file:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/<0|replicated|sharded>/{name}/
    data2_file:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/{name}/{name}/
    ?other2_file:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/<0|replicated|sharded>/{name}/{name}/
    data3_file:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/{name}/{name}/{name}/
    ?other3_file:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/<0|replicated|sharded>/{name}/{name}/{name}/
    data4_file:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/{name}/{name}/{name}/{name}/
    ?other4_file:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/<0|replicated|sharded>/{name}/{name}/{name}/{name}/
    data5_file:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/{name}/{name}/{name}/{name}/{name}/
    ?other5_file:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/<0|replicated|sharded>/{name}/{name}/{name}/{name}/{name}/
    data6_file:{name}
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/{name}/{name}/{name}/{name}/{name}/{name}/
    ?other6_file:{name}
  {name}/
    metadata_any:.snapshot_metadata
  {name}/batched/
    slab_any:{name}-{name}-{name}-{name}-{name}
  {name}/{name}/
    ?other1_any:{name}
  {name}/{name}/{name}/
    ?other2_any:{name}
  {name}/{name}/{name}/{name}/
    ?other3_any:{name}
  {name}/{name}/{name}/{name}/{name}/
    ?other4_any:{name}
  {name}/{name}/{name}/{name}/{name}/{name}/
    ?other5_any:{name}
  {name}/{name}/{name}/{name}/{name}/{name}/{name}/
    ?other6_any:{name}

dcp dcp note:dlrover_latest.txt
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{layer:010d}/
    numbered:__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{layer:010d}/<epoch_>{name}/
    numbered_deep:__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}/
    spread:__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}/<epoch_>{name}/
    spread_deep:__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/{layer:010d}/
    numbered_epoch:__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/{layer:010d}/<epoch_>{name}/
    numbered_deep_epoch:__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/{name}/
    spread_epoch:__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/{name}/<epoch_>{name}/
    spread_deep_epoch:__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/{layer:010d}/
    numbered_epoch_step:__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/{layer:010d}/<epoch_>{name}/
    numbered_deep_epoch_step:__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/{name}/
    spread_epoch_step:__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/{name}/<epoch_>{name}/
    spread_deep_epoch_step:__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/{layer:010d}/
    numbered_file:__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/{layer:010d}/<epoch_>{name}/
    numbered_deep_file:__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/{name}/
    spread_file:__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/{name}/<epoch_>{name}/
    spread_deep_file:__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/
    metadata:.metadata rank_metadata:__{rank}.metadata data:__{rank}_{shard}.distcp
    prefixed:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}/
    metadata_epoch:.metadata rank_metadata_epoch:__{rank}.metadata data_epoch:__{rank}_{shard}.distcp
    prefixed_epoch:{name}__{rank}_{shard}.distcp
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/
    metadata_epoch_step:.metadata rank_metadata_epoch_step:__{rank}.metadata
    data_epoch_step:__{rank}_{shard}.distcp prefixed_epoch_step:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/
    metadata_file:.metadata rank_metadata_file:__{rank}.metadata data_file:__{rank}_{shard}.distcp
    prefixed_file:{name}__{rank}_{shard}.distcp
  {name}/
    metadata_any:.metadata rank_metadata_any:__{rank}.metadata data_any:__{rank}_{shard}.distcp
    prefixed_any:{name}__{rank}_{shard}.distcp
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/
    meta:meta.pt
  <epoch-|epoch_|epoch=>{epoch}/
    meta_epoch:meta.pt
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/
    meta_epoch_step:meta.pt
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/
    meta_file:meta.pt
  {name}/
    meta_any:meta.pt
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/
    core:metadata.json common:common.pt
  <epoch-|epoch_|epoch=>{epoch}/
    core_epoch:metadata.json common_epoch:common.pt
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/
    core_epoch_step:metadata.json common_epoch_step:common.pt
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/
    core_file:metadata.json common_file:common.pt
  {name}/
    core_any:metadata.json common_any:common.pt
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/
    state:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>[[<_global|_dp>][<_|->][rank][<_|->]{shard}].<pt|pth>
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>/
    state_below:[<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>][<_global|_dp>][<_|->][rank][<_|->]{shard}.<pt|pth>
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/
    state_of_loop:metadata.pth told:<train_state|trainer_state>[_{shard}].json
  <epoch-|epoch_|epoch=>{epoch}/
    state_epoch:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>[[<_global|_dp>][<_|->][rank][<_|->]{shard}].<pt|pth>
  <epoch-|epoch_|epoch=>{epoch}/<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>/
    state_below_epoch:[<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>][<_global|_dp>][<_|->][rank][<_|->]{shard}.<pt|pth>
  <epoch-|epoch_|epoch=>{epoch}/
    state_of_loop_epoch:metadata.pth told_epoch:<train_state|trainer_state>[_{shard}].json
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/
    state_epoch_step:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>[[<_global|_dp>][<_|->][rank][<_|->]{shard}].<pt|pth>
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>/
    state_below_epoch_step:[<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>][<_global|_dp>][<_|->][rank][<_|->]{shard}.<pt|pth>
  <epoch-|epoch_|epoch=>{epoch}<_|-><step-|step_|step=|step>{step}/
    state_of_loop_epoch_step:metadata.pth told_epoch_step:<train_state|trainer_state>[_{shard}].json
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/
    state_file:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>[[<_global|_dp>][<_|->][rank][<_|->]{shard}].<pt|pth>
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>/
    state_below_file:[<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>][<_global|_dp>][<_|->][rank][<_|->]{shard}.<pt|pth>
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/{name}.<ckpt|pth|pt>/
    state_of_loop_file:metadata.pth told_file:<train_state|trainer_state>[_{shard}].json
  {name}/
    state_any:<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>[[<_global|_dp>][<_|->][rank][<_|->]{shard}].<pt|pth>
  {name}/<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>/
    state_below_any:[<extra_state|train_state|trainer_state|loader_state|dataloader|data_loader|rng|rng_state|rng_states|lr_scheduler|scheduler>][<_global|_dp>][<_|->][rank][<_|->]{shard}.<pt|pth>
  {name}/
    state_of_loop_any:metadata.pth told_any:<train_state|trainer_state>[_{shard}].json

dcp_hf dcp-hf
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/
    shard:shard-{node:05d}-{name}-{shard:05d}-of-{of:05d}.safetensors
  {step}/
    shard_number:shard-{node:05d}-{name}-{shard:05d}-of-{of:05d}.safetensors
  <epoch-|epoch_|epoch=>{epoch}/
    shard_epoch:shard-{node:05d}-{name}-{shard:05d}-of-{of:05d}.safetensors
  .
    shard_any:shard-{node:05d}-{name}-{shard:05d}-of-{of:05d}.safetensors

t5x t5x
  checkpoint_{step}.tmp-{name}/target.{name}/
    target_tmp:.zarray
  checkpoint_{step}.tmp-{name}/{name}/
    array_tmp:.zarray
  checkpoint_{step}.tmp-{name}/
    index_tmp:checkpoint
  checkpoint_{step}/target.{name}/
    target:.zarray
  checkpoint_{step}/{name}/
    array:.zarray
  checkpoint_{step}/
    index:checkpoint

levanter levanter
  <step|run>-{step}/_step/
    _step:.zarray
  <step|run>-{step}/training_key/
    key:.zarray
  <step|run>-{step}/model/{name}/{name}/
    model:.zarray
  <step|run>-{step}/{name}/
    array1:.zarray
  <step|run>-{step}/{name}/{name}/
    array2:.zarray
  <step|run>-{step}/{name}/{name}/{name}/
    array3:.zarray
  <step|run>-{step}/{name}/{name}/{name}/{name}/
    array4:.zarray
  <step|run>-{step}/{name}/{name}/{name}/{name}/{name}/
    array5:.zarray
  <step|run>-{step}/{name}/{name}/{name}/{name}/{name}/{name}/
    array6:.zarray
  <step|run>-{step}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/
    array7:.zarray
  <step|run>-{step}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/
    array8:.zarray
  <step|run>-{step}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/
    array9:.zarray
  <step|run>-{step}/
    metadata:metadata.json index:tensorstore_index.json structure:{name}_structure.json

axlearn axlearn
  step_{step:08d}/gda/{name}/
    array1:.zarray
  step_{step:08d}/gda/{name}/{name}/
    array2:.zarray
  step_{step:08d}/gda/{name}/{name}/{name}/
    array3:.zarray
  step_{step:08d}/gda/{name}/{name}/{name}/{name}/
    array4:.zarray
  step_{step:08d}/gda/{name}/{name}/{name}/{name}/{name}/
    array5:.zarray
  step_{step:08d}/gda/{name}/{name}/{name}/{name}/{name}/{name}/
    array6:.zarray
  step_{step:08d}/gda/{name}/{name}/{name}/{name}/{name}/{name}/{name}/
    array7:.zarray
  step_{step:08d}/gda/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/
    array8:.zarray
  step_{step:08d}/gda/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/
    array9:.zarray
  step_{step:08d}/gda/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/
    array10:.zarray
  step_{step:08d}/gda/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/
    array11:.zarray
  step_{step:08d}/gda/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/{name}/
    array12:.zarray
  step_{step:08d}/
    index:index

big_vision big-vision note:checkpoint.bv-LAST
  checkpoint.bv-{step:09d}/{name}/
    array:.zarray
  checkpoint.bv-{step:09d}-tmp/{name}/
    temporary:.zarray

orbax orbax
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/
    metadata_tmp:_CHECKPOINT_METADATA commit_tmp:commit_success.txt
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/ocdbt.process_{node}/
    process_tmp:manifest.ocdbt
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/ocdbt.process_{node}/
    item_process_tmp:manifest.ocdbt
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/
    metadata_word_tmp:_CHECKPOINT_METADATA commit_word_tmp:commit_success.txt
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/ocdbt.process_{node}/
    process_word_tmp:manifest.ocdbt
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/ocdbt.process_{node}/
    item_process_word_tmp:manifest.ocdbt
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/
    metadata_epoch_tmp:_CHECKPOINT_METADATA commit_epoch_tmp:commit_success.txt
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/ocdbt.process_{node}/
    process_epoch_tmp:manifest.ocdbt
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/ocdbt.process_{node}/
    item_process_epoch_tmp:manifest.ocdbt
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/
    metadata_prefix_tmp:_CHECKPOINT_METADATA commit_prefix_tmp:commit_success.txt
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/ocdbt.process_{node}/
    process_prefix_tmp:manifest.ocdbt
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/ocdbt.process_{node}/
    item_process_prefix_tmp:manifest.ocdbt
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}.orbax-checkpoint-tmp[-{name}]/
    item_any_tmp_word:_CHECKPOINT_METADATA
  epoch<-|_|=|>{epoch}/{name}.orbax-checkpoint-tmp[-{name}]/
    item_any_tmp_epoch:_CHECKPOINT_METADATA
  {name}.orbax-checkpoint-tmp[-{name}]/
    metadata_any_tmp:_CHECKPOINT_METADATA commit_any_tmp:commit_success.txt
  {name}.orbax-checkpoint-tmp[-{name}]/ocdbt.process_{node}/
    process_any_tmp:manifest.ocdbt
  {name}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/ocdbt.process_{node}/
    item_process_any_tmp:manifest.ocdbt
  <checkpoint_|step_|ckpt_|>{step}/
    metadata:_CHECKPOINT_METADATA commit:commit_success.txt
  <checkpoint_|step_|ckpt_|>{step}/ocdbt.process_{node}/
    process:manifest.ocdbt
  <checkpoint_|step_|ckpt_|>{step}/{name}/ocdbt.process_{node}/
    item_process:manifest.ocdbt
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/
    metadata_word:_CHECKPOINT_METADATA commit_word:commit_success.txt
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/ocdbt.process_{node}/
    process_word:manifest.ocdbt
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/ocdbt.process_{node}/
    item_process_word:manifest.ocdbt
  epoch<-|_|=|>{epoch}/
    metadata_epoch:_CHECKPOINT_METADATA commit_epoch:commit_success.txt
  epoch<-|_|=|>{epoch}/ocdbt.process_{node}/
    process_epoch:manifest.ocdbt
  epoch<-|_|=|>{epoch}/{name}/ocdbt.process_{node}/
    item_process_epoch:manifest.ocdbt
  {prefix}_{step}/
    metadata_prefix:_CHECKPOINT_METADATA commit_prefix:commit_success.txt
  {prefix}_{step}/ocdbt.process_{node}/
    process_prefix:manifest.ocdbt
  {prefix}_{step}/{name}/ocdbt.process_{node}/
    item_process_prefix:manifest.ocdbt
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/
    item_any_word:_CHECKPOINT_METADATA
  epoch<-|_|=|>{epoch}/{name}/
    item_any_epoch:_CHECKPOINT_METADATA
  {name}/
    metadata_any:_CHECKPOINT_METADATA commit_any:commit_success.txt
  {name}/ocdbt.process_{node}/
    process_any:manifest.ocdbt
  {name}/{name}/ocdbt.process_{node}/
    item_process_any:manifest.ocdbt
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/
    own_tree_tmp:_METADATA own_manifest_tmp:manifest.ocdbt own_sharding_tmp:_sharding
    own_strings_tmp:_strings.json
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/array_metadatas/
    own_arrays_tmp:process_{node}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/
    own_tree_word_tmp:_METADATA own_manifest_word_tmp:manifest.ocdbt own_sharding_word_tmp:_sharding
    own_strings_word_tmp:_strings.json
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/array_metadatas/
    own_arrays_word_tmp:process_{node}
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/
    own_tree_epoch_tmp:_METADATA own_manifest_epoch_tmp:manifest.ocdbt own_sharding_epoch_tmp:_sharding
    own_strings_epoch_tmp:_strings.json
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/array_metadatas/
    own_arrays_epoch_tmp:process_{node}
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/
    own_tree_prefix_tmp:_METADATA own_manifest_prefix_tmp:manifest.ocdbt own_sharding_prefix_tmp:_sharding
    own_strings_prefix_tmp:_strings.json
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/array_metadatas/
    own_arrays_prefix_tmp:process_{node}
  {name}.orbax-checkpoint-tmp[-{name}]/
    own_tree_any_tmp:_METADATA own_manifest_any_tmp:manifest.ocdbt own_sharding_any_tmp:_sharding
    own_strings_any_tmp:_strings.json
  {name}.orbax-checkpoint-tmp[-{name}]/array_metadatas/
    own_arrays_any_tmp:process_{node}
  <checkpoint_|step_|ckpt_|>{step}/
    own_tree:_METADATA own_manifest:manifest.ocdbt own_sharding:_sharding own_strings:_strings.json
  <checkpoint_|step_|ckpt_|>{step}/array_metadatas/
    own_arrays:process_{node}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/
    own_tree_word:_METADATA own_manifest_word:manifest.ocdbt own_sharding_word:_sharding
    own_strings_word:_strings.json
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/array_metadatas/
    own_arrays_word:process_{node}
  epoch<-|_|=|>{epoch}/
    own_tree_epoch:_METADATA own_manifest_epoch:manifest.ocdbt own_sharding_epoch:_sharding
    own_strings_epoch:_strings.json
  epoch<-|_|=|>{epoch}/array_metadatas/
    own_arrays_epoch:process_{node}
  {prefix}_{step}/
    own_tree_prefix:_METADATA own_manifest_prefix:manifest.ocdbt own_sharding_prefix:_sharding
    own_strings_prefix:_strings.json
  {prefix}_{step}/array_metadatas/
    own_arrays_prefix:process_{node}
  {name}/
    own_tree_any:_METADATA own_manifest_any:manifest.ocdbt own_sharding_any:_sharding
    own_strings_any:_strings.json
  {name}/array_metadatas/
    own_arrays_any:process_{node}
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    tree_tmp:_METADATA manifest_tmp:manifest.ocdbt sharding_tmp:_sharding strings_tmp:_strings.json
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/array_metadatas/
    arrays_tmp:process_{node}
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}[.orbax-checkpoint-tmp]/
    inner_tree_tmp:_METADATA inner_manifest_tmp:manifest.ocdbt inner_sharding_tmp:_sharding
    inner_strings_tmp:_strings.json
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}[.orbax-checkpoint-tmp]/array_metadatas/
    inner_arrays_tmp:process_{node}
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    item_commit_tmp:commit_success.txt json_tmp:metadata
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/<jax|np>_random_key[_metadata]/
    key_commit_tmp:commit_success.txt
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/<jax|np>_random_key_metadata/
    key_tmp:metadata
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    iterator_tmp:process_{name}-of-{name}.json
  <checkpoint_|step_|ckpt_|>{step}/{name}/
    tree:_METADATA manifest:manifest.ocdbt sharding:_sharding strings:_strings.json
  <checkpoint_|step_|ckpt_|>{step}/{name}/array_metadatas/
    arrays:process_{node}
  <checkpoint_|step_|ckpt_|>{step}/{name}/{name}/
    inner_tree:_METADATA inner_manifest:manifest.ocdbt inner_sharding:_sharding
    inner_strings:_strings.json
  <checkpoint_|step_|ckpt_|>{step}/{name}/{name}/array_metadatas/
    inner_arrays:process_{node}
  <checkpoint_|step_|ckpt_|>{step}/{name}/
    item_commit:commit_success.txt json:metadata
  <checkpoint_|step_|ckpt_|>{step}/{name}/<jax|np>_random_key[_metadata]/
    key_commit:commit_success.txt
  <checkpoint_|step_|ckpt_|>{step}/{name}/<jax|np>_random_key_metadata/
    key:metadata
  <checkpoint_|step_|ckpt_|>{step}/{name}/
    iterator:process_{name}-of-{name}.json
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    tree_word_tmp:_METADATA manifest_word_tmp:manifest.ocdbt sharding_word_tmp:_sharding
    strings_word_tmp:_strings.json
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/array_metadatas/
    arrays_word_tmp:process_{node}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}[.orbax-checkpoint-tmp]/
    inner_tree_word_tmp:_METADATA inner_manifest_word_tmp:manifest.ocdbt inner_sharding_word_tmp:_sharding
    inner_strings_word_tmp:_strings.json
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}[.orbax-checkpoint-tmp]/array_metadatas/
    inner_arrays_word_tmp:process_{node}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    item_commit_word_tmp:commit_success.txt json_word_tmp:metadata
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/<jax|np>_random_key[_metadata]/
    key_commit_word_tmp:commit_success.txt
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/<jax|np>_random_key_metadata/
    key_word_tmp:metadata
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    iterator_word_tmp:process_{name}-of-{name}.json
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    tree_epoch_tmp:_METADATA manifest_epoch_tmp:manifest.ocdbt sharding_epoch_tmp:_sharding
    strings_epoch_tmp:_strings.json
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/array_metadatas/
    arrays_epoch_tmp:process_{node}
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}[.orbax-checkpoint-tmp]/
    inner_tree_epoch_tmp:_METADATA inner_manifest_epoch_tmp:manifest.ocdbt
    inner_sharding_epoch_tmp:_sharding inner_strings_epoch_tmp:_strings.json
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}[.orbax-checkpoint-tmp]/array_metadatas/
    inner_arrays_epoch_tmp:process_{node}
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    item_commit_epoch_tmp:commit_success.txt json_epoch_tmp:metadata
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/<jax|np>_random_key[_metadata]/
    key_commit_epoch_tmp:commit_success.txt
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/<jax|np>_random_key_metadata/
    key_epoch_tmp:metadata
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    iterator_epoch_tmp:process_{name}-of-{name}.json
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    tree_prefix_tmp:_METADATA manifest_prefix_tmp:manifest.ocdbt sharding_prefix_tmp:_sharding
    strings_prefix_tmp:_strings.json
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/array_metadatas/
    arrays_prefix_tmp:process_{node}
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}[.orbax-checkpoint-tmp]/
    inner_tree_prefix_tmp:_METADATA inner_manifest_prefix_tmp:manifest.ocdbt
    inner_sharding_prefix_tmp:_sharding inner_strings_prefix_tmp:_strings.json
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}[.orbax-checkpoint-tmp]/array_metadatas/
    inner_arrays_prefix_tmp:process_{node}
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    item_commit_prefix_tmp:commit_success.txt json_prefix_tmp:metadata
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/<jax|np>_random_key[_metadata]/
    key_commit_prefix_tmp:commit_success.txt
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/<jax|np>_random_key_metadata/
    key_prefix_tmp:metadata
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    iterator_prefix_tmp:process_{name}-of-{name}.json
  {name}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    tree_any_tmp:_METADATA manifest_any_tmp:manifest.ocdbt sharding_any_tmp:_sharding
    strings_any_tmp:_strings.json
  {name}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/array_metadatas/
    arrays_any_tmp:process_{node}
  {name}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}[.orbax-checkpoint-tmp]/
    inner_tree_any_tmp:_METADATA inner_manifest_any_tmp:manifest.ocdbt inner_sharding_any_tmp:_sharding
    inner_strings_any_tmp:_strings.json
  {name}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}[.orbax-checkpoint-tmp]/array_metadatas/
    inner_arrays_any_tmp:process_{node}
  {name}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    item_commit_any_tmp:commit_success.txt json_any_tmp:metadata
  {name}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/<jax|np>_random_key[_metadata]/
    key_commit_any_tmp:commit_success.txt
  {name}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/<jax|np>_random_key_metadata/
    key_any_tmp:metadata
  {name}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    iterator_any_tmp:process_{name}-of-{name}.json
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/
    tree_word:_METADATA manifest_word:manifest.ocdbt sharding_word:_sharding strings_word:_strings.json
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/array_metadatas/
    arrays_word:process_{node}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/{name}/
    inner_tree_word:_METADATA inner_manifest_word:manifest.ocdbt inner_sharding_word:_sharding
    inner_strings_word:_strings.json
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/{name}/array_metadatas/
    inner_arrays_word:process_{node}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/
    item_commit_word:commit_success.txt json_word:metadata
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/<jax|np>_random_key[_metadata]/
    key_commit_word:commit_success.txt
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/<jax|np>_random_key_metadata/
    key_word:metadata
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/
    iterator_word:process_{name}-of-{name}.json
  epoch<-|_|=|>{epoch}/{name}/
    tree_epoch:_METADATA manifest_epoch:manifest.ocdbt sharding_epoch:_sharding
    strings_epoch:_strings.json
  epoch<-|_|=|>{epoch}/{name}/array_metadatas/
    arrays_epoch:process_{node}
  epoch<-|_|=|>{epoch}/{name}/{name}/
    inner_tree_epoch:_METADATA inner_manifest_epoch:manifest.ocdbt inner_sharding_epoch:_sharding
    inner_strings_epoch:_strings.json
  epoch<-|_|=|>{epoch}/{name}/{name}/array_metadatas/
    inner_arrays_epoch:process_{node}
  epoch<-|_|=|>{epoch}/{name}/
    item_commit_epoch:commit_success.txt json_epoch:metadata
  epoch<-|_|=|>{epoch}/{name}/<jax|np>_random_key[_metadata]/
    key_commit_epoch:commit_success.txt
  epoch<-|_|=|>{epoch}/{name}/<jax|np>_random_key_metadata/
    key_epoch:metadata
  epoch<-|_|=|>{epoch}/{name}/
    iterator_epoch:process_{name}-of-{name}.json
  {prefix}_{step}/{name}/
    tree_prefix:_METADATA manifest_prefix:manifest.ocdbt sharding_prefix:_sharding
    strings_prefix:_strings.json
  {prefix}_{step}/{name}/array_metadatas/
    arrays_prefix:process_{node}
  {prefix}_{step}/{name}/{name}/
    inner_tree_prefix:_METADATA inner_manifest_prefix:manifest.ocdbt inner_sharding_prefix:_sharding
    inner_strings_prefix:_strings.json
  {prefix}_{step}/{name}/{name}/array_metadatas/
    inner_arrays_prefix:process_{node}
  {prefix}_{step}/{name}/
    item_commit_prefix:commit_success.txt json_prefix:metadata
  {prefix}_{step}/{name}/<jax|np>_random_key[_metadata]/
    key_commit_prefix:commit_success.txt
  {prefix}_{step}/{name}/<jax|np>_random_key_metadata/
    key_prefix:metadata
  {prefix}_{step}/{name}/
    iterator_prefix:process_{name}-of-{name}.json
  {name}/{name}/
    tree_any:_METADATA manifest_any:manifest.ocdbt sharding_any:_sharding strings_any:_strings.json
  {name}/{name}/array_metadatas/
    arrays_any:process_{node}
  {name}/{name}/{name}/
    inner_tree_any:_METADATA inner_manifest_any:manifest.ocdbt inner_sharding_any:_sharding
    inner_strings_any:_strings.json
  {name}/{name}/{name}/array_metadatas/
    inner_arrays_any:process_{node}
  {name}/{name}/
    item_commit_any:commit_success.txt json_any:metadata
  {name}/{name}/<jax|np>_random_key[_metadata]/
    key_commit_any:commit_success.txt
  {name}/{name}/<jax|np>_random_key_metadata/
    key_any:metadata
  {name}/{name}/
    iterator_any:process_{name}-of-{name}.json
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/
    bare_tree_tmp:_METADATA
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/
    bare_tree_word_tmp:_METADATA
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/
    bare_tree_epoch_tmp:_METADATA
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/
    bare_tree_prefix_tmp:_METADATA
  {name}.orbax-checkpoint-tmp[-{name}]/
    bare_tree_any_tmp:_METADATA
  <checkpoint_|step_|ckpt_|>{step}/
    bare_tree:_METADATA
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/
    bare_tree_word:_METADATA
  epoch<-|_|=|>{epoch}/
    bare_tree_epoch:_METADATA
  {prefix}_{step}/
    bare_tree_prefix:_METADATA
  {name}/
    bare_tree_any:_METADATA
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    ?data1_tmp:{name}
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/
    ?data2_tmp:{name}
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/
    ?data3_tmp:{name}
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/{name}/
    ?data4_tmp:{name}
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/{name}/{name}/
    ?data5_tmp:{name}
  <checkpoint_|step_|ckpt_|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/{name}/{name}/{name}/
    ?data6_tmp:{name}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    ?data1_word_tmp:{name}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/
    ?data2_word_tmp:{name}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/
    ?data3_word_tmp:{name}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/{name}/
    ?data4_word_tmp:{name}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/{name}/{name}/
    ?data5_word_tmp:{name}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/{name}/{name}/{name}/
    ?data6_word_tmp:{name}
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    ?data1_epoch_tmp:{name}
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/
    ?data2_epoch_tmp:{name}
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/
    ?data3_epoch_tmp:{name}
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/{name}/
    ?data4_epoch_tmp:{name}
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/{name}/{name}/
    ?data5_epoch_tmp:{name}
  epoch<-|_|=|>{epoch}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/{name}/{name}/{name}/
    ?data6_epoch_tmp:{name}
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/
    ?data1_prefix_tmp:{name}
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/
    ?data2_prefix_tmp:{name}
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/
    ?data3_prefix_tmp:{name}
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/{name}/
    ?data4_prefix_tmp:{name}
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/{name}/{name}/
    ?data5_prefix_tmp:{name}
  {prefix}_{step}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/{name}/{name}/{name}/{name}/{name}/
    ?data6_prefix_tmp:{name}
  {name}.orbax-checkpoint-tmp[-{name}]/d/
    ?data1_any_tmp:{name}
  {name}.orbax-checkpoint-tmp[-{name}]/ocdbt.process_{node}/d/
    ?data2_any_tmp:{name}
  {name}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/d/
    ?data3_any_tmp:{name}
  {name}.orbax-checkpoint-tmp[-{name}]/{name}[.orbax-checkpoint-tmp]/ocdbt.process_{node}/d/
    ?data4_any_tmp:{name}
  <checkpoint_|step_|ckpt_|>{step}/{name}/
    ?data1:{name}
  <checkpoint_|step_|ckpt_|>{step}/{name}/{name}/
    ?data2:{name}
  <checkpoint_|step_|ckpt_|>{step}/{name}/{name}/{name}/
    ?data3:{name}
  <checkpoint_|step_|ckpt_|>{step}/{name}/{name}/{name}/{name}/
    ?data4:{name}
  <checkpoint_|step_|ckpt_|>{step}/{name}/{name}/{name}/{name}/{name}/
    ?data5:{name}
  <checkpoint_|step_|ckpt_|>{step}/{name}/{name}/{name}/{name}/{name}/{name}/
    ?data6:{name}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/
    ?data1_word:{name}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/{name}/
    ?data2_word:{name}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/{name}/{name}/
    ?data3_word:{name}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/{name}/{name}/{name}/
    ?data4_word:{name}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/{name}/{name}/{name}/{name}/
    ?data5_word:{name}
  <checkpoint|step|ckpt|global_step|iteration|iter><-|_|=|>{step}/{name}/{name}/{name}/{name}/{name}/{name}/
    ?data6_word:{name}
  epoch<-|_|=|>{epoch}/{name}/
    ?data1_epoch:{name}
  epoch<-|_|=|>{epoch}/{name}/{name}/
    ?data2_epoch:{name}
  epoch<-|_|=|>{epoch}/{name}/{name}/{name}/
    ?data3_epoch:{name}
  epoch<-|_|=|>{epoch}/{name}/{name}/{name}/{name}/
    ?data4_epoch:{name}
  epoch<-|_|=|>{epoch}/{name}/{name}/{name}/{name}/{name}/
    ?data5_epoch:{name}
  epoch<-|_|=|>{epoch}/{name}/{name}/{name}/{name}/{name}/{name}/
    ?data6_epoch:{name}
  {prefix}_{step}/{name}/
    ?data1_prefix:{name}
  {prefix}_{step}/{name}/{name}/
    ?data2_prefix:{name}
  {prefix}_{step}/{name}/{name}/{name}/
    ?data3_prefix:{name}
  {prefix}_{step}/{name}/{name}/{name}/{name}/
    ?data4_prefix:{name}
  {prefix}_{step}/{name}/{name}/{name}/{name}/{name}/
    ?data5_prefix:{name}
  {prefix}_{step}/{name}/{name}/{name}/{name}/{name}/{name}/
    ?data6_prefix:{name}
  {name}/d/
    ?data1_any:{name}
  {name}/ocdbt.process_{node}/d/
    ?data2_any:{name}
  {name}/{name}/d/
    ?data3_any:{name}
  {name}/{name}/ocdbt.process_{node}/d/
    ?data4_any:{name}

flax flax
  .
    ~file:checkpoint_{step} ~temporary:checkpoint_tmp

easylm easylm
  .
    train_state_milestone:streaming_train_state_{step} train_state:streaming_train_state
    params_milestone:streaming_params_{step} params:streaming_params metadata:metadata_{step}.pkl
    dataset:dataset_{step}.pkl

tensorflow tensorflow note:checkpoint unneeded:.meta+.index
  {prefix}-{generation}_temp/
    temp:{name}
  .
    index_epoch:{prefix}-{epoch:04d}.ckpt.index
    data_epoch:{prefix}-{epoch:04d}.ckpt.data-{shard:05d}-of-{of:05d} index:{prefix}-{generation}.index
    data:{prefix}-{generation}.data-{shard:05d}-of-{of:05d} ~index_alone:{prefix}.index

keras_shards keras-shards
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/
    index_step:{prefix}.weights.json shard_step:{prefix}_{shard:05d}.weights.h5
  {step}/
    index_number:{prefix}.weights.json shard_number:{prefix}_{shard:05d}.weights.h5
  <epoch-|epoch_|epoch=>{epoch}/
    index_epoch:{prefix}.weights.json shard_epoch:{prefix}_{shard:05d}.weights.h5
  .
    index_named:{prefix}<-|.|_>{epoch:02d}[-{name}].weights.json
    shard_named:{prefix}<-|.|_>{epoch:02d}[-{name}]_{shard:05d}.weights.h5
    index_word:[{prefix}<-|.|_>]<w|model|weights|weight|checkpoint|ckpt|cp|epoch|ep><-|.|_>{epoch}.weights.json
    shard_word:[{prefix}<-|.|_>]<w|model|weights|weight|checkpoint|ckpt|cp|epoch|ep><-|.|_>{epoch}_{shard:05d}.weights.h5
    index_any:{prefix}.weights.json shard_any:{prefix}_{shard:05d}.weights.h5

keras_backup keras-backup stateless:training_metadata.json.bkp
  .
    weights:latest.weights.h5 progress:training_metadata.json weights_before:latest.weights.h5.bkp

keras keras
  .
    model_measured:[{prefix}<-|.|_>]{epoch}<-|_>[{name}]{metric}.keras
    model_batch:{prefix}<-|.|_>{epoch:02d}<-|.|_>{step_in_epoch}.keras
    model:{prefix}<-|.|_>{epoch:02d}[-{name}].keras
    weights_measured:[{prefix}<-|.|_>]{epoch}<-|_>[{name}]{metric}.weights.h5
    weights_batch:{prefix}<-|.|_>{epoch:02d}<-|.|_>{step_in_epoch}.weights.h5
    weights:{prefix}<-|.|_>{epoch:02d}[-{name}].weights.h5
    h5_measured:[{prefix}<-|.|_>]{epoch}<-|_>[{name}]{metric}.h5
    h5_batch:{prefix}<-|.|_>{epoch:02d}<-|.|_>{step_in_epoch}.h5 h5:{prefix}<-|.|_>{epoch:02d}[-{name}].h5
    hdf5_measured:[{prefix}<-|.|_>]{epoch}<-|_>[{name}]{metric}.hdf5
    hdf5_batch:{prefix}<-|.|_>{epoch:02d}<-|.|_>{step_in_epoch}.hdf5
    hdf5:{prefix}<-|.|_>{epoch:02d}[-{name}].hdf5
    h5_word:[{prefix}<-|.|_>]<model|weights|weight|checkpoint|ckpt|cp|epoch|ep><-|.|_>{epoch}.h5
    hdf5_word:[{prefix}<-|.|_>]<model|weights|weight|checkpoint|ckpt|cp|epoch|ep><-|.|_>{epoch}.hdf5

gguf gguf
  .
    split:{prefix}-{shard:05d}-of-{of:05d}.gguf model:{prefix}.gguf

onnx onnx
  .
    model:{prefix}.onnx ?data:{prefix}.onnx<.data|_data>

saved_model saved-model
  {generation}/
    graph:saved_model.pb
  {generation}/variables/
    index:variables.index data:variables.data-{shard:05d}-of-{of:05d}
  {generation}/
    hashes:fingerprint.pb
  {generation}/assets/
    ?asset:{name}
  {name}/
    graph_named:saved_model.pb
  {name}/variables/
    index_named:variables.index data_named:variables.data-{shard:05d}-of-{of:05d}
  {name}/
    hashes_named:fingerprint.pb
  {name}/assets/
    ?asset_named:{name}

torchtune torchtune
  <recipe_state>/
    recipe:recipe_state.pt
  epoch_{epoch}/
    shard:model-{shard:05d}-of-{of:05d}.safetensors bin:model-{shard:05d}-of-{of:05d}.bin
    old:<hf|tune>_model_{shard:04d}_{name}.pt index:<model.safetensors|pytorch_model.bin>.index.json
    adapter:adapter_model.safetensors adapter_pt:adapter_model.<pt|bin>
    config:<config|generation_config|adapter_config|tokenizer|tokenizer_config>.json

speechbrain speechbrain
  CKPT+{name}/
    meta:CKPT.yaml brain:brain.ckpt counter:<counter|epoch_counter|epoch|epochs>.ckpt
    data:dataloader-{name}.ckpt model:<model|modules>.ckpt optimizer:<optimizer|opt>.ckpt
    state:{name}.ckpt

elements elements note:latest
  20{name}T{name}F{name}[-{step:012d}]/
    step:step.pkl replay:replay[_<train|eval>].pkl agent:agent.pkl shard:{name}-{shard:04d}.pkl
    state:{name}.pkl done:done

espnet espnet
  .
    best:<train|valid>.{name}.best.pth average:<train|valid>.{name}.ave.pth
    averaged:<train|valid>.{name}.ave_{shard}best[.{name}].pth weights:{epoch}epoch.pth latest:latest.pth
    checkpoint:checkpoint.pth

safetensors_set sharded-safetensors
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/
    index_step:{prefix}.safetensors.index.json shard_step:{prefix}-{shard:05d}-of-{of:05d}.safetensors
    index_bin_step:{prefix}.bin.index.json shard_bin_step:{prefix}-{shard:05d}-of-{of:05d}.bin
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/sharded/
    sharded_step:shard-{node:05d}-{prefix}-{shard:05d}-of-{of:05d}.safetensors
  {step}/
    index_number:{prefix}.safetensors.index.json shard_number:{prefix}-{shard:05d}-of-{of:05d}.safetensors
    index_bin_number:{prefix}.bin.index.json shard_bin_number:{prefix}-{shard:05d}-of-{of:05d}.bin
  {step}/sharded/
    sharded_number:shard-{node:05d}-{prefix}-{shard:05d}-of-{of:05d}.safetensors
  <epoch-|epoch_|epoch=>{epoch}/
    index_epoch:{prefix}.safetensors.index.json shard_epoch:{prefix}-{shard:05d}-of-{of:05d}.safetensors
    index_bin_epoch:{prefix}.bin.index.json shard_bin_epoch:{prefix}-{shard:05d}-of-{of:05d}.bin
  <epoch-|epoch_|epoch=>{epoch}/sharded/
    sharded_epoch:shard-{node:05d}-{prefix}-{shard:05d}-of-{of:05d}.safetensors
  .
    index:{prefix}.safetensors.index.json shard:{prefix}-{shard:05d}-of-{of:05d}.safetensors
    index_bin:{prefix}.bin.index.json shard_bin:{prefix}-{shard:05d}-of-{of:05d}.bin
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_|>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/
    optimizer:<optimizer|optimizer_state|optimizer_states|optim>.<pt|pth|bin>
    training:<training_state|train_state|trainer_state>.<pt|pth|bin>
    rest:<scheduler|lr_scheduler|scaler|rng_state|rng_states|random_states>.<pt|pth|bin>
  {step}/
    optimizer_number:<optimizer|optimizer_state|optimizer_states|optim>.<pt|pth|bin>
    training_number:<training_state|train_state|trainer_state>.<pt|pth|bin>
    rest_number:<scheduler|lr_scheduler|scaler|rng_state|rng_states|random_states>.<pt|pth|bin>
  <epoch-|epoch_|epoch=>{epoch}/
    optimizer_epoch:<optimizer|optimizer_state|optimizer_states|optim>.<pt|pth|bin>
    training_epoch:<training_state|train_state|trainer_state>.<pt|pth|bin>
    rest_epoch:<scheduler|lr_scheduler|scaler|rng_state|rng_states|random_states>.<pt|pth|bin>

numpy_steps numpy
  <step-|step_|step|global_step_|global_step|checkpoint-|checkpoint_|iter_|iteration_|ckpt-|ckpt_>{step}[<_ckp|_ckpt|_checkpoint|-ckpt|-checkpoint>]/
    ~npy:{name}.npy ~npz:{name}.npz
  <epoch-|epoch_|epoch=>{epoch}/
    ~npy_epoch:{name}.npy ~npz_epoch:{name}.npz

torch_checkpointing torch-checkpointing
  [<global_step|step|iteration|iter|checkpoint|ckpt>[<_|-|=>]]{step}/
    model:<model|weights|state_dict>_{rank}.pt optimizer:<optimizer|optimizers|optim|opt>_{rank}.pt
    scheduler:<lr_scheduler|scheduler>_{rank}.pt data:<dataloader|data>_{rank}.pt
    rng:<rng|rng_state>_{rank}.pt state:<step|train_state|trainer_state|trainer>_{rank}.pt
    other:{name}_{rank}.pt metadata:metadata.pkl
  tmp_[<global_step|step|iteration|iter|checkpoint|ckpt>[<_|-|=>]]{step}/
    model_begun:<model|weights|state_dict>_{rank}.pt
    optimizer_begun:<optimizer|optimizers|optim|opt>_{rank}.pt
    scheduler_begun:<lr_scheduler|scheduler>_{rank}.pt data_begun:<dataloader|data>_{rank}.pt
    rng_begun:<rng|rng_state>_{rank}.pt state_begun:<step|train_state|trainer_state|trainer>_{rank}.pt
    other_begun:{name}_{rank}.pt metadata_begun:metadata.pkl
  <epoch|ep>[<_|-|=>]{epoch}/
    model_epoch:<model|weights|state_dict>_{rank}.pt
    optimizer_epoch:<optimizer|optimizers|optim|opt>_{rank}.pt
    scheduler_epoch:<lr_scheduler|scheduler>_{rank}.pt data_epoch:<dataloader|data>_{rank}.pt
    rng_epoch:<rng|rng_state>_{rank}.pt state_epoch:<step|train_state|trainer_state|trainer>_{rank}.pt
    other_epoch:{name}_{rank}.pt metadata_epoch:metadata.pkl
  tmp_<epoch|ep>[<_|-|=>]{epoch}/
    model_epoch_begun:<model|weights|state_dict>_{rank}.pt
    optimizer_epoch_begun:<optimizer|optimizers|optim|opt>_{rank}.pt
    scheduler_epoch_begun:<lr_scheduler|scheduler>_{rank}.pt data_epoch_begun:<dataloader|data>_{rank}.pt
    rng_epoch_begun:<rng|rng_state>_{rank}.pt
    state_epoch_begun:<step|train_state|trainer_state|trainer>_{rank}.pt
    other_epoch_begun:{name}_{rank}.pt metadata_epoch_begun:metadata.pkl

rank_files rank-files
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/
    model:[<model|weights|state_dict|model_state|model_states|pytorch_model>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><model|weights|state_dict|model_state|model_states|pytorch_model>].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_model:<model|weights|state_dict|model_state|model_states|pytorch_model>.<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/<model|weights|state_dict|model_state|model_states|pytorch_model>/
    below_model:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/
    shared_model:<model|weights|state_dict|model_state|model_states|pytorch_model>.<pt|pth|bin|ckpt|safetensors>
    optimizer:[<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_optimizer:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>.<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>/
    below_optimizer:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/
    shared_optimizer:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>.<pt|pth|bin|ckpt|safetensors>
    scheduler:[<scheduler|lr_scheduler|sched>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><scheduler|lr_scheduler|sched>].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_scheduler:<scheduler|lr_scheduler|sched>.<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/<scheduler|lr_scheduler|sched>/
    below_scheduler:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/
    shared_scheduler:<scheduler|lr_scheduler|sched>.<pt|pth|bin|ckpt|safetensors>
    rng:[<rng|rng_state|rng_states|random_state|random_states>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><rng|rng_state|rng_states|random_state|random_states>].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_rng:<rng|rng_state|rng_states|random_state|random_states>.<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/<rng|rng_state|rng_states|random_state|random_states>/
    below_rng:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/
    shared_rng:<rng|rng_state|rng_states|random_state|random_states>.<pt|pth|bin|ckpt|safetensors>
    state:[<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_state:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>.<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>/
    below_state:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/
    shared_state:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>.<pt|pth|bin|ckpt|safetensors>
    data:[<data|dataloader|loader|sampler|dataset>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><data|dataloader|loader|sampler|dataset>].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_data:<data|dataloader|loader|sampler|dataset>.<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/<data|dataloader|loader|sampler|dataset>/
    below_data:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/
    shared_data:<data|dataloader|loader|sampler|dataset>.<pt|pth|bin|ckpt|safetensors>
    ema:[<ema|ema_model|model_ema>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><ema|ema_model|model_ema>].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_ema:<ema|ema_model|model_ema>.<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/<ema|ema_model|model_ema>/
    below_ema:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/
    shared_ema:<ema|ema_model|model_ema>.<pt|pth|bin|ckpt|safetensors>
    scaler:[<scaler|grad_scaler>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><scaler|grad_scaler>].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_scaler:<scaler|grad_scaler>.<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/<scaler|grad_scaler>/
    below_scaler:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  [<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]]{step}/
    shared_scaler:<scaler|grad_scaler>.<pt|pth|bin|ckpt|safetensors> other:{name}.<pt|pth|bin>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/
    model_epoch:[<model|weights|state_dict|model_state|model_states|pytorch_model>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><model|weights|state_dict|model_state|model_states|pytorch_model>].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_model_epoch:<model|weights|state_dict|model_state|model_states|pytorch_model>.<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/<model|weights|state_dict|model_state|model_states|pytorch_model>/
    below_model_epoch:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/
    shared_model_epoch:<model|weights|state_dict|model_state|model_states|pytorch_model>.<pt|pth|bin|ckpt|safetensors>
    optimizer_epoch:[<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_optimizer_epoch:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>.<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>/
    below_optimizer_epoch:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/
    shared_optimizer_epoch:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>.<pt|pth|bin|ckpt|safetensors>
    scheduler_epoch:[<scheduler|lr_scheduler|sched>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><scheduler|lr_scheduler|sched>].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_scheduler_epoch:<scheduler|lr_scheduler|sched>.<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/<scheduler|lr_scheduler|sched>/
    below_scheduler_epoch:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/
    shared_scheduler_epoch:<scheduler|lr_scheduler|sched>.<pt|pth|bin|ckpt|safetensors>
    rng_epoch:[<rng|rng_state|rng_states|random_state|random_states>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><rng|rng_state|rng_states|random_state|random_states>].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_rng_epoch:<rng|rng_state|rng_states|random_state|random_states>.<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/<rng|rng_state|rng_states|random_state|random_states>/
    below_rng_epoch:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/
    shared_rng_epoch:<rng|rng_state|rng_states|random_state|random_states>.<pt|pth|bin|ckpt|safetensors>
    state_epoch:[<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_state_epoch:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>.<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>/
    below_state_epoch:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/
    shared_state_epoch:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>.<pt|pth|bin|ckpt|safetensors>
    data_epoch:[<data|dataloader|loader|sampler|dataset>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><data|dataloader|loader|sampler|dataset>].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_data_epoch:<data|dataloader|loader|sampler|dataset>.<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/<data|dataloader|loader|sampler|dataset>/
    below_data_epoch:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/
    shared_data_epoch:<data|dataloader|loader|sampler|dataset>.<pt|pth|bin|ckpt|safetensors>
    ema_epoch:[<ema|ema_model|model_ema>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><ema|ema_model|model_ema>].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_ema_epoch:<ema|ema_model|model_ema>.<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/<ema|ema_model|model_ema>/
    below_ema_epoch:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/
    shared_ema_epoch:<ema|ema_model|model_ema>.<pt|pth|bin|ckpt|safetensors>
    scaler_epoch:[<scaler|grad_scaler>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><scaler|grad_scaler>].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_scaler_epoch:<scaler|grad_scaler>.<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/<scaler|grad_scaler>/
    below_scaler_epoch:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  <epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}[<_|-><step|iter>[<_|-|=>]{step}]/
    shared_scaler_epoch:<scaler|grad_scaler>.<pt|pth|bin|ckpt|safetensors> other_epoch:{name}.<pt|pth|bin>
  checkpoint_20{name}_{name}-{metric}/
    model_dated:[<model|weights|state_dict|model_state|model_states|pytorch_model>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><model|weights|state_dict|model_state|model_states|pytorch_model>].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_model_dated:<model|weights|state_dict|model_state|model_states|pytorch_model>.<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/<model|weights|state_dict|model_state|model_states|pytorch_model>/
    below_model_dated:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/
    shared_model_dated:<model|weights|state_dict|model_state|model_states|pytorch_model>.<pt|pth|bin|ckpt|safetensors>
    optimizer_dated:[<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_optimizer_dated:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>.<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>/
    below_optimizer_dated:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/
    shared_optimizer_dated:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>.<pt|pth|bin|ckpt|safetensors>
    scheduler_dated:[<scheduler|lr_scheduler|sched>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><scheduler|lr_scheduler|sched>].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_scheduler_dated:<scheduler|lr_scheduler|sched>.<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/<scheduler|lr_scheduler|sched>/
    below_scheduler_dated:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/
    shared_scheduler_dated:<scheduler|lr_scheduler|sched>.<pt|pth|bin|ckpt|safetensors>
    rng_dated:[<rng|rng_state|rng_states|random_state|random_states>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><rng|rng_state|rng_states|random_state|random_states>].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_rng_dated:<rng|rng_state|rng_states|random_state|random_states>.<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/<rng|rng_state|rng_states|random_state|random_states>/
    below_rng_dated:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/
    shared_rng_dated:<rng|rng_state|rng_states|random_state|random_states>.<pt|pth|bin|ckpt|safetensors>
    state_dated:[<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_state_dated:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>.<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>/
    below_state_dated:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/
    shared_state_dated:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>.<pt|pth|bin|ckpt|safetensors>
    data_dated:[<data|dataloader|loader|sampler|dataset>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><data|dataloader|loader|sampler|dataset>].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_data_dated:<data|dataloader|loader|sampler|dataset>.<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/<data|dataloader|loader|sampler|dataset>/
    below_data_dated:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/
    shared_data_dated:<data|dataloader|loader|sampler|dataset>.<pt|pth|bin|ckpt|safetensors>
    ema_dated:[<ema|ema_model|model_ema>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><ema|ema_model|model_ema>].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_ema_dated:<ema|ema_model|model_ema>.<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/<ema|ema_model|model_ema>/
    below_ema_dated:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/
    shared_ema_dated:<ema|ema_model|model_ema>.<pt|pth|bin|ckpt|safetensors>
    scaler_dated:[<scaler|grad_scaler>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><scaler|grad_scaler>].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_scaler_dated:<scaler|grad_scaler>.<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/<scaler|grad_scaler>/
    below_scaler_dated:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  checkpoint_20{name}_{name}-{metric}/
    shared_scaler_dated:<scaler|grad_scaler>.<pt|pth|bin|ckpt|safetensors> other_dated:{name}.<pt|pth|bin>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/
    model_named:[<model|weights|state_dict|model_state|model_states|pytorch_model>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><model|weights|state_dict|model_state|model_states|pytorch_model>].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_model_named:<model|weights|state_dict|model_state|model_states|pytorch_model>.<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/<model|weights|state_dict|model_state|model_states|pytorch_model>/
    below_model_named:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/
    shared_model_named:<model|weights|state_dict|model_state|model_states|pytorch_model>.<pt|pth|bin|ckpt|safetensors>
    optimizer_named:[<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_optimizer_named:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>.<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>/
    below_optimizer_named:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/
    shared_optimizer_named:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>.<pt|pth|bin|ckpt|safetensors>
    scheduler_named:[<scheduler|lr_scheduler|sched>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><scheduler|lr_scheduler|sched>].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_scheduler_named:<scheduler|lr_scheduler|sched>.<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/<scheduler|lr_scheduler|sched>/
    below_scheduler_named:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/
    shared_scheduler_named:<scheduler|lr_scheduler|sched>.<pt|pth|bin|ckpt|safetensors>
    rng_named:[<rng|rng_state|rng_states|random_state|random_states>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><rng|rng_state|rng_states|random_state|random_states>].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_rng_named:<rng|rng_state|rng_states|random_state|random_states>.<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/<rng|rng_state|rng_states|random_state|random_states>/
    below_rng_named:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/
    shared_rng_named:<rng|rng_state|rng_states|random_state|random_states>.<pt|pth|bin|ckpt|safetensors>
    state_named:[<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_state_named:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>.<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>/
    below_state_named:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/
    shared_state_named:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>.<pt|pth|bin|ckpt|safetensors>
    data_named:[<data|dataloader|loader|sampler|dataset>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><data|dataloader|loader|sampler|dataset>].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_data_named:<data|dataloader|loader|sampler|dataset>.<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/<data|dataloader|loader|sampler|dataset>/
    below_data_named:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/
    shared_data_named:<data|dataloader|loader|sampler|dataset>.<pt|pth|bin|ckpt|safetensors>
    ema_named:[<ema|ema_model|model_ema>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><ema|ema_model|model_ema>].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_ema_named:<ema|ema_model|model_ema>.<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/<ema|ema_model|model_ema>/
    below_ema_named:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/
    shared_ema_named:<ema|ema_model|model_ema>.<pt|pth|bin|ckpt|safetensors>
    scaler_named:[<scaler|grad_scaler>[<_|-|.>]]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}][<_|-|.><scaler|grad_scaler>].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]/
    inner_scaler_named:<scaler|grad_scaler>.<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/<scaler|grad_scaler>/
    below_scaler_named:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
  {prefix}<-|_><step|global_step|iter>[<_|-|=>]{step}/
    shared_scaler_named:<scaler|grad_scaler>.<pt|pth|bin|ckpt|safetensors> other_named:{name}.<pt|pth|bin>
  <global_step|step|iter|iteration>[<_|-|=>]{step}/
    counted:checkpoint_{rank}.pt
  {step}/
    place:weights_tp_rank_world_size={tp}_{name}_pp_rank_world_size={pp}_{name}.pth
  .
    flat_model:[<model|weights|state_dict|model_state|model_states|pytorch_model><_|-|.>]<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_model:[<model|weights|state_dict|model_state|model_states|pytorch_model><_|-|.>]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    between_model:<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.>[<model|weights|state_dict|model_state|model_states|pytorch_model><_|-|.>]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    plain_model:<model|weights|state_dict|model_state|model_states|pytorch_model><_|-|.>{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_model:<model|weights|state_dict|model_state|model_states|pytorch_model><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    plain_once_model:<model|weights|state_dict|model_state|model_states|pytorch_model><_|-|.>{step}.<pt|pth|bin|ckpt|safetensors>
    flat_optimizer:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_optimizer:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    between_optimizer:<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.><optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    plain_optimizer:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states><_|-|.>{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_optimizer:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    plain_once_optimizer:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states><_|-|.>{step}.<pt|pth|bin|ckpt|safetensors>
    flat_scheduler:<scheduler|lr_scheduler|sched><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_scheduler:<scheduler|lr_scheduler|sched><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    between_scheduler:<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.><scheduler|lr_scheduler|sched><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    plain_scheduler:<scheduler|lr_scheduler|sched><_|-|.>{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_scheduler:<scheduler|lr_scheduler|sched><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    plain_once_scheduler:<scheduler|lr_scheduler|sched><_|-|.>{step}.<pt|pth|bin|ckpt|safetensors>
    flat_rng:<rng|rng_state|rng_states|random_state|random_states><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_rng:<rng|rng_state|rng_states|random_state|random_states><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    between_rng:<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.><rng|rng_state|rng_states|random_state|random_states><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    plain_rng:<rng|rng_state|rng_states|random_state|random_states><_|-|.>{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_rng:<rng|rng_state|rng_states|random_state|random_states><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    plain_once_rng:<rng|rng_state|rng_states|random_state|random_states><_|-|.>{step}.<pt|pth|bin|ckpt|safetensors>
    flat_state:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_state:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    between_state:<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.><state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    plain_state:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata><_|-|.>{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_state:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    plain_once_state:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata><_|-|.>{step}.<pt|pth|bin|ckpt|safetensors>
    flat_data:<data|dataloader|loader|sampler|dataset><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_data:<data|dataloader|loader|sampler|dataset><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    between_data:<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.><data|dataloader|loader|sampler|dataset><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    plain_data:<data|dataloader|loader|sampler|dataset><_|-|.>{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_data:<data|dataloader|loader|sampler|dataset><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    plain_once_data:<data|dataloader|loader|sampler|dataset><_|-|.>{step}.<pt|pth|bin|ckpt|safetensors>
    flat_ema:<ema|ema_model|model_ema><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_ema:<ema|ema_model|model_ema><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    between_ema:<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.><ema|ema_model|model_ema><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    plain_ema:<ema|ema_model|model_ema><_|-|.>{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_ema:<ema|ema_model|model_ema><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    plain_once_ema:<ema|ema_model|model_ema><_|-|.>{step}.<pt|pth|bin|ckpt|safetensors>
    flat_scaler:<scaler|grad_scaler><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_scaler:<scaler|grad_scaler><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    between_scaler:<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}<_|-|.><scaler|grad_scaler><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    plain_scaler:<scaler|grad_scaler><_|-|.>{step}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_scaler:<scaler|grad_scaler><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    plain_once_scaler:<scaler|grad_scaler><_|-|.>{step}.<pt|pth|bin|ckpt|safetensors>
    flat_model_epoch:[<model|weights|state_dict|model_state|model_states|pytorch_model><_|-|.>]<epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_model_epoch:[<model|weights|state_dict|model_state|model_states|pytorch_model><_|-|.>]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    between_model_epoch:<epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.>[<model|weights|state_dict|model_state|model_states|pytorch_model><_|-|.>]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_model_epoch:<model|weights|state_dict|model_state|model_states|pytorch_model><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    flat_optimizer_epoch:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_optimizer_epoch:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    between_optimizer_epoch:<epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.><optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_optimizer_epoch:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    flat_scheduler_epoch:<scheduler|lr_scheduler|sched><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_scheduler_epoch:<scheduler|lr_scheduler|sched><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    between_scheduler_epoch:<epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.><scheduler|lr_scheduler|sched><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_scheduler_epoch:<scheduler|lr_scheduler|sched><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    flat_rng_epoch:<rng|rng_state|rng_states|random_state|random_states><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_rng_epoch:<rng|rng_state|rng_states|random_state|random_states><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    between_rng_epoch:<epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.><rng|rng_state|rng_states|random_state|random_states><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_rng_epoch:<rng|rng_state|rng_states|random_state|random_states><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    flat_state_epoch:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_state_epoch:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    between_state_epoch:<epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.><state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_state_epoch:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    flat_data_epoch:<data|dataloader|loader|sampler|dataset><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_data_epoch:<data|dataloader|loader|sampler|dataset><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    between_data_epoch:<epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.><data|dataloader|loader|sampler|dataset><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_data_epoch:<data|dataloader|loader|sampler|dataset><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    flat_ema_epoch:<ema|ema_model|model_ema><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_ema_epoch:<ema|ema_model|model_ema><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    between_ema_epoch:<epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.><ema|ema_model|model_ema><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_ema_epoch:<ema|ema_model|model_ema><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    flat_scaler_epoch:<scaler|grad_scaler><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    turned_scaler_epoch:<scaler|grad_scaler><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    between_scaler_epoch:<epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}<_|-|.><scaler|grad_scaler><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    once_scaler_epoch:<scaler|grad_scaler><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
  rank[<_|->]{rank}/
    own_model:[<model|weights|state_dict|model_state|model_states|pytorch_model><_|-|.>]<global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    own_model_epoch:[<model|weights|state_dict|model_state|model_states|pytorch_model><_|-|.>]<epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    own_optimizer:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    own_optimizer_epoch:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    own_scheduler:<scheduler|lr_scheduler|sched><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    own_scheduler_epoch:<scheduler|lr_scheduler|sched><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    own_rng:<rng|rng_state|rng_states|random_state|random_states><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    own_rng_epoch:<rng|rng_state|rng_states|random_state|random_states><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    own_state:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    own_state_epoch:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    own_data:<data|dataloader|loader|sampler|dataset><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    own_data_epoch:<data|dataloader|loader|sampler|dataset><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    own_ema:<ema|ema_model|model_ema><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    own_ema_epoch:<ema|ema_model|model_ema><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
    own_scaler:<scaler|grad_scaler><_|-|.><global_step|global-step|step|iteration|iter|it|checkpoint|ckpt|model_step|checkpoint_step|ckpt_step>[<_|-|=>]{step}.<pt|pth|bin|ckpt|safetensors>
    own_scaler_epoch:<scaler|grad_scaler><_|-|.><epoch|ep|checkpoint_epoch|ckpt_epoch>[<_|-|=>]{epoch}.<pt|pth|bin|ckpt|safetensors>
  .
    over_model:[<model|weights|state_dict|model_state|model_states|pytorch_model><_|-|.>]rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    over_model_turned:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><model|weights|state_dict|model_state|model_states|pytorch_model>.<pt|pth|bin|ckpt|safetensors>
    over_optimizer:<optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    over_optimizer_turned:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><optimizer|optim|opt|optimizer_state|optimizer_states|optim_state|optim_states>.<pt|pth|bin|ckpt|safetensors>
    over_scheduler:<scheduler|lr_scheduler|sched><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    over_scheduler_turned:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><scheduler|lr_scheduler|sched>.<pt|pth|bin|ckpt|safetensors>
    over_rng:<rng|rng_state|rng_states|random_state|random_states><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    over_rng_turned:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><rng|rng_state|rng_states|random_state|random_states>.<pt|pth|bin|ckpt|safetensors>
    over_state:<state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    over_state_turned:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><state|states|train|trainer|train_state|trainer_state|training_state|extra_state|extra|meta|metadata>.<pt|pth|bin|ckpt|safetensors>
    over_data:<data|dataloader|loader|sampler|dataset><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    over_data_turned:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><data|dataloader|loader|sampler|dataset>.<pt|pth|bin|ckpt|safetensors>
    over_ema:<ema|ema_model|model_ema><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    over_ema_turned:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><ema|ema_model|model_ema>.<pt|pth|bin|ckpt|safetensors>
    over_scaler:<scaler|grad_scaler><_|-|.>rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}].<pt|pth|bin|ckpt|safetensors>
    over_scaler_turned:rank[<_|->]{rank}[<_of_|-of-|_world_|_world_size_|_ws>{world}]<_|-|.><scaler|grad_scaler>.<pt|pth|bin|ckpt|safetensors>

ray ray note:checkpoint_manager_snapshot.json
  checkpoint_{generation:06d}/checkpoint/
    trainer_state:trainer_state.json rng:rng_state.pth rng_{rank}:rng_state_{rank}.pth
  checkpoint_20{name}_{name}-{metric}/checkpoint/
    trainer_state_dated:trainer_state.json rng_dated:rng_state.pth rng_{rank}_dated:rng_state_{rank}.pth
  checkpoint_{generation:06d}/
    torch:{name}.<pt|pth|pth.tar|ckpt|bin>
  checkpoint_{generation:06d}/{name}/
    torch_1:{name}.<pt|pth|pth.tar|ckpt|bin>
  checkpoint_{generation:06d}/{name}/{name}/
    torch_2:{name}.<pt|pth|pth.tar|ckpt|bin>
  checkpoint_{generation:06d}/{name}/{name}/{name}/
    torch_3:{name}.<pt|pth|pth.tar|ckpt|bin>
  checkpoint_{generation:06d}/{name}/{name}/{name}/{name}/
    torch_4:{name}.<pt|pth|pth.tar|ckpt|bin>
  checkpoint_{generation:06d}/{name}/{name}/{name}/{name}/{name}/
    torch_5:{name}.<pt|pth|pth.tar|ckpt|bin>
  checkpoint_20{name}_{name}-{metric}/
    torch_dated:{name}.<pt|pth|pth.tar|ckpt|bin>
  checkpoint_20{name}_{name}-{metric}/{name}/
    torch_1_dated:{name}.<pt|pth|pth.tar|ckpt|bin>
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/
    torch_2_dated:{name}.<pt|pth|pth.tar|ckpt|bin>
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/{name}/
    torch_3_dated:{name}.<pt|pth|pth.tar|ckpt|bin>
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/{name}/{name}/
    torch_4_dated:{name}.<pt|pth|pth.tar|ckpt|bin>
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/{name}/{name}/{name}/
    torch_5_dated:{name}.<pt|pth|pth.tar|ckpt|bin>
  checkpoint_{generation:06d}/
    pickle_maker:class_and_ctor_args.pkl pickle:{name}.pkl
  checkpoint_{generation:06d}/{name}/
    pickle_1_maker:class_and_ctor_args.pkl pickle_1:{name}.pkl
  checkpoint_{generation:06d}/{name}/{name}/
    pickle_2_maker:class_and_ctor_args.pkl pickle_2:{name}.pkl
  checkpoint_{generation:06d}/{name}/{name}/{name}/
    pickle_3_maker:class_and_ctor_args.pkl pickle_3:{name}.pkl
  checkpoint_{generation:06d}/{name}/{name}/{name}/{name}/
    pickle_4_maker:class_and_ctor_args.pkl pickle_4:{name}.pkl
  checkpoint_{generation:06d}/{name}/{name}/{name}/{name}/{name}/
    pickle_5_maker:class_and_ctor_args.pkl pickle_5:{name}.pkl
  checkpoint_20{name}_{name}-{metric}/
    pickle_dated_maker:class_and_ctor_args.pkl pickle_dated:{name}.pkl
  checkpoint_20{name}_{name}-{metric}/{name}/
    pickle_1_dated_maker:class_and_ctor_args.pkl pickle_1_dated:{name}.pkl
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/
    pickle_2_dated_maker:class_and_ctor_args.pkl pickle_2_dated:{name}.pkl
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/{name}/
    pickle_3_dated_maker:class_and_ctor_args.pkl pickle_3_dated:{name}.pkl
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/{name}/{name}/
    pickle_4_dated_maker:class_and_ctor_args.pkl pickle_4_dated:{name}.pkl
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/{name}/{name}/{name}/
    pickle_5_dated_maker:class_and_ctor_args.pkl pickle_5_dated:{name}.pkl
  checkpoint_{generation:06d}/
    tensors:{name}.safetensors
  checkpoint_{generation:06d}/{name}/
    tensors_1:{name}.safetensors
  checkpoint_{generation:06d}/{name}/{name}/
    tensors_2:{name}.safetensors
  checkpoint_{generation:06d}/{name}/{name}/{name}/
    tensors_3:{name}.safetensors
  checkpoint_{generation:06d}/{name}/{name}/{name}/{name}/
    tensors_4:{name}.safetensors
  checkpoint_{generation:06d}/{name}/{name}/{name}/{name}/{name}/
    tensors_5:{name}.safetensors
  checkpoint_20{name}_{name}-{metric}/
    tensors_dated:{name}.safetensors
  checkpoint_20{name}_{name}-{metric}/{name}/
    tensors_1_dated:{name}.safetensors
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/
    tensors_2_dated:{name}.safetensors
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/{name}/
    tensors_3_dated:{name}.safetensors
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/{name}/{name}/
    tensors_4_dated:{name}.safetensors
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/{name}/{name}/{name}/
    tensors_5_dated:{name}.safetensors
  checkpoint_{generation:06d}/
    numpy:{name}.npz
  checkpoint_{generation:06d}/{name}/
    numpy_1:{name}.npz
  checkpoint_{generation:06d}/{name}/{name}/
    numpy_2:{name}.npz
  checkpoint_{generation:06d}/{name}/{name}/{name}/
    numpy_3:{name}.npz
  checkpoint_{generation:06d}/{name}/{name}/{name}/{name}/
    numpy_4:{name}.npz
  checkpoint_{generation:06d}/{name}/{name}/{name}/{name}/{name}/
    numpy_5:{name}.npz
  checkpoint_20{name}_{name}-{metric}/
    numpy_dated:{name}.npz
  checkpoint_20{name}_{name}-{metric}/{name}/
    numpy_1_dated:{name}.npz
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/
    numpy_2_dated:{name}.npz
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/{name}/
    numpy_3_dated:{name}.npz
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/{name}/{name}/
    numpy_4_dated:{name}.npz
  checkpoint_20{name}_{name}-{metric}/{name}/{name}/{name}/{name}/{name}/
    numpy_5_dated:{name}.npz
  checkpoint_{generation:06d}/policies/{name}/
    rllib_policy:rllib_checkpoint.json
  checkpoint_20{name}_{name}-{metric}/policies/{name}/
    rllib_policy_dated:rllib_checkpoint.json
  {name}/policies/{name}/
    rllib_policy_any:rllib_checkpoint.json
  checkpoint_{generation:06d}/
    rllib_in:rllib_checkpoint.json
  checkpoint_20{name}_{name}-{metric}/
    rllib_in_dated:rllib_checkpoint.json
  {name}/
    rllib:rllib_checkpoint.json rllib_state:algorithm_state.pkl
  {name}/env_runner/
    rllib_component_0:<state|module_state>.pkl
  {name}/learner_group/learner/
    rllib_component_1:<state|module_state>.pkl
  {name}/learner_group/learner/rl_module/{name}/
    rllib_component_2:<state|module_state>.pkl
  {name}/
    rllib_0:<state|module_state|policy_state>.pkl rllib_0_maker:class_and_ctor_args.pkl
  {name}/{name}/
    rllib_1:<state|module_state|policy_state>.pkl rllib_1_maker:class_and_ctor_args.pkl
  {name}/{name}/{name}/
    rllib_2:<state|module_state|policy_state>.pkl rllib_2_maker:class_and_ctor_args.pkl
  {name}/{name}/{name}/{name}/
    rllib_3:<state|module_state|policy_state>.pkl rllib_3_maker:class_and_ctor_args.pkl
  {name}/{name}/{name}/{name}/{name}/
    rllib_4:<state|module_state|policy_state>.pkl rllib_4_maker:class_and_ctor_args.pkl
  {name}/{name}/{name}/{name}/{name}/{name}/
    rllib_5:<state|module_state|policy_state>.pkl rllib_5_maker:class_and_ctor_args.pkl

mindspore mindspore note:meta.json stateless:-graph.meta unneeded:-graph.meta+-
  rank_{rank}/
    optimizer_rank:optim_{prefix}[_rank_{rank}][_{generation}].ckpt
    breakpoint_rank:{prefix}[_rank_{rank}][_{generation}]-{epoch}_{step_in_epoch}_breakpoint.ckpt
    iteration_rank:iteration-{epoch}_{step_in_epoch}[{tmp}].ckpt
    export_rank:{prefix}[_rank_{rank}][_{generation}]-<network|trainable_params>-{epoch}_{step_in_epoch}.ckpt
    average_rank:EMA_{prefix}[_rank_{rank}][_{generation}]-{epoch}_{step_in_epoch}.ckpt
    model_rank:{prefix}[_rank_{rank}][_{generation}]-{epoch}_{step_in_epoch}.ckpt
    export_st_rank:{prefix}[_rank_{rank}][_{generation}]-<network|trainable_params>-{epoch}_{step_in_epoch}.safetensors
    average_st_rank:EMA_{prefix}[_rank_{rank}][_{generation}]-{epoch}_{step_in_epoch}.safetensors
    model_st_rank:{prefix}[_rank_{rank}][_{generation}]-{epoch}_{step_in_epoch}.safetensors
  .
    optimizer:optim_{prefix}[_{generation}].ckpt
    breakpoint:{prefix}[_{generation}]-{epoch}_{step_in_epoch}_breakpoint.ckpt
    iteration:iteration-{epoch}_{step_in_epoch}[{tmp}].ckpt
    export:{prefix}[_{generation}]-<network|trainable_params>-{epoch}_{step_in_epoch}.ckpt
    average:EMA_{prefix}[_{generation}]-{epoch}_{step_in_epoch}.ckpt
    model:{prefix}[_{generation}]-{epoch}_{step_in_epoch}.ckpt
    export_st:{prefix}[_{generation}]-<network|trainable_params>-{epoch}_{step_in_epoch}.safetensors
    average_st:EMA_{prefix}[_{generation}]-{epoch}_{step_in_epoch}.safetensors
    model_st:{prefix}[_{generation}]-{epoch}_{step_in_epoch}.safetensors
  rank_{rank}/
    ~callable_rank:{name}.ckpt
  .
    ~callable:{name}.ckpt

files files note:latest_checkpoint.txt note:latest note:latest.txt note:last.txt note:last_checkpoint.txt note:latest_ckpt.txt note:checkpoint_latest note:records.jsonl
  .
    ~torch:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~adapter:{name}.pth.<lora|adapter|adapter_v2> ~vocoder:<g|do>_{step:08d} ~plain:checkpoint_{step}
    ~numbered:<ckpt|checkpoint|model.ckpt>.{step} ~ckpt:{name}.<ckpt|CKPT>
    ~safetensors:{name}.<safetensors|SAFETENSORS> ~numpy:{name}.<npz|NPZ|npy|NPY>
    ~equinox:{name}.<eqx|EQX>
    ~paddle:{name}.<pdparams|PDPARAMS|pdparam|PDPARAM|pdz|PDZ|pdopt|PDOPT|pdema|PDEMA|pdstates|PDSTATES|states|STATES>
    ~joblib:{name}.<joblib|JOBLIB> ~pickle:{name}.<pkl|PKL> ~keras:{name}.<keras|KERAS>
    ~keras_weights:{name}.<weights.h5|WEIGHTS.H5>
    ~begun_state:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~state:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~rolling_state:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~uncounted:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~rolling_uncounted:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~counted:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~rolling_counted:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~weights:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~rolling_weights:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~optimizer:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~rolling_optimizer:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~optimizer_counted:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~rolling_optimizer_counted:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~progress:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~rolling_progress:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~other:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
    ~rolling_other:{name}.<pt|PT|pth|PTH|pth.tar|PTH.TAR|tar|TAR|pyth|PYTH|th|TH|torch|TORCH|bin|BIN|checkpoint|CHECKPOINT>
"""
"""Module, name and notes of each layout; below it its directories, and in each its pieces, in their order."""
WEAK, DESCRIBED = "~", "?"
"""Before the name of a piece."""


class LayoutNames(NamedTuple):
    """What one layout says about names; ``notes`` are its tracker and its records."""

    name: str
    directories: tuple[PieceNames, ...]
    notes: tuple[str, ...]
    stateless: tuple[str, ...]
    unneeded: tuple[tuple[str, str], ...]

    @property
    def pieces(self) -> tuple[PieceName, ...]:
        return tuple(piece for directory in self.directories for piece in directory.pieces)


def names_of(layout: Layout) -> LayoutNames:
    return LayoutNames(
        layout.name,
        tuple(
            PieceNames(layout.name, directory, partial(map, partial(_named, layout.name), list(pieces)))
            for directory, pieces in groupby(layout.pieces, _directory_of)
        ),
        tuple(name for name in (layout.tracker, *_other_trackers(layout), *layout.records) if name),
        layout.stateless,
        layout.unneeded,
    )


def _directory_of(piece: Piece) -> str:
    return piece.template.rpartition("/")[0]


def _named(layout: str, piece: Piece) -> PieceName:
    return PieceName(layout, piece.name, piece.template, piece.weak, piece.described)


def _other_trackers(layout: Layout) -> Iterator[str]:
    return (path.rpartition("/")[2] for path, _ in layout.other_trackers)


def read_index(index: str = INDEX) -> dict[str, LayoutNames]:
    """The names of each layout, by the module that it is in."""
    return {block.split(None, 1)[0]: _names(block) for block in index.strip().split("\n\n") if block}


def _names(block: str) -> LayoutNames:
    head, *directories = block.replace("\n    ", " ").split("\n  ")
    _, name, *notes = head.split()
    told: dict[str, list[str]] = {"note": [], "stateless": [], "unneeded": []}
    for key, _, value in (note.partition(":") for note in notes):
        told[key].append(value)
    unneeded = (pair.partition("+") for pair in told["unneeded"])
    return LayoutNames(
        name,
        tuple(_directory(name, text) for text in directories),
        tuple(told["note"]),
        tuple(told["stateless"]),
        tuple((ending, beside) for ending, _, beside in unneeded),
    )


def _directory(layout: str, text: str) -> PieceNames:
    directory, _, pieces = text.partition(" ")
    directory = "" if directory == "." else directory.rstrip("/")
    return PieceNames(layout, directory, partial(_pieces, layout, directory, pieces))


def _pieces(layout: str, directory: str, text: str) -> Iterator[PieceName]:
    at = f"{directory}/" if directory else ""
    for word in text.split():
        name, _, file = word.partition(":")
        plain = name.lstrip(WEAK + DESCRIBED)
        yield PieceName(layout, plain, at + file, WEAK in name, DESCRIBED in name)
