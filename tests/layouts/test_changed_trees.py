"""Real trees of frameworks of which a line has changed: what is gone, cut, of another step or never got its name is
never loaded, nor passed over without a word.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from told_trees import Question, hold, of_steps, table

JOBS = [
    {"exp_dir": run, "checkpoint_list": [f"{run}/checkpoints/ckpt-step-{n}"], "snap_checkpoint_list": []}
    for run, n in (("/data/jobs/20260101", 400), ("/data/jobs/20260102", 20))
]
MADE = {
    "items": (
        "orbax/standard",
        of_steps("100 200", "cp step_@ x/step_@/opt\nmv step_@ x/step_@/model")
        + ";only x;mv x/step_100 step_100;mv x/step_200 step_200;rm x",
    ),
    # The same saves as LLaMA-Factory v1 calls the files.
    "llama-factory": (
        "dcp-set/lm-engine",
        of_steps(
            "10 20",
            """
            rm latest_checkpointed_iteration.json
            mv global_step@ checkpoint-@
            mv checkpoint-@/lr_scheduler/lr_scheduler-0.pt checkpoint-@/scheduler.pt
            rm checkpoint-@/lr_scheduler
            mv checkpoint-@/rng_state/rng_state-0.pt checkpoint-@/rng_state/rank_0.pt
            mv checkpoint-@/rng_state/rng_state-1.pt checkpoint-@/rng_state/rank_1.pt
            mv checkpoint-@/dataloader/dataloader-0.pt checkpoint-@/dataloader/rank_0.pt
            mv checkpoint-@/dataloader/dataloader-1.pt checkpoint-@/dataloader/rank_1.pt
            put checkpoint-@/metadata.json {"global_step": @, "num_training_steps": 100}
            touch checkpoint-@/CHECKPOINT_COMPLETE
            """,
        ),
    ),
    # The same models as SkyRL's workers save them with Megatron.
    "skyrl": (
        "dcp-set/lm-engine",
        of_steps(
            "10 20",
            """
            rm latest_checkpointed_iteration.json
            mv global_step@/model global_step_@/policy
            put global_step_@/policy/metadata.json {"sharded_backend": "torch_dist"}
            mv global_step@/rng_state/rng_state-0.pt global_step_@/policy/common.pt
            mv global_step@/rng_state/rng_state-1.pt global_step_@/trainer_state.pt
            rm global_step@
            """,
        ),
    ),
    # The same directories as ROLL's workers call them, beside the models that they export.
    "roll": (
        "dcp-set/lm-engine",
        of_steps(
            "10 20",
            """
            rm latest_checkpointed_iteration.json
            mv global_step@/model checkpoint-@/actor_train/dcp
            put checkpoint-@/actor_train/config.json {}
            mv global_step@/optimizer checkpoint-@/critic/dcp
            put checkpoint-@/critic/config.json {}
            mv global_step@/rng_state/rng_state-0.pt checkpoint-@/pipeline/rng_state_pipeline.pth
            rm global_step@
            """,
        ),
    ),
    "latest": ("dcp-set/automodel", "put LATEST.txt epoch_1_step_20"),
    # Saves of the second of two runs, of which a note beside the runs tells.
    "xtuner": (
        "dcp-set/automodel",
        of_steps("0_step_10 1_step_20", "mv epoch_@ 20260102/checkpoints/epoch_@")
        + ";mv 20260102/checkpoints/epoch_0_step_10 20260102/checkpoints/ckpt-step-10"
        + ";mv 20260102/checkpoints/epoch_1_step_20 20260102/checkpoints/ckpt-step-20"
        + f";put .xtuner {json.dumps({'exps': JOBS})}",
    ),
    # A model in modules, which is built from modules.json and a configuration for each.
    "sentence-transformers": (
        "hf-trainer/trainer",
        of_steps(
            "15 20",
            """
            cp checkpoint-@/model.safetensors checkpoint-@/2_Dense/model.safetensors
            put checkpoint-@/modules.json {}
            cp checkpoint-@/modules.json checkpoint-@/1_Pooling/config.json
            cp checkpoint-@/modules.json checkpoint-@/2_Dense/config.json
            """,
        ),
    ),
    # Of ZeRO 3, whose model is in files of ranks as in what they are made from.
    "universal": (
        "deepspeed-universal/converted",
        of_steps(
            "global_step4_universal global_step8_universal",
            """
            mv @/mp_rank_00_model_states.pt @/zero_pp_rank_0_mp_rank_00_model_states.pt
            cp @/zero_pp_rank_0_mp_rank_00_model_states.pt @/zero_pp_rank_1_mp_rank_00_model_states.pt
            """,
        ),
    ),
    # EasyDeL saves as Levanter does, with files that list the arrays.
    "easydel": (
        "levanter/steps",
        of_steps(
            "10 20",
            """
            mv step-@ run-@
            mv run-@/opt_state run-@/tx
            cp run-@/metadata.json run-@/tensorstore_index.json
            cp run-@/metadata.json run-@/model_structure.json
            cp run-@/metadata.json run-@/tx_structure.json
            """,
        ),
    ),
}

TREES = table(
    """
    lerobot/steps/outputs/checkpoints slow
        cp 000100/training_state/{training_step,scheduler_state}.json 000300/ -> 000200 -step-mismatch
        as it is -> 000300   # the link to the last is no checkpoint of its own
    lerobot/steps/outputs/checkpoints/000200 slow
        as it is -> is lerobot periodic step 200   # the directory alone is enough
    olmo-core/steps slow
        cp run/step100/train/rank1.pt run/step200/train/rank1.pt -> run/step100 -mixed-attempts -step-mismatch
        mv run/step200 run/step200-tmp -> run/step100 +unfinished-save   # it never got its name
        mv run/step200 kept; rm run -> is olmo-core periodic step 200
    espnet/epochs/exp
        # No flipped bit leads to the weights.
        flip checkpoint.pth -> exit 4 choice/none-usable -crc-mismatch -missing-part
        only checkpoint.pth -> is files periodic epoch 4   # beside no weights it is a bare file
        # An average without a trace of training is an export.
        only valid.loss.ave_2best.pth -> is espnet release valid.loss.ave_2best.pth
        # A loop that saves all of its state so goes on.
        mv checkpoint.pth 5epoch.pth; only 5epoch.pth -> is files periodic epoch 5
    espnet/epochs/exp/3epoch.pth
        as it is -> loads .   # weights that are named are asked for
    nanochat/base/base_checkpoints/d1
        cp meta_000010.json meta_000030.json | world_size=2 -> step 20 -step-mismatch
        cp optim_000010_rank1.pt optim_000030_rank1.pt | world_size=2 -> step 20 -missing-rank -step-mismatch
        as it is | world_size=4 -> exit 2 save/topology-mismatch
        rm optim_* -> loads model_000030.pt   # a model of fine-tuning
    basicsr/gan/experiments/small
        cp training_states/10.state training_states/30.state -> step 20 -step-mismatch
    basicsr/finished/experiments/small
        # The networks of the end never stand in for a state.
        empty training_states/* -> exit 4 choice/none-usable -empty-file -missing-part
        then as it is | kind=release -> loads models/net_g_latest.pth
    fairseq2/sharded/checkpoints slow
        rm step_30/data_reader/{dp_00,dp_01}.pt -> step_20 -missing-part
        rm step_30/{model,optimizer}/pp_00/tp_00/{sdp_00,sdp_01}.pt -> step_20 -missing-part
        rm step_30/trainer/{rank_00,rank_01}.pt -> step_20 -missing-part
        cp step_10/optimizer/pp_00/tp_00/{sdp_00,sdp_01}.pt step_30/ -> step_20 -step-mismatch
        cp step_10/trainer/{rank_00,rank_01}.pt step_30/ -> step_20 -step-mismatch
        # Delete_checkpoint(keep_model=True).
        rm step_30/trainer; rm step_30/optimizer; rm step_30/data_reader -> step_20 -missing-part
        mv step_30 step_30.tmp -> step_20 +unfinished-save
    mindformers/ranks
        rm iteration_00000030/{common,metadata}.json -> iteration_00000020 -missing-part +dangling-tracker
        only iteration_00000030; rm iteration_00000030/{common,metadata}.json
            -> exit 4 choice/none-usable -missing-part
        only iteration_00000030; rm iteration_00000030/{model,opt}-000000{0,1}-0000002.safetensors
            -> exit 4 choice/none-usable -missing-part
        put latest_checkpointed_iteration.txt 20; rm iteration_00000030/*.json
            -> iteration_00000020 +unfinished-save
        put latest_checkpointed_iteration.txt 20; rm iteration_00000030/*; touch iteration_00000030/x
            -> iteration_00000020 +unfinished-save
    ms-swift/exported slow
        rm checkpoint-20/latest_checkpointed_iteration.txt -> checkpoint-10 +unfinished-save
        rm checkpoint-20/iter_0000020/{.metadata,metadata.json} -> checkpoint-10 -missing-part
        put checkpoint-20/latest_checkpointed_iteration.txt 10 -> checkpoint-10 -step-mismatch
        empty checkpoint-20/latest_checkpointed_iteration.txt -> checkpoint-10 -empty-file
        put checkpoint-20/latest_checkpointed_iteration.txt {2o,done 20} -> checkpoint-10 -bad-tracker
        put checkpoint-20/latest_checkpointed_iteration.txt release -> checkpoint-20
        cp checkpoint-20/args.json checkpoint-20-merged/;
            cp checkpoint-20/model.safetensors checkpoint-20-merged/ -> checkpoint-20
    megatron/release
        put latest_checkpointed_iteration.txt 20 -> exit 2 choice/tracker-stale
    megatron-core/bridge slow
        rm latest_checkpointed_iteration.txt -> iter_0000020 => ok
        then as it is | resume_from=tracker -> iter_0000020
        rm latest_{checkpointed_iteration.txt,train_state.pt}; rm iter_0000020
            -> iter_0000010 -missing-part +dangling-tracker
        # A job of Megatron-LM went on, and what it saved is gone.
        put latest_checkpointed_iteration.txt 30 -> iter_0000020 -missing-part +dangling-tracker
        cp iter_0000010/train_state.pt latest_train_state.pt -> iter_0000020 +stale-tracker
        cut latest_train_state.pt -> iter_0000020 +bad-tracker
        cp iter_0000010/train_state.pt iter_0000020/
            -> iter_0000010 -step-mismatch +dangling-tracker => broken step-mismatch
        # Of a loop of one's own, whole and saved last.
        plant latest_train_state.pt:whole30@9999999 -> exit 2 choice/unplaced-newer
    megatron-core/bridge
        rm iter_*; rm latest_checkpointed_iteration.txt | allow_none=yes
            -> exit 4 choice/none-usable -missing-part
    torch-checkpointing/ranks slow
        rm global_step_30/*_1.pt -> global_step_20 -missing-rank +world-size-inferred
        rm global_step_30/step_*.pt -> global_step_20 -missing-part +world-size-inferred
        # A model without its optimizer.
        rm global_step_30/optimizer_* -> global_step_20 +unfinished-save +world-size-inferred
        mv global_step_10 step-10; mv global_step_20 step-20; mv global_step_30 step-30
            -> is torch-checkpointing periodic step 30
        mv global_step_10 epoch_10; mv global_step_20 epoch_20; mv global_step_30 epoch_30
            -> is torch-checkpointing periodic epoch 30
    torch-checkpointing/ranks
        only global_step_10 -> global_step_10   # its metadata tell how many ranks it has
        then rm global_step_10/*_1.pt -> exit 4 choice/none-usable -missing-rank
        mv global_step_30 tmp_global_step_30 -> global_step_20 +unfinished-save +world-size-inferred
        # Models that are counted are no ranks.
        rm */optimizer_*; rm */step_*; rm */dataloader_*; rm */metadata.pkl -> exit 2 save/mixed-counters
    speechbrain/epochs/save
        cp *+00 CKPT+kept -> CKPT+2026-11-24+08-31-47+00 => ok
        at * 0 -> CKPT+2026-11-24+08-31-47+00 +mtime-not-kept   # the steps of the optimizer tell
    speechbrain/epochs/save slow
        # A recoverable that is text is no damage.
        put *+00/epoch_counter.ckpt 12; put *+01/epoch_counter.ckpt 12; put *+02/epoch_counter.ckpt 12
            -> CKPT+2026-11-24+08-31-47+00 => ok
        put *+00/dataloader-VALID.ckpt None; put *+01/dataloader-VALID.ckpt None; put *+02/dataloader-VALID.ckpt None
            -> CKPT+2026-11-24+08-31-47+00 => ok
        zero *+00/{counter.ckpt,brain.ckpt,labels.ckpt,CKPT.yaml} -> CKPT+2026-11-24+08-31-47+02 -zero-filled
        # A Checkpointer without a brain goes by time.
        rm */brain.ckpt; at *+01 60; at *+02 60; at *+00 60 -> CKPT+2026-11-24+08-31-47+00
        then at * 0 -> exit 2 order/times-mute
        cp *+{01,02}/brain.ckpt *+00/ -> CKPT+2026-11-24+08-31-47+02 -step-mismatch => broken step-mismatch
        cp *+02/CKPT.yaml *+00/ -> CKPT+2026-11-24+08-31-47+02 -step-mismatch => broken step-mismatch
    dcp-set/automodel slow
        put latest_checkpointed_iteration.txt 30 -> epoch_1_step_20 -missing-part
        touch epoch_1_step_20/.incomplete -> epoch_0_step_10 +unfinished-save
        ln gone/epoch_2_step_30 {LATEST,epoch_2_step_30} -> epoch_1_step_20 +dangling-link
        then as it is | no_fallback=yes -> exit 6 choice/none-usable
        cp epoch_0_step_10/step_scheduler.pt epoch_1_step_20/ -> epoch_0_step_10 -step-mismatch
        # A copy that stopped early has the model, and not yet the optimizer by which the save is known.
        rm epoch_1_step_20/optim; rm epoch_1_step_20/rng; rm epoch_1_step_20/step_scheduler.pt
            -> epoch_0_step_10 ~passed-over
    dcp-set/lm-engine slow
        put latest_checkpointed_iteration.json {"latest_checkpointed_iteration": 30}
            -> global_step20 -missing-part +dangling-tracker
        put latest_checkpointed_iteration.json {"lat -> global_step20 +bad-tracker
        cp global_step10/optimizer/__0_0.distcp global_step20/
            -> global_step10 -step-mismatch +dangling-tracker
        # What a first save of Accelerate's with FSDP has left, which was killed before it wrote the rest.
        mv global_step10/model x/checkpoint_0/pytorch_model_fsdp_0;
            mv global_step10/optimizer x/checkpoint_0/optimizer_0; only x -> exit 2 order/times-mute
        then rm x/checkpoint_0/optimizer_0 -> x/checkpoint_0/pytorch_model_fsdp_0 +missing-part
    latest slow
        as it is -> epoch_1_step_20
        then rm epoch_1_step_20 -> epoch_0_step_10 -missing-part +dangling-tracker
        then rm epoch_0_step_10 | allow_none=yes -> exit 4 tree/first-launch-leftovers +dangling-tracker
    llama-factory slow
        as it is -> checkpoint-20
        rm checkpoint-20/{CHECKPOINT_COMPLETE,scheduler.pt,model/.metadata} -> checkpoint-10 -missing-part
        only checkpoint-10 -> checkpoint-10
        then rm checkpoint-10/CHECKPOINT_COMPLETE -> exit 4 choice/none-usable -missing-part
        then rm checkpoint-10/rng_state; rm checkpoint-10/dataloader
            -> exit 4 choice/none-usable -missing-part
        then rm checkpoint-10/scheduler.pt -> exit 4 choice/none-usable -missing-part
        # It has been begun.
        put checkpoint-30/metadata.json {"global_step": 30, "num_training_steps": 100}
            -> checkpoint-20 +unfinished-save
    roll slow
        as it is -> checkpoint-20
        rm checkpoint-20/{critic/dcp,actor_train/dcp/.metadata,pipeline/rng_state_pipeline.pth}
            -> checkpoint-10 -missing-part
    skyrl slow
        # Its directory alone may be anybody's: the run's other saves, or what else is in it, tell whose it is.
        rm global_step_20/policy/metadata.json -> global_step_10 -missing-part
        then rm global_step_10 -> exit 4 choice/none-usable -missing-part
        rm global_step_20/policy/metadata.json; rm global_step_20/policy/common.pt;
            rm global_step_20/trainer_state.pt -> global_step_10 +unfinished-save
        only global_step_20;
            put global_step_20/policy/metadata.json {"sharded_backend": "torch_dist", "common_backend": "torch"}
            -> global_step_20
        then rm global_step_20/policy/common.pt -> exit 4 choice/none-usable -missing-part
    t5x/steps slow
        rm checkpoint_20/state.param_states.decoder.kernel/0.0
            -> checkpoint_20 +missing-part => suspect missing-part
        # Tensorstore writes no chunk of zeros alone.
        rm checkpoint_*/target.decoder.kernel/0.0 -> checkpoint_20 => ok
    levanter/steps slow
        rm step-20/{model/decoder/kernel/0.0,_step/0} -> step-10 -missing-part => broken missing-part
        rm step-20/opt_state/0/mu/decoder/kernel/0.0 -> step-20 +missing-part => suspect missing-part
        rm step-20/{_step/.zarray,model,opt_state} -> step-10 -missing-part
    axlearn/steps slow
        rm step_00000020/gda/model/decoder/kernel -> step_00000010 -missing-part => broken missing-part
        rm step_00000010 -> step_00000020 => ok
        then rm step_00000020/gda/learner/optimizer/0/mu -> exit 4 choice/none-usable -missing-part
        cp step_00000010/gda/model/decoder/kernel/.zarray step_00000020/gda/model/decoder/bias/.zarray
            -> step_00000010 -missing-part
    big-vision/kept slow
        only *-tmp; rm checkpoint.bv-000000020-tmp/params~decoder~kernel/.zarray | order=step
            -> exit 4 choice/none-usable -missing-part => broken missing-part missing-tracker
        # big_vision's next save removes ...-tmp; the file beside it tells that it is whole.
        put checkpoint.bv-LAST 000000010; at checkpoint.bv-LAST -99999999
            -> checkpoint.bv-000000020-tmp +stale-tracker
    orbax/items slow
        rm 30/{loader/metadata,loader,state/manifest.ocdbt} -> 20 -missing-part => broken missing-part
        rm 30/state/{_sharding,array_metadatas/process_0} -> 30 +missing-part => suspect missing-part
    orbax/lone slow
        rm final/array_metadatas/process_0 -> final +missing-part
    orbax/random slow
        rm 30/data -> 20 -missing-part
        rm 30/numpy/np_random_key_metadata -> 20 -missing-part
        rm 30/numpy/np_random_key/_strings.json -> 20 -missing-part
    accelerate/two_models slow
        rm checkpoint-30/{model.safetensors,model_1.safetensors,optimizer.bin,optimizer_1.bin}
            -> checkpoint-20 -missing-part => broken missing-part
    accelerate/two_models
        only checkpoint-30 -> checkpoint-30
        then rm checkpoint-30/model.safetensors -> exit 4 choice/none-usable -missing-part
    hf-trainer/trainer slow
        rm checkpoint-20/generation_config.json -> checkpoint-20 +missing-part => suspect missing-part
    megatron-core/sync slow
        # metadata.json says whether a file holds what ranks have in common, whatever the directory is called.
        only iter_0000020 -> iter_0000020 +missing-tracker
        then rm iter_0000020/common.pt
            -> exit 4 choice/none-usable -missing-part => broken missing-part missing-tracker
        only iter_0000020; mv iter_0000020 final -> final
        then rm final/common.pt -> exit 4 choice/none-usable -missing-part => broken missing-part
    megatron-core/common_state slow
        # Megatron-core of mid-2026 and later writes no common.pt.
        only iter_0000020 -> iter_0000020 +missing-tracker => suspect missing-tracker
        then rm iter_0000020/__0_0.distcp -> exit 4 choice/none-usable -missing-part
        mv iter_0000020 iter_0000030; put latest_checkpointed_iteration.txt 30
            -> iter_0000010 -step-mismatch +dangling-tracker
        rm iter_*/metadata.json -> exit 4 choice/none-usable -missing-part => broken missing-part
        then rm iter_0000010 -> exit 4 choice/none-usable -missing-part
        # A run that is called as a save of ms-swift.
        mv iter_0000010 checkpoint-5/iter_0000010; mv iter_0000020 checkpoint-5/iter_0000020
            -> is megatron-core periodic step 20
    accelerate/diffusers slow
        # from_pretrained reads config.json before the weights.
        rm checkpoint-10/unet/config.json -> checkpoint-5 -missing-part => broken missing-part
        then rm checkpoint-5 -> exit 4 choice/none-usable -missing-part
        cut checkpoint-10/unet/config.json -> checkpoint-5 -truncated => broken truncated
        then rm checkpoint-5 -> exit 4 choice/none-usable -truncated
    torchsnapshot/plain slow
        zero run-4/0/model/{bias,weight_0_0} -> run-2 -zero-filled => broken zero-filled
        zero run-4/0/optim/state/1/exp_avg -> run-4 +zero-filled => suspect zero-filled
        zero run-*/0/model/bias -> run-4 => ok
        # Its data files bear no name of a framework.
        rm run-4/.snapshot_metadata -> run-2 +unfinished-save => suspect unfinished-save
    saved-model/named
        # Nothing tells its size, but its pages were never written.
        zero export/assets/vocab.json -> exit 4 choice/none-usable -zero-filled => broken zero-filled
    deepspeed-universal/beside
        rm global_step8_universal/mp_rank_00_model_states.pt | layout=deepspeed-universal
            -> exit 4 choice/none-usable -missing-part
    files/npz
        rm ckpt_300.npz; mkdir ckpt_300.npz -> ckpt_200.npz +unfinished-save
        rm ckpt_200.npz; mkdir ckpt_200.npz -> ckpt_300.npz
    easydel slow
        as it is -> run-20
        rm run-20/{tx,tensorstore_index.json,tx_structure.json} -> run-10 -missing-part
        rm run-20/metadata.json -> run-10 +unfinished-save
    lightning/slurm
        # A regular save of the same step goes before it.
        cp hpc_ckpt_1.ckpt checkpoints/epoch=0-step=5.ckpt
            -> checkpoints/epoch=0-step=5.ckpt ~dangling-tracker
        # The gasp of several runs is asked about.
        cp checkpoints lightning_logs/version_3/checkpoints -> exit 2 tree/several-runs
        # Of two requeued at one step either will do.
        cp hpc_ckpt_1.ckpt hpc_ckpt_2.ckpt -> hpc_ckpt_1.ckpt ~dangling-tracker
        then cut hpc_ckpt_{1.ckpt,2.ckpt} -> hpc_ckpt_1.ckpt ~dangling-tracker
    lightning/callback
        put checkpoints/latest_checkpointed_iteration.txt 40 | order=step
            -> checkpoints/epoch=2-step=30.ckpt -missing-part
    lightning/exception
        cut checkpoints/on_exception.ckpt -> checkpoints/epoch=0-step=4.ckpt -truncated
        cp checkpoints/on_exception.ckpt checkpoints/epoch=0-step=5.ckpt
            -> checkpoints/epoch=0-step=5.ckpt ~dangling-tracker
    hf-trainer/epochs slow
        # The Trainer marks a directory while it saves on SIGTERM (enable_jit_checkpoint), and resumes from it.
        put checkpoint-8/checkpoint-is-incomplete.txt Checkpoint started at step 8 and in progress...
            -> checkpoint-8
        then cut checkpoint-8/model.safetensors -> checkpoint-6 -truncated
    hf-trainer/epochs
        touch checkpoint-4/.checkpoint_done -> checkpoint-8   # a mark that no other save has
    hf-trainer/paddlenlp-unified
        touch checkpoint-5/.checkpoint_done; touch checkpoint-10/.checkpoint_done -> checkpoint-10
        then rm checkpoint-10/.checkpoint_done -> checkpoint-10 +unfinished-save => suspect unfinished-save
    hf-trainer/paddlenlp-unified slow
        touch checkpoint-5/saved_signal_1 -> checkpoint-10 +unfinished-save => suspect unfinished-save
        touch checkpoint-5/.optimizer_weight.done.0
            -> checkpoint-10 +unfinished-save => suspect unfinished-save
    hf-trainer/sharded
        # Of the highest rank the run's other saves tell; with fewer ranks that save may have had no such file.
        rm checkpoint-20/rng_state_0.pth -> checkpoint-20 +missing-rank
        rm checkpoint-20/rng_state_* -> checkpoint-20 +missing-part
    hf-trainer/trainer
        put latest_checkpointed_iteration.txt 30 -> checkpoint-20 -missing-part
        # It is being downloaded.
        touch checkpoint-20/model.safetensors.aria2 -> checkpoint-15 -unfinished-save
    dcp/model_only slow
        # A model alone is passed over among whole states, whatever its step.
        mv step-6 step-1 -> step-4 ~passed-over
        then empty step-4/__0_0.distcp -> step-2 -empty-file ~passed-over
        then empty step-2/__0_0.distcp -> exit 4 choice/none-usable -empty-file -missing-part
        mv step-6 step-3 -> step-4 ~passed-over
        then empty step-4/__0_0.distcp -> step-2 -empty-file +passed-over
        then empty step-2/__0_0.distcp -> exit 4 choice/none-usable -empty-file -missing-part
    dcp/model_only
        only step-6 -> step-6
    megatron-core/torch_dcp slow
        rm iter_0000020/.metadata -> iter_0000010 -missing-part +dangling-tracker   # a tracker names it
        then rm latest_* -> iter_0000010 +missing-tracker +unfinished-save
    megatron/tp slow
        flip iter_0000030/mp_rank_01/model_optim_rng.pt
            -> iter_0000020 -crc-mismatch -missing-rank +dangling-tracker
        then as it is | no_fallback=yes -> exit 6 choice/none-usable -crc-mismatch -missing-rank
        cut iter_*/mp_rank_00/*.pt | allow_none=yes -> exit 4 choice/none-usable -missing-rank -truncated
        then as it is | max_step=5 -> exit 4 tree/filters-hide-all
        flip iter_*/mp_rank_00/*.pt | max_attempts=2
            -> exit 4 choice/none-usable -crc-mismatch -missing-rank +attempts-exhausted
        # Trackers are hints.
        put latest_checkpointed_iteration.txt 9999999; at latest_checkpointed_iteration.txt -99999999
            -> iter_0000030 -missing-part +dangling-tracker => suspect dangling-tracker
        # Beyond the tracker: the job has not said that it is finished.
        cp iter_0000030/mp_rank_01 iter_0000040/mp_rank_01
            -> iter_0000030 -missing-rank => broken step-mismatch unfinished-save
        # Time against step.
        at iter_0000010 100000 -> exit 2 order/times-contradict-steps
        then as it is | order=mtime -> iter_0000010
        then as it is | order=step -> iter_0000030
        # A clock that is ahead says nothing: by step.
        at iter_0000010 999999999 -> iter_0000030 +mtime-in-future +mtime-not-kept
        # A tracker that was written after the choice and names another is a question.
        put latest_checkpointed_iteration.txt 20; at latest_checkpointed_iteration.txt 10
            -> exit 2 order/times-contradict-steps
        then as it is | resume_from=tracker -> iter_0000020 +stale-tracker
        then as it is | order=mtime -> iter_0000030 +stale-tracker
    megatron/tp
        # MindIO writes a dying gasp into iter_N_tmp and renames that when all ranks have written.
        mv iter_0000030 iter_0000030_tmp; put latest_checkpointed_iteration.txt 20
            -> iter_0000020 +unfinished-save => suspect unfinished-save
        then rm iter_0000030_tmp/mp_rank_01 -> iter_0000020 +unfinished-save => suspect unfinished-save
    megatron/ascend slow
        cp iter_0000010/mp_rank_01/model_optim_rng_3.pt iter_0000020/
            -> iter_0000020 +mixed-attempts +step-mismatch => broken step-mismatch
        cp iter_0000020/mp_rank_01/model_optim_rng_1.pt iter_0000020/mp_rank_01/model_optim_rng_3.pt
            -> iter_0000020 +rank-mismatch => broken rank-mismatch
    mindspore/pangu slow
        cp rank_1/pangu1-2_1.ckpt rank_1/pangu1-2_3.ckpt
            -> step 6 -missing-rank -mixed-attempts -step-mismatch +world-size-inferred => broken missing-rank step-mismatch
        cp rank_0/pangu0-1_4.ckpt rank_0/pangu0-2_1.ckpt
            -> step 8 -missing-rank +world-size-inferred => broken epoch-mismatch missing-rank
        rm rank_3/pangu3-2_3.ckpt -> step 6 -missing-rank +world-size-inferred => broken missing-rank
        # Of the oldest.
        rm rank_3/pangu3-1_4.ckpt
            -> step 8 -missing-rank +same-content +world-size-inferred => suspect missing-rank same-content
    mindspore/flat
        ln . again; ln .. up -> resnet-2_5.ckpt => ok   # loops of directories end
        rm resnet-2_5.ckpt; mkdir resnet-2_5.ckpt
            -> resnet-2_4.ckpt -missing-rank -not-a-file +unfinished-save => broken not-a-file unfinished-save
        rm resnet-2_5.ckpt; ln gone resnet-2_5.ckpt
            -> resnet-2_4.ckpt -dangling-link -missing-rank => broken dangling-link
        rm resnet-2_5.ckpt; ln resnet-2_5.ckpt resnet-2_5.ckpt
            -> resnet-2_4.ckpt -missing-rank -symlink-loop => broken symlink-loop
        empty resnet-2_5.ckpt -> resnet-2_4.ckpt -empty-file -missing-rank => broken empty-file
        zero resnet-2_5.ckpt -> resnet-2_4.ckpt -missing-rank -zero-filled => broken zero-filled
        cp //megatron/tp/tree/iter_0000010/mp_rank_00/model_optim_rng.pt resnet-2_5.ckpt
            -> resnet-2_4.ckpt -missing-rank -wrong-format => broken wrong-format
    mindio-ttp/tft
        # A second file of a rank is named.
        cp tft_saved_checkpoints-step_11/rank_2/ttp_rank_2-3_1.ckpt tft_saved_checkpoints-step_11/rank_2/ttp_rank_2-4_1.ckpt | world_size=4 replica_groups=0,2/1,3
            -> tft_saved_checkpoints-step_11 +epoch-mismatch +step-mismatch +unfinished-save ~replica-unproven => broken epoch-mismatch extra-file step-mismatch unfinished-save
    deepspeed/zero2
        # MMEngine gives DeepSpeed's directories the names of its files, and notes them in last_checkpoint.
        rm latest -> global_step8 +missing-tracker => suspect missing-tracker
        then mv global_step4 iter_4.pth; mv global_step8 iter_8.pth; put last_checkpoint /elsewhere/iter_8.pth
            -> iter_8.pth => ok
        then put last_checkpoint /elsewhere/iter_99.pth
            -> iter_8.pth +missing-tracker => suspect missing-tracker
    deepspeed/zero3 slow
        cp global_step4/zero_pp_rank_1_mp_rank_00_model_states.pt global_step8/
            -> global_step4 -missing-rank -mixed-attempts -step-mismatch +dangling-tracker => broken step-mismatch
    openrlhf/ppo slow
        # OpenRLHF loads of its actor and of its critic what each one's latest names, whatever it is told.
        put _critic/latest global_step{10,2} -> exit 2 choice/tracker-stale
        # The job died before the critic was saved.
        then rm _critic/global_step20 -> exit 2 choice/tracker-stale
        then put _critic/latest global_step10; put _actor/latest global_step10 -> step 10 -missing-part
    keras-backup/double slow
        cp latest.weights.h5.bkp latest.weights.h5 -> step 12 +step-mismatch
    keras/hdf5 slow
        # Bytes that differ between the pages that are read of large files.
        cp weights.02-3.70.hdf5 weights.03-3.70.hdf5 -> exit 2 pair/same-content
    files/paddle-ocr slow
        cp iter_epoch_2.pdparams iter_epoch_4.pdopt
            -> loads iter_epoch_4.pdparams iter_epoch_4.states latest.pdopt
    dcp/two slow
        # verl writes Megatron's tracker beside what its other engines save: it is no less a witness.
        put latest_checkpointed_iteration.txt 30 -> step-20 -missing-part
        put {latest,_actor/latest} global_step30 -> step-20 -missing-part
        put LATEST.txt epoch_2_step_30 -> step-20 -missing-part
        put checkpoint model_checkpoint_path: "model.ckpt-30" -> step-20 -missing-part
        put checkpoint_latest model_checkpoint_path:30 -> step-20 -missing-part
        put latest_checkpointed_iteration.txt 20 -> step-20
        put {latest,_actor/latest} global_step20 -> step-20
        put LATEST.txt epoch_2_step_20 -> step-20
        put checkpoint model_checkpoint_path: "model.ckpt-20" -> step-20
        put checkpoint_latest model_checkpoint_path:20 -> step-20
    orbax/pytree slow
        # A copy that tells no step beside one that does.
        mv 15 15_broken; at 15_broken 60; at 5 1 -> exit 2 order/times-mute
    orbax/items
        # _CHECKPOINT_METADATA lists its items.
        only 30; rm 30/{loader,loader/metadata} -> exit 4 choice/none-usable -missing-part
        only 30; mkdir 30/extra -> 30
    orbax/parts/latest
        rm _CHECKPOINT_METADATA -> exit 2 order/times-mute   # items without what says that they are one
    orbax/prefixed
        rm run_00000030/* -> run_00000020 +unfinished-save   # a later save without any file
    flax/gda
        rm checkpoint_20 -> exit 2 choice/unplaced-newer   # a save is a file and arrays beside it
    colossalai/booster
        rm epoch-1_step-4; mkdir epoch-1_step-4 -> epoch-1_step-2 +unfinished-save
        rm epoch-1_step-4; ln lost epoch-1_step-4 -> epoch-1_step-2 +dangling-link
    ray/trial/trial_rate=0.1
        rm checkpoint_000002/extra.pt -> checkpoint_000001 -missing-part
    xtuner slow
        as it is -> 20260102/checkpoints/ckpt-step-20
        then rm 20260102/checkpoints/ckpt-step-20
            -> 20260102/checkpoints/ckpt-step-10 -missing-part +dangling-tracker
        then rm 20260102/checkpoints/ckpt-step-10 | allow_none=yes
            -> exit 4 tree/first-launch-leftovers +dangling-tracker
    planted
        mkdir 20260101/checkpoints;
            put .xtuner {"exps": [{"exp_dir": "/data/20260101", "checkpoint_list": []}]} | allow_none=yes
            -> nothing
        # Nerogar/OneTrainer#498: meta.json is written last, and the job died before it.
        plant step_1/a.pt step_1/meta.json= step_2/a.pt step_2/meta.json= step_3/a.pt step_3/meta.json=
            -> step_3
        then rm step_3/meta.json -> step_3 +missing-part => suspect missing-part
        as it is -> exit 3 tree/nothing-there
        then as it is | allow_none=yes -> nothing
        rm ../run | allow_none=yes -> exit 5 tree/could-not-look
    sentence-transformers slow
        as it is -> checkpoint-20
        rm checkpoint-20/{modules.json,1_Pooling/config.json,2_Dense/config.json}
            -> checkpoint-15 -missing-part
        rm checkpoint-20/2_Dense/model.safetensors -> checkpoint-15 -missing-part
        cut checkpoint-20/2_Dense/model.safetensors -> checkpoint-15 -truncated
    universal
        as it is -> is deepspeed-universal periodic step 8
        rm global_step8_universal/zero_pp_rank_0_mp_rank_00_model_states.pt | layout=deepspeed-universal
            -> global_step4_universal -missing-part +dangling-tracker
        rm global_step8_universal/zero_pp_rank_1_mp_rank_00_model_states.pt | layout=deepspeed-universal
            -> global_step8_universal
    levanter/steps slow
        # A chunk is written once it is no longer zeros: that it was not before is no loss.
        cp step-20 step-30; rm step-30/opt_state/0/count/0; rm step-10/opt_state/0/count/0
            -> step-20 -step-mismatch => broken step-mismatch
    megatron-core/sync slow
        # A run that went on with a newer framework lacks nothing.
        rm iter_0000020; cp //megatron-core/common_state/tree/iter_0000020 iter_0000020 -> iter_0000020 => ok
    orbax/prefixed
        mv run_00000020 20; mv run_00000030 30; rm 30/* -> 20 +unfinished-save
        mv run_00000020 nnx_20; mv run_00000030 nnx_30; rm nnx_30/* -> nnx_20 +unfinished-save
    speechbrain/epochs/save slow
        cp *+02/counter.ckpt *+00/ -> CKPT+2026-11-24+08-31-47+02 -epoch-mismatch
    # --- Files of Keras' ModelCheckpoint.
    keras/callback slow
        # Whatever its user calls it.
        only model-02.keras; mv model-02.keras checkpoint.model.keras -> checkpoint.model.keras => ok
        then cut checkpoint.model.keras -> exit 4 choice/none-usable -truncated
        only cp-0002.weights.h5; mv cp-0002.weights.h5 ckpt.weights.h5 -> ckpt.weights.h5 => ok
        then empty ckpt.weights.h5 -> exit 4 choice/none-usable -empty-file
        only model-0*; mv model-01.keras best.keras; mv model-02.keras last.keras -> last.keras => ok
        then cut last.keras -> best.keras -truncated
        only model-0*; mv model-01.keras weights.1-0.53.keras; mv model-02.keras weights.2-0.22.keras
            -> weights.2-0.22.keras => ok
        then cut weights.2-0.22.keras -> weights.1-0.53.keras -truncated
        then empty weights.2-0.22.keras -> weights.1-0.53.keras -empty-file
        only cp-*; mv cp-0001.weights.h5 model_9_12.5.weights.h5;
            mv cp-0002.weights.h5 model_10_val0.2217.weights.h5 -> model_10_val0.2217.weights.h5 => ok
        then cut model_10_val0.2217.weights.h5 -> model_9_12.5.weights.h5 -truncated
        only cp-*; mv cp-0001.weights.h5 model_1.h5; mv cp-0002.weights.h5 model_2.h5 -> model_2.h5 => ok
        then cut model_2.h5 -> model_1.h5 -truncated
        only cp-*; mv cp-0001.weights.h5 weights.01-3.71.hdf5; mv cp-0002.weights.h5 weights.02-3.70.hdf5
            -> weights.02-3.70.hdf5 => ok
        then cut weights.02-3.70.hdf5 -> weights.01-3.71.hdf5 -truncated
        # Keras numbers shards from 0, epochs from 1; the index of shards is written last.
        only cp-*; mv cp-0001.weights.h5 model_00001.weights.h5; mv cp-0002.weights.h5 model_00002.weights.h5
            -> model_00002.weights.h5
        only cp-*; mv cp-0001.weights.h5 model_00000.weights.h5; mv cp-0002.weights.h5 model_00001.weights.h5
            -> exit 4 choice/none-usable -missing-part
        # Models kept beside a directory of backups.
        only model-0*; cp //keras-backup/one/tree backup; at backup 60 -> backup
        only model-0*; cp //keras-backup/one/tree backup; at backup -30 -> exit 2 tree/several-runs
        only model-0*; mv model-01.keras models/model-01.keras; mv model-02.keras models/model-02.keras;
            cp //keras-backup/one/tree backup; at backup 60 -> backup
        only model-0*; mv model-01.keras models/model-01.keras; mv model-02.keras models/model-02.keras;
            cp //keras-backup/one/tree backup; at backup -30 -> exit 2 tree/several-runs
    keras/batches
        # A file of the epoch that tells no batch is that of its end.
        cp ckpt-03-0002.weights.h5 ckpt-03-0008_b.weights.h5; at ckpt-03-0008_b.weights.h5 {0,1}
            -> ckpt-03-0008_b.weights.h5
    keras-shards/named slow
        rm cp-03{.weights.json,_00000.weights.h5,_00001.weights.h5,_00002.weights.h5}
            -> cp-02 -missing-part => broken missing-part
        cp cp-0{1,2}.weights.json cp-03.weights.json -> cp-02 -missing-part => broken missing-part
        cp cp-0{1,2}_00000.weights.h5 cp-03_00000.weights.h5
            -> exit 2 pair/same-content => broken same-content
        cp cp-0{1,2}_00001.weights.h5 cp-03_00001.weights.h5
            -> exit 2 pair/same-content => broken same-content
        cp cp-0{1,2}_00002.weights.h5 cp-03_00002.weights.h5
            -> exit 2 pair/same-content => broken same-content
    keras-backup/double
        # States of ModelCheckpoint in the directory of a backup.
        rm *.bkp; cp //keras-backup/double/tree/latest.weights.h5{.bkp,} m-1.weights.h5
            -> exit 2 choice/unplaced-newer
        rm *.bkp; cp latest.weights.h5 m-rank1.weights.h5 -> exit 2 choice/unplaced-newer
        # What was the latest before is older whatever its times are.
        at *.bkp {-1,0,1} -> loads latest.weights.h5 training_metadata.json
    # Each item has marks of its own, as a checkpoint of any name has: step_200/model, step_200/opt.
    items slow
        as it is -> step_200
        rm step_200/opt -> step_100 -missing-part
        mv step_200/opt step_200/opt.orbax-checkpoint-tmp -> step_100 +unfinished-save
        then rm step_100 -> exit 3 tree/nothing-there +unfinished-save
    """,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_what_is_answered_about_a_tree_that_was_changed(
    tree: str, asked: list[Question], tmp_path: Path
) -> None:
    hold(tree, asked, tmp_path)
