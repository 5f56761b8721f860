"""``ckpt prune``, called by ``ckpt watch``, beside a real Trainer of transformers that saves, keeps a few itself and is started again.

    python benchmarks/prune_trainer.py [--environments DIR] [--starts 3]    # fixtures/make_real.py has the environment

Each start trains on from what ``get_last_checkpoint`` finds, which must be what the start before saved last, while
``ckpt watch ROOT --on-good 'ckpt prune ROOT --keep 2 --apply'`` removes what it may. The Trainer itself keeps four (save_total_limit).
What is left must be good, the last save among it, and ``ckpt plan`` must choose that.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "fixtures"))

from make_real import ENVIRONMENTS_HOME, interpreter  # noqa: E402

STEPS = 24
"""Of each start; every second one is saved."""
TRAIN = """
import json, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

out, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4, "vocab_size": 16}
model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=1, max_position_embeddings=16))
rows = [{"input_ids": ids, "labels": ids} for ids in torch.arange(32).reshape(8, 4) % 16]
arguments = TrainingArguments(
    output_dir=out, max_steps=steps, per_device_train_batch_size=2, save_steps=2, save_total_limit=4,
    report_to=[], use_cpu=True, disable_tqdm=True,
)
last = get_last_checkpoint(out)
trainer = Trainer(model=model, args=arguments, train_dataset=rows)
trainer.train(resume_from_checkpoint=last)
print(json.dumps({"from": last, "step": trainer.state.global_step}))
"""


def ckpt(*words: object) -> list[str]:
    return [sys.executable, "-m", "ckpt_tools", *map(str, words)]


def watched(root: Path, state: Path) -> subprocess.Popen[bytes]:
    prune = shlex.join(ckpt("prune", root, "--keep", "2", "--settle", "0s", "--apply", "--json"))
    line = ckpt("watch", root, "--settle", "0s", "--rescan", "1s", "--on-good", prune)
    out = (state / "events.jsonl").open("ab")
    return subprocess.Popen(line, stdout=out, env=os.environ | {"XDG_STATE_HOME": str(state)})


def trained(python: Path, root: Path, steps: int) -> dict[str, Any]:
    """One start. Raises SystemExit where it fails."""
    line = [python, "-c", TRAIN, root, str(steps)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the Trainer failed beside the prune:\n{done.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().rsplit("\n", 1)[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS_HOME, metavar="DIR")
    parser.add_argument("--starts", type=int, default=3)
    asked = parser.parse_args()
    python, last = interpreter(asked.environments, "hf"), None
    with tempfile.TemporaryDirectory() as name:
        root, state = Path(name, "run"), Path(name, "state")
        root.mkdir()
        state.mkdir()
        for start in range(1, asked.starts + 1):
            with watched(root, state) as process:
                try:
                    said = trained(python, root, start * STEPS)
                finally:
                    process.send_signal(signal.SIGTERM)
            if said["from"] != (last and str(root / last)):
                sys.exit(f"start {start} resumed from {said['from']}, the one before had saved {last}")
            last = f"checkpoint-{said['step']}"
        events = [json.loads(line) for line in (state / "events.jsonl").read_text().splitlines()]
        good = subprocess.run(ckpt("verify", root, "-q"), stdout=subprocess.DEVNULL, check=False).returncode
        plan = json.loads(
            subprocess.run(ckpt("plan", root, "--json", "-q"), stdout=subprocess.PIPE, check=True).stdout
        )
        left = sorted(path.name for path in root.glob("checkpoint-*"))
    if good or plan["checkpoint"]["path"] != str(root / str(last)) or last not in left:
        sys.exit(
            f"verify ended with {good}, plan chose {plan['checkpoint']['path']}, {last} was saved last of {left}"
        )
    ended = [e for e in events if e["type"] == "hook"]
    removed = sum(e["output"].count('"removed"') for e in ended)
    refused = sorted({e["output"] for e in ended if e["exit_code"]})
    print(
        f"{asked.starts} starts, {asked.starts * STEPS // 2} saves: ckpt removed {removed}; left: {', '.join(left)}"
    )
    print(f"refused meanwhile: {'; '.join(refused) or 'never'}")


if __name__ == "__main__":
    main()
