"""Small trees of somebody's own loop: what docs/how-it-chooses.md says about the names of saves, runs, the newest
and the whole one, a line for each.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from told_trees import Question, hold, table

MADE = {
    "pipeline": (
        "planted",
        ";".join(
            f"epoch_{e}/unet/diffusion_pytorch_model.safetensors:tensors{e}1@{e}0 epoch_{e}/unet/config.json="
            f" epoch_{e}/text_encoder/model.safetensors:tensors{e}2= epoch_{e}/text_encoder/config.json="
            f" epoch_{e}/optimizer.pt:optimizer{e}="
            for e in (1, 2)
        ),
    ),
    "ranks": (
        "planted",
        ";".join(
            f"step_{n}/model_rank_0.pt:model{n}@{n} step_{n}/model_rank_1.pt:model{n}1="
            f" step_{n}/optim_rank_0.pt:optimizer{n}= step_{n}/optim_rank_1.pt:optimizer{n}="
            for n in (10, 20)
        ),
    ),
}
MADE |= {
    "files": ("planted", "step_100.pt step_200.pt"),
    "directories": ("planted", "step_100/state.pt:whole100 step_200/state.pt:whole200"),
    "averages": ("planted", "model_100.pt ema_100.pt= model_200.pt ema_200.pt="),
    "last": ("planted", "model_100.pt model_200.pt last.pt:whole200="),
    "halves": (
        "planted",
        "weights_20.pt:model training_state_20.pt:optimizer= weights_30.pt:model training_state_30.pt:optimizer=",
    ),
}
TWO = "iter_0000010/:megatron iter_0000020/:megatron"
MADE["kept"] = (
    "planted",
    f"{TWO}; mv iter_0000020 kept; mv kept/mp_rank_01 rank-one; ln ../rank-one kept/mp_rank_01",
)


def versions(kind: str) -> tuple[str, str]:
    files = [f"v{n}/model.ckpt:{kind}{10 * n}" for n in (2, 9, 10)]
    return "planted", ";".join([*files, *(f"mv v{n} model:v{n}" for n in (2, 9, 10))])


MADE |= {"lightnings": versions("lightning"), "states": versions("state"), "weights": versions("model")}
TREES = table(
    """
    planted
        # --- 1. What is a save: files
        step_100.pt step_200.pt -> loads step_200.pt
        checkpoint_000100.pt checkpoint_000200.pt -> loads checkpoint_000200.pt
        epoch_2.pt:epoch epoch_3.pt:epoch -> loads epoch_3.pt
        step_100.pt step_200.pt best.pt:model150 -> loads step_200.pt   # newer, and weights alone
        step_100.pt step_200.pt best_model_200.pt:model -> loads step_200.pt
        step_100.pt step_200.pt best.pt:whole100 -> loads step_200.pt
        step_100.pt step_200.pt best.pt:whole250 -> loads best.pt   # the best is whole, and ahead
        step_100.pt step_200.pt best.pt:whole200 -> loads step_200.pt
        step_100.pt step_200.pt final.pt:model200 -> loads step_200.pt
        step_100.pt step_200.pt final.pt:whole250 -> exit 2 choice/unplaced-newer
        checkpoint_best.pth:whole100 checkpoint_final.pth:whole200 -> loads checkpoint_final.pth
        step_100.pt step_200.pt model.safetensors:tensors200 -> loads step_200.pt
        step_100.pt optim_200.pt:optimizer -> loads step_100.pt   # a half
        model_100.pt:model optim_100.pt:optimizer= model_200.pt:model optim_200.pt:optimizer=
            -> loads model_200.pt optim_200.pt => ok
        model_100.pt:model optim_100.pt:sgd= optim_200.pt:sgd -> loads model_100.pt optim_100.pt
        model_9.pt:model9@0 optim_9.pt:optimizer9@0 model.pt:model30@600 optim.pt:optimizer30@540
            -> model.pt +mixed-attempts
        model_100.pt:model optim_100.pt:optimizer= ckpt_200.pt -> loads ckpt_200.pt
        model_100.pt:model optim_100.pt:optimizer= model_200.pt:model optim_200.pt:cut last.pt:whole200
            -> loads last.pt
        step_300.pt step_400.pt:cut last.pt:model400 -> loads step_300.pt   # a model alone stands in for no more
        # Two networks.
        {ann_step_9.pt bob_step_9.pt:whole10,step_9/ann.pt step_9/bob.pt:whole10} -> exit 2 save/mixed-counters
        D_1000.pth G_1000.pth:whole1001= D_2000.pth G_2000.pth:whole2001= -> loads D_2000.pth G_2000.pth => ok
        D_1000.pth G_1000.pth= D_2000.pth G_2000.pth= {G,D}_3000.pth -> loads D_2000.pth G_2000.pth
        D_1000.pth G_1000.pth= D_2000.pth G_2000.pth= D_3000.pth:cut G_3000.pth=
            -> loads D_2000.pth G_2000.pth
        G_1000.pth D_2000.pth -> exit 4 choice/none-usable -missing-part   # never of one step
        G_1000.pth G_2000.pth -> loads G_2000.pth
        last.pt:whole300 best.pt:model100 -> loads last.pt
        # The best is written once more when all has ended.
        last.pt:model300 best.pt:model200 -> loads last.pt
        step_100.pt step_200.pt last.pt:whole250 -> loads last.pt
        step_100.pt step_200.pt last.pt:whole200= -> loads step_200.pt => ok
        epoch_1.pth:model epoch_2.pth:model epoch_3.pth:model epoch_4.pth:model latest.pth:epoch4
            -> loads latest.pth => ok
        epoch_1.pth:model epoch_2.pth:model latest.pth:epoch2 -> loads latest.pth
        model_100.pt:model model_200.pt:model training_state.pt:whole200 -> loads training_state.pt
        model_100.pt:model model_200.pt:model last.pt:model200! -> loads model_200.pt
        step_100.pt:state step_200.pt:state last.pt:state250 -> loads last.pt   # an optimizer tells it
        model.pt:model200 optim.pt:optimizer200= -> loads model.pt optim.pt
        model_100.pt:model model_200.pt:model -> loads model_200.pt => ok
        model_100.safetensors model_200.safetensors final.safetensors:tensors200
            -> exit 2 choice/unplaced-newer
        model.safetensors:tensors200 -> loads model.safetensors
        optim_100.pt:optimizer optim_200.pt:optimizer -> exit 4 choice/none-usable -missing-part
        step_100.pt step_200.pt step_300.pt:uncounted -> loads step_200.pt
        step_100.pt step_200.pt step_300.pt:model -> loads step_200.pt
        llama_100.pt:whole llama_200.pt:whole best.pt:model150 -> exit 2 choice/unplaced-newer
        ckpt_100.pt ckpt_200.pt:whole100 -> loads ckpt_100.pt
        epoch_1.pt:epoch epoch_3.pt:epoch epoch_5.pt:epoch1 -> loads epoch_3.pt
        step_100.pt step_200.pt:cut -> loads step_100.pt
        step_100.pt last.pt:whole200! -> loads step_100.pt
        step_100.pt step_200.pt; flip step_200.pt -22 -> step_100.pt -bad-header
        model.pt:stepped200 optim.pt:counted100= -> exit 4 choice/none-usable -step-mismatch
        model_100.pt:model optim_100.pt:optimizer= model_200.pt:model optim_200.pt:optimizer100=
            -> loads model_100.pt optim_100.pt
        model_100.pt:model optim_100.pt:optimizer= model_200.pt:model100 optim_200.pt:optimizer=
            -> exit 2 pair/same-content
        params.pt:model100 optimizer.pt:optimizer100= criterion.pt:nothing=
            -> loads criterion.pt optimizer.pt params.pt
        # --- 1. What is a save: directories
        step_100/:halves step_200/:halves -> loads step_200/model.pt step_200/optimizer.pt => ok
        ckpt-100/state.pt:whole100 ckpt-200/state.pt:whole200 -> loads ckpt-200/state.pt
        iter_0000005/model_5.pth iter_0000010/model_10.pth -> loads iter_0000010/model_10.pth
        step_100/:halves step_200/:halves step_300/model.pt:model300 step_300/optimizer.pt:optimizer300!=
            -> loads step_200/model.pt step_200/optimizer.pt
        ckpt-100/state.pt:whole100 ckpt-200/state.pt:whole200 ckpt-300/state.pt:model300
            -> loads ckpt-200/state.pt
        ckpt-100/state.pt:whole100! ckpt-200/state.pt:whole200! -> exit 4 choice/none-usable -truncated
        ckpt-100/state.pt:whole100 ckpt-200/state.pt:whole200 ckpt-300.pt -> loads ckpt-300.pt
        ckpt-050.pt ckpt-100/state.pt:whole100 ckpt-200/state.pt:whole200 -> loads ckpt-200/state.pt
        ckpt-100/state.pt:whole100 ckpt-200/state.pt:whole200 last/state.pt:whole250 -> loads last/state.pt
        step_100/:halves step_200/:halves last/state.pt:uncounted250 -> loads last/state.pt   # all that halves hold
        step_100/:halves step_200/:halves best/model.pt:model150
            -> loads step_200/model.pt step_200/optimizer.pt
        step_100/:halves step_200/:halves final/model.pt:model250
            -> loads step_200/model.pt step_200/optimizer.pt
        ckpt-100/state.pt:whole100 ckpt-200/state.pt:whole200 again/state.pt:whole250
            -> exit 2 tree/several-runs
        100/:halves 200/:halves -> loads 200/model.pt 200/optimizer.pt
        100/model.pt:model100 200/model.pt:model200 -> 200   # numbers of which nothing tells
        100/state.pt:whole100 other/state.pt:whole90 -> exit 2 tree/several-runs
        # Numbers that do not grow with training.
        100/state.pt:whole5000 200/state.pt:whole5000 -> exit 2 choice/unplaced-newer +no-layout
        epoch_0/iter_100.pt epoch_1/iter_200.pt epoch_1/iter_300.pt:cut -> loads epoch_1/iter_200.pt
        epoch_0/iter_100.pt epoch_0/iter_200.pt epoch_1/iter_100.pt epoch_1/iter_200.pt
            -> exit 2 save/mixed-counters
        step_1/teacher.pt:whole1 step_1/student.pt:whole1= step_2/teacher.pt:whole2 step_2/student.pt:whole2=
            -> loads step_2/student.pt step_2/teacher.pt
        step_1/w.pt:model1 step_1/optim/o.pt:optimizer1= step_2/w.pt:model2 step_2/optim/o.pt:optimizer2=
            -> loads step_2/optim/o.pt step_2/w.pt
        step_1/model/s.pt:model1 step_1/optimizer/s.pt:optimizer1= step_2/model/s.pt:model2
            -> loads step_1/model/s.pt step_1/optimizer/s.pt
        exp_a/model/s.pt:model1 exp_a/optimizer/s.pt:optimizer1= exp_b/model/s.pt:model2;
            exp_b/optimizer/s.pt:optimizer2= -> exit 2 choice/unplaced-newer +no-layout
        epoch_1/ckpt_7.pt epoch_1/ckpt_8.pt epoch_2/ckpt_7.pt:whole27 epoch_2/ckpt_8.pt:whole28
            -> exit 2 save/mixed-counters
        best/step_50.pt step_100.pt -> step_100.pt   # the kind is told by the convention
        step_100/:halves step_200/:halves; ln step_200 latest -> step_200
        step_100/:halves step_200/:halves; ln step_100 latest -> exit 2 order/times-contradict-steps
        then as it is | exclude=step_200 -> step_100
        step_100.pt step_200.pt; ln step_100.pt last -> exit 2 order/times-contradict-steps
        step_100/:halves step_200/model.pt:model200 -> step_100 -missing-part
        step_100/:halves step_200/optimizer.pt:optimizer200 -> step_100 -missing-part
        ckpt-100/state.pt:whole100 ckpt-200/state.pt:whole200 ckpt-300/state.pt:whole200
            -> ckpt-200 -step-mismatch
        step_10/checkpoint_10.pt step_20/checkpoint_20.pt -> step_20   # numbers of whole files are no ranks
        # --- 2. Which run
        exp_a/step_1/model.pt:whole1 exp_b/step_2/model.pt:whole2 -> exit 2 tree/several-runs
        bert_step_1/state.pt:whole1 gpt_step_2/state.pt:whole2 -> exit 2 tree/several-runs
        exp/checkpoint-10/:trainer {exp_20250131,exp_old}/checkpoint-10/:trainer -> exit 2 tree/several-runs
        # The name of a run is its path below ROOT, and not that of another in which a directory is called so.
        a/iter_0000010/:megatron b/a/iter_0000010/:megatron | run=a -> a/iter_0000010 +missing-tracker
        then as it is | run=b/a -> b/a/iter_0000010 +missing-tracker
        # Steps of a recipe.
        step1_sft/state.pt:whole90 step2_reward/state.pt:whole30 -> exit 2 tree/several-runs
        # Members of an ensemble.
        model_1/state.pt:whole90 model_2/state.pt:whole30 -> exit 2 tree/several-runs
        weights/step_10.pt:model ema/step_15.pt:model -> exit 2 tree/several-runs
        41/ckpt_100.pt 41/ckpt_200.pt 42/ckpt_100.pt 42/ckpt_200.pt -> exit 2 tree/several-runs
        42/a/model.pt:whole100 42/b/model.pt:whole200 -> exit 2 choice/unplaced-newer +no-layout
        step_5/a/model.pt:whole100 step_5/b/model.pt:whole200 -> exit 2 choice/unplaced-newer +no-layout
        # Models in shards among states: what a loop began with, and what it exports.
        step_10.pt hf/step_10/:shards= step_20.pt hf/step_20/:shards= -> loads step_20.pt
        step_10/:halves step_10/hf/:shards= step_20/:halves step_20/hf/:shards=
            -> loads step_20/model.pt step_20/optimizer.pt
        then cut step_20/model.pt -> step_10 -truncated
        pretrained/:shards ckpt/step_10.pt ckpt/step_20.pt -> ckpt/step_20.pt
        then cut ckpt/* -> exit 4 choice/none-usable -truncated
        ckpt/step_10.pt ckpt/step_20.pt final_model/:shards -> ckpt/step_20.pt ~passed-over
        ckpt/step_10.pt ckpt/step_20.pt {ckpt/hf,pretrained_model}/model.safetensors
            -> ckpt/step_20.pt ~passed-over
        ckpt/step_10.pt ckpt/step_20.pt {ckpt/hf,pretrained_model}/pytorch_model.bin:model3
            -> ckpt/step_20.pt ~passed-over
        then cut ckpt/*.pt -> exit 4 choice/none-usable -truncated ~passed-over
        # A stray file beside models in shards.
        step_10/:shards step_20/:shards vectors.pt:model3@0 -> step_20
        # An export after states, and the best of a callback that saves weights alone.
        step-4/:dcp step-6/:dcp step-7/:shards -> step-6 +passed-over
        steps/epoch=1-step=10.ckpt:lightning steps/epoch=2-step=20.ckpt:lightning;
            best/epoch=2-step=25.ckpt:lightmodel -> steps/epoch=2-step=20.ckpt +passed-over
        epoch=1-step=10.ckpt:lightning end-epoch=1-step=15.ckpt:lightning epoch=2-step=20.ckpt:lightning
            -> epoch=2-step=20.ckpt
        best/epoch=1-step=15.ckpt:lightning steps/epoch=2-step=20.ckpt:lightning;
            steps/epoch=3-step=30.ckpt:lightning -> exit 2 tree/several-runs
        a/epoch=1-step=10.ckpt:lightning b/epoch=2-step=20.ckpt:lightning -> exit 2 tree/several-runs
        # --- 3. Which is the newest
        step_10/model.pt:state step_20/model.pt:state {step_30.tmp,.step_30_tmp}/model.pt:state -> step_20 +unfinished-save
        step_100.pt last.pt:whole100= -> step_100.pt
        then cut step_100.pt -> last.pt +truncated
        # Copied without times.
        epoch_9.pt:whole900 epoch_10.pt:whole1000= last.pt:whole1000= -> epoch_10.pt +mtime-not-kept
        2026-11-01.pt 2026-11-02.pt -> 2026-11-02.pt
        2026-11-02.pt:state1 2026-11-01.pt:state2= -> 2026-11-02.pt +mtime-not-kept
        then as it is | order=step -> 2026-11-02.pt
        model_2026-11-02.pt:state1 model_20261103_120000.pt:state2 model_2026-11-01.pt:state3 -> exit 2 order/times-contradict-steps
        model_2026-11-02.pt:state1 model_20261103_120000.pt:state2 model_2026-11-01.pt:state3 model_20261102_120000.pt:state4
            -> model_20261102_120000.pt +mtime-disagrees-with-step
        epoch_1_step_10.pt:state epoch_1_step_20.pt:state= epoch_2_step_10.pt:state50=
            -> epoch_2_step_10.pt +mtime-not-kept
        # --- 4. Is it whole
        model.pt:model3 optimizer.pt:optimizer3= -> model.pt
        # A whole state is a question, also if its name says that it is not: no older one is taken instead.
        step_10.pt step_20.pt {tmp,.tmp_30,tmp_model_30,model_30.tmp,model_30_tmp}.pt:whole30
            -> exit 2 choice/unplaced-newer
        # A damaged one is no checkpoint, whatever its name: a warning, not a question at each restart.
        step_10.pt step_20.pt {tmp,.tmp_30,tmp_30,agent_0,final}.pt:cut -> step_20.pt +no-layout
        then as it is | no_fallback=yes -> exit 2 choice/unplaced-newer
        step_10.pt step_20.pt {agent_0.pt,step_300.pt.zst}:text -> exit 2 choice/unplaced-newer   # maybe packed, and whole
        step_10.pt step_20.pt agent_0.pt agent_1.pt:cut -> exit 2 choice/unplaced-newer
        # An empty directory in the place of a file is told, also where no number says that it was the newest.
        step_10.pt last.pt:whole20;rm last.pt;mkdir last.pt -> step_10.pt +unfinished-save
        # An optimizer's state counts beside a model that is cut, too.
        {100/model,model_100}.pt:model100 {200/model,model_200}.pt:model200! {200/optim,optim_200}.pt:optimizer200=
            -> exit 4 choice/none-usable -missing-part -truncated
        # The count of an optimizer that was made anew is no step: it is of the save that it was written with.
        model_100.pt:model model_200.pt:model model_300.pt:model optimizer.pt:optimizer100=
            -> loads model_300.pt optimizer.pt => ok
        model_100.pt:model model_200.pt:model optimizer.pt:optimizer200 model_300.pt:model@60
            -> loads model_200.pt optimizer.pt
        model_100.pt:model model_200.pt:model model_300.pt:model optimizer.pt:optimizer100
            -> exit 4 choice/none-usable -missing-part
        # Two halves that were not written together.
        model.pt:model3@10 optimizer.pt:optimizer3@0 -> model.pt +mixed-attempts
        # What is written over beside weights that are kept is of those that it was written with.
        lora_000000250.safetensors lora_000000500.safetensors lora_000000750.safetensors;
            optimizer.pt:optimizer750= -> loads lora_000000750.safetensors optimizer.pt => ok
        lora_000000250.safetensors lora_000000500.safetensors optimizer.pt:optimizer500=;
            lora_000000750.safetensors -> loads lora_000000500.safetensors optimizer.pt
        lora_000000250.safetensors lora_000000500.safetensors lora_000000750.safetensors:cut;
            optimizer.pt:optimizer750= -> exit 4 choice/none-usable -missing-part -truncated
        # Of a save whose model is gone.
        lora_000000250.safetensors lora_000000500.safetensors@60 optimizer.pt:optimizer375@{30,90}
            -> exit 4 choice/none-usable -missing-part
        model_250.pt:model model_500.pt:model@60 optimizer.pt:optimizer500= scheduler.pt:scheduler500=
            -> loads model_500.pt optimizer.pt scheduler.pt
        # A healthy loop: the last once more under its own name, and the best.
        model_epoch1.pt:model opt_epoch1.pt:optimizer= best.pt:model1= model_epoch2.pt:model;
            opt_epoch2.pt:optimizer= last.pt:model2= -> model_epoch2.pt -missing-part => ok
        step_10/:shards step_10/optimizer.pt:optimizer10= step_20/:shards step_20/optimizer.pt:optimizer20=
            -> loads step_20/model-00001-of-00002.safetensors step_20/model-00002-of-00002.safetensors step_20/model.safetensors.index.json step_20/optimizer.pt
        then rm step_20/model-00002-of-00002.safetensors -> step_10 -missing-part
        step_10/:shards step_10/optimizer.pt:optimizer10= step_20/:shards -> step_10 -missing-part
        step_10/:shards step_10/optimizer.pt:optimizer10= step_20/:shards step_20/optimizer.pt:optimizer20!=
            -> step_10 -truncated
        # Its model is gone.
        step_10/:shards step_10/optimizer.pt:optimizer10= step_20/optimizer.pt:optimizer20
            -> exit 2 choice/unplaced-newer
        step_20/optimizer.pt:optimizer20 -> exit 4 choice/none-usable -missing-part
        step_10/:shards step_10/optimizer.pt:optimizer10= step_10/muon.pt:optimizer10=
            -> exit 2 choice/unplaced-newer
        # --- 5. What no layout places
        step_1.pt;
            {agent_zero_300.bin:whole,student300.dat:whole,dernier:whole9,fertig.state:whole9,a[1].pt:whole9}
            -> exit 2 choice/unplaced-newer
        {agent_zero_300.bin:whole,student300.dat:whole,dernier:whole9,fertig.state:whole9,a[1].pt:whole9};
            step_1.pt -> step_1.pt
        step_1.pt {train.log,curve.png,notes.txt,main.py,events.out.tfevents.1:text} -> step_1.pt
        step_1/a.pt step_1/mine/kept:whole300 -> exit 2 choice/unplaced-newer
        step_1/a.pt step_1/mine/kept:model300 -> step_1
        step_1.pt {kept,kept.bin}:model1 -> exit 2 choice/unplaced-newer   # it may be of a kind that nobody knows
        epoch_0.pt epoch_1.pt last.pt.tmp:whole3! -> epoch_1.pt +unfinished-save
        # --- Links
        step_10.pt:model; ln step_10.pt step_20.pt -> step_20.pt +mtime-not-kept +step-mismatch
        10/model.pt:model10 10/optimizer.pt:optimizer10= 20/optimizer.pt:optimizer20;
            ln ../10/model.pt 20/model.pt -> 20 +mixed-attempts +step-mismatch
        then as it is | no_fallback=yes -> exit 6 choice/none-usable
        step_10.pt:model; ln step_10.pt step_0010.pt -> step_0010.pt
        ../4f2a.pt:model10; ln ../4f2a.pt step_20.pt -> step_20.pt
        ckpt_2026-01-02.pt:model5 ckpt_2026-01-03.pt:model100; ln ckpt_2026-01-03.pt last.pt
            -> ckpt_2026-01-03.pt
        checkpoint-10/:trainer; ln checkpoint-10 checkpoint-20 -> checkpoint-10 +step-mismatch
        checkpoint-10/:trainer; ln checkpoint-10 last -> checkpoint-10
        checkpoint-10/:trainer; ln checkpoint-10 checkpoint-010 -> checkpoint-10
        # A link that is called as a later save and leads nowhere, and directories that are not done.
        step_10.pt step_20.pt; ln gone/step_30.pt step_30.pt -> step_20.pt -dangling-link
        then as it is | no_fallback=yes -> exit 6 choice/none-usable -dangling-link
        # --- Loops of one's own whose directories are called as a framework's
        checkpoint-10/model.safetensors:tensors10 checkpoint-10/optimizer.pt:optimizer10=;
            checkpoint-10/scheduler.pt:scheduler10=
            -> loads checkpoint-10/model.safetensors checkpoint-10/optimizer.pt checkpoint-10/scheduler.pt
        checkpoint-10/model.safetensors:tensors10 checkpoint-10/optimizer.pt:optimizer10=;
            checkpoint-10/config.json= -> checkpoint-10
        checkpoint-10/:halves checkpoint-20/:halves checkpoint-20/config.json= -> checkpoint-20
        # A save of the Trainer that was killed stays unfinished: its arguments come before its optimizer.
        checkpoint-10/:trainer; rm checkpoint-10/trainer_state.json
            -> exit 3 tree/nothing-there +unfinished-save
        then rm checkpoint-10/optimizer.pt -> exit 3 tree/nothing-there +unfinished-save
        # As NeMo-RL's.
        step_10/model.pt:model10 step_10/config.yaml= step_20/model.pt:model20 step_20/config.yaml= -> step_20
        # Accelerate's with FSDP, whose model was lost.
        checkpoint-10/optimizer_0/:dcp10 -> checkpoint-10/optimizer_0 +missing-part
        # The Trainer resumes from no model alone, which a first save leaves that dies after it.
        checkpoint-20/{model,adapter_model}.safetensors:tensors checkpoint-20/config.json= -> checkpoint-20 +missing-part
        checkpoint-20/:shards -> checkpoint-20 +missing-part
        # Fabric saves a directory, called as a file, where the model is sharded, and meta.pt last into it.
        step-10/:dcp -> step-10
        state.ckpt/:dcp10 -> state.ckpt +missing-part
        then state.ckpt/meta.pt:scheduler10 -> state.ckpt
        step-500/lit_model.pth/:dcp500 step-500/lit_model.pth/meta.pt:scheduler500 step-1000/lit_model.pth/:dcp1000
            -> step-500 -missing-part
        then step-1000/lit_model.pth/meta.pt:scheduler1000 -> step-1000
        then rm step-500 -> step-1000
        then rm step-1000/lit_model.pth/meta.pt -> step-1000 +missing-part
        # An adapter that LitGPT trains.
        step-000010/lit_model.pth.{lora,adapter,adapter_v2}:model10 -> step-000010
        # --- Files of ranks
        step_10/rank_0.pt:model10 step_10/rank_1.pt:model11= step_10/rank_3.pt:model13=
            -> exit 4 choice/none-usable -missing-rank +world-size-inferred
        step_10/rank_0_of_2.pt:model10 step_10/rank_1_of_2.pt:model11=
            -> loads step_10/rank_0_of_2.pt step_10/rank_1_of_2.pt
        then rm step_10/rank_1_of_2.pt -> exit 4 choice/none-usable -missing-rank
        step_10/rank_0/model.pt:model10 step_10/rank_1/model.pt:model11= step_20/rank_0/model.pt:model20
            -> step_10 -missing-rank +world-size-inferred
        step_10/model/rank_0.pt:model10 step_10/model/rank_1.pt:model11= step_20/model/rank_0.pt:model20
            -> step_10 -missing-rank +world-size-inferred
        # Optimizers alone.
        optim_10_rank0.pt:optimizer optim_10_rank1.pt:optimizer= net_10.pth:model
            -> exit 4 choice/none-usable -missing-part +world-size-inferred
        state_rank0.pt:whole20 state_rank1.pt:whole20= -> loads state_rank0.pt state_rank1.pt
        # Written over, of two steps.
        state_rank0.pt:whole20 state_rank1.pt:whole10
            -> exit 4 choice/none-usable -missing-rank +world-size-inferred
        # It says that there are others.
        step_10/checkpoint_1.pt:whole10 -> exit 4 choice/none-usable -missing-rank +world-size-inferred
        10/weights_tp_rank_world_size=1_2_pp_rank_world_size=0_1.pth:whole10
            -> exit 4 choice/none-usable -missing-rank
    pipeline
        # unet.save_pretrained(f"{home}/unet"), and torch.save of the optimizer beside it.
        as it is -> loads epoch_2/optimizer.pt epoch_2/text_encoder/model.safetensors epoch_2/unet/diffusion_pytorch_model.safetensors
        rm epoch_2/{unet,text_encoder,optimizer.pt} -> epoch_1 -missing-part
    ranks
        as it is -> loads step_20/model_rank_0.pt step_20/model_rank_1.pt step_20/optim_rank_0.pt step_20/optim_rank_1.pt
        rm step_20/{model_rank_1,optim_rank_1,model_rank_0}.pt -> step_10 -missing-rank +world-size-inferred
    # --- A text that names the latest save (latest_checkpoint.txt) beside files of no known arrangement.
    files
        put latest_checkpoint.txt {step_300.pt,/elsewhere/ckpts/step_300.pt,out/step_300.pt/}
            -> step_200.pt -missing-part +dangling-tracker
        then rm *.pt | allow_none=yes -> exit 4 tree/first-launch-leftovers +dangling-tracker
        put {latest,latest.txt,last.txt,last_checkpoint.txt,latest_ckpt.txt} step_100.pt
            -> step_200.pt +stale-tracker
        put {latest,last.txt} step_300.pt -> step_200.pt -missing-part +dangling-tracker
        put {latest,last.txt} loss 0.25 nothing else -> step_200.pt +dangling-tracker
        put latest_checkpoint.txt {200,the best so far,a b} -> step_200.pt +bad-tracker
        latest_checkpoint.txt:{empty,zeros,json} -> step_200.pt +bad-tracker
    directories
        put latest_checkpoint.txt {step_300,/elsewhere/ckpts/step_300,out/step_300/}
            -> step_200 -missing-part +dangling-tracker
        then rm step_*/* | allow_none=yes -> exit 4 tree/first-launch-leftovers +dangling-tracker
        put latest_checkpoint.txt step_100 -> step_200 +stale-tracker
        put latest_checkpoint.txt {200,the best so far} -> step_200 +bad-tracker
    # It names the model of several files, or any file of a save.
    averages
        put latest_checkpoint.txt model_100.pt -> ema_200.pt +stale-tracker
        put latest_checkpoint.txt model_200.pt -> ema_200.pt
    last
        put latest_checkpoint.txt model_100.pt -> model_200.pt +stale-tracker
        put latest_checkpoint.txt model_200.pt -> model_200.pt
    halves
        put latest_checkpoint.txt {weights,training_state}_30.pt -> weights_30.pt
        put latest_checkpoint.txt {weights,training_state}_20.pt -> weights_30.pt +stale-tracker
        put latest_checkpoint.txt {weights,training_state}_20.pt | resume_from=tracker
            -> weights_20.pt +stale-tracker
    # --- Saves that never finished beside the choice: newer by time or by step.
    planted
        step-20/:dcp@5 step-30/:dcp@9; rm step-30/.metadata -> step-20 +unfinished-save
        step-20/:dcp@5 step-30/:dcp@9; rm step-30/.metadata | max_step=20 -> step-20
        step-20/:dcp@5 step-30/:dcp@9; rm step-30/.metadata | max_step=30 -> step-20 +unfinished-save
        step-20/:dcp@5 step-30/:dcp@9; rm step-30/.metadata | kind=periodic -> step-20 +unfinished-save
        step-20/:dcp@5 step-30/:dcp@1; rm step-30/.metadata -> step-20 +unfinished-save
        step-20/:dcp@5 step-30/:dcp@1; rm step-30/.metadata | order=step -> step-20 +unfinished-save
        step-20/:dcp@5 step-10/:dcp@9; rm step-10/.metadata -> step-20 +unfinished-save
        step-20/:dcp@5 step-10/:dcp@9; rm step-10/.metadata | order=step -> step-20
        step-20/:dcp@5 step-10/:dcp@1; rm step-10/.metadata -> step-20
        a/step-20/:dcp@5 b/step-30/:dcp@9; rm b/step-30/.metadata -> a/step-20
        a/step-20/:dcp@5 b/step-30/:dcp@9; rm b/step-30/.metadata | run=a -> a/step-20
        iter_0000010/:megatron -> iter_0000010 +missing-tracker
        step-10/:dcp; rm step-10/.metadata -> exit 3 tree/nothing-there +unfinished-save
        then as it is | allow_none=yes -> nothing +unfinished-save
        # MindIO TTP renames its directory last; it may lie beside the run, which is then the one that died. Of two it is
        # not known whose they are.
        run/net-1_10.ckpt:mindspore gasps/tft_saved_checkpoints-step_17_tmp/rank_0/ttp_rank_0-2_7.ckpt:mindspore17
            -> run/net-1_10.ckpt +unfinished-save
        then other/ttp_saved_checkpoints-step_18_tmp/rank_0/ttp_rank_0-2_8.ckpt:mindspore18 -> run/net-1_10.ckpt
    # --- What lies behind links to directories.
    planted
        # Links in a circle end.
        mkdir a; ln ../b a/to-b; b/:dcp10; ln ../a b/to-a; ln .. a/up -> b
    # A rank behind links is there.
    kept
        ln kept iter_0000020 -> loads kept/mp_rank_00/model_optim_rng.pt rank-one/model_optim_rng.pt
        then ln ../rank-one kept/0-first -> kept +missing-tracker
        then ln ../iter_0000010 kept/previous -> kept +missing-tracker
        then ln .. kept/up; ln ../kept rank-one/back -> kept +missing-tracker
        mv iter_0000010 zz/iter_0000010; ln zz/iter_0000010 iter_0000010; ln ../kept zz/iter_0000020
            -> kept +missing-tracker
        then ln .. kept/up; ln ../kept rank-one/back -> kept +missing-tracker
    planted
        # Of two links to one directory elsewhere the one that tells more.
        iter_0000010/:megatron iter_0000020/:megatron; mv iter_0000020 ../disk/kept; ln ../disk/kept iter_0000020;
            ln ../disk/{kept,kept/mp_rank_01} a-latest -> ../disk/kept +missing-tracker
    # --- Directories and names that keep the saves of one run apart.
    dcp/two slow
        # torchtitan with torchft saves at every step where replicas are in their data, and the state less often.
        cp step-10 ft-replicat-0/step-10; cp step-10 ft-replicat-0/step-101; cp step-20 ft-replicat-0/step-20
            -> step-20 +passed-over
        then cp step-10 ft-replicat-1/step-10; cp step-20 ft-replicat-1/step-20; cp step-20 ft-replicat-1/step-201
            -> step-20 +passed-over
        then rm step-10; rm step-20 -> exit 4 choice/none-usable
    # Directories of versions, as Weights & Biases' clients download them: one run of saves.
    lightnings
        as it is -> model:v10 => ok
        cut model:v10/model.ckpt -> model:v9 -truncated
        rm model:v10/model.ckpt -> model:v9 +unfinished-save
        mv model:v9 other:v9 -> exit 2 tree/several-runs
    states
        as it is -> model:v10 => ok
        cut model:v10/model.ckpt -> model:v9 -truncated
        rm model:v10/model.ckpt -> model:v9 +unfinished-save
        mv model:v9 other:v9 -> exit 2 tree/several-runs
    weights
        as it is -> model:v10 => ok
        cut model:v10/model.ckpt -> model:v9 -truncated
        mv model:v9 artifacts/model:v9; mv model:v10 artifacts/model:v10; mv model:v2 artifacts/model:v2
            -> artifacts/model:v10
    """,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_what_is_answered_about_a_small_tree(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)
