"""The Kubernetes manifests of ``ckpt hook install``: valid against published schemas, and their shell run as
it stands, with a pod's environment.

No cluster: a pod's mounts are directories put in place of /plans and /decision, and torchrun is a stand-in,
because only a cluster resolves the names of its pods (the real one runs in test_hook_install.py).
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from hook_job import Job
from run_helpers import megatron

from ckpt_tools.cli.hook_install import snippets

Manifest = dict[str, Any]
ROOTS = ["/data/run-7", '/data/it\'s: a "run" # 50 %']


def every(item: Manifest) -> Manifest:
    return {"type": "array", "items": item}


def closed(*required: str, **fields: Manifest) -> Manifest:
    """An object with no other fields."""
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": fields}


OBJECT, TEXT, WHOLE = {"type": "object"}, {"type": "string"}, {"type": "integer", "minimum": 0}
NAME = {**TEXT, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
ACTIONS = "AbortJob RestartJob RestartTask RestartPod TerminateJob CompleteJob"
EVENTS = (
    "* PodPending PodRunning PodFailed PodEvicted Unknown TaskCompleted OutOfSync CommandIssued JobUpdated"
)
ACTION, EVENT = {"enum": ACTIONS.split()}, {"enum": [*EVENTS.split(), "TaskFailed"]}
CODE = {"type": "integer", "not": {"const": 0}}
POLICY = closed("action", action=ACTION, event=EVENT, exitCode=CODE, timeout=TEXT)
EITHER = {"oneOf": [{"required": ["event"]}, {"required": ["exitCode"]}]}
MANY = {"minAvailable": WHOLE, "maxRetry": WHOLE, "policies": every({**POLICY, **EITHER})}
PLUGINS = {**OBJECT, "additionalProperties": every(TEXT)}
TASK = closed(name=NAME, replicas=WHOLE, template=OBJECT, **MANY)
SPEC = closed(schedulerName=TEXT, queue=TEXT, plugins=PLUGINS, tasks=every(TASK), **MANY)
API, JOB = {"const": "batch.volcano.sh/v1alpha1"}, {"const": "Job"}
OF_ALL = ("apiVersion", "kind", "metadata", "spec")
VOLCANO = closed(*OF_ALL, apiVersion=API, kind=JOB, metadata=OBJECT, spec=SPEC)
"""The fields of Volcano's Job that we use, written down from its CRD (volcano-sh/volcano,
config/crd/volcano/bases/batch.volcano.sh_jobs.yaml), which no package on PyPI has; stricter than the CRD,
which lets unknown fields pass. The pods within are checked against Kubernetes' own schema."""


def manifests(name: str, root: object = "/data/run-7") -> list[Manifest]:
    return list(yaml.safe_load_all(snippets()[name].fill(str(root))))


def pod(template: Manifest) -> Manifest:
    metadata = {"name": "x", **template.get("metadata", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def kubernetes(manifest: Manifest) -> None:
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def whole(manifest: Manifest) -> None:
    """Kubeflow's own models (PyPI: kubeflow-trainer-api) drop what they do not know, so nothing may be
    missing when they give it back.
    """
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob  # 400 modules, of use to few

    assert TrainerV1alpha1TrainJob.from_dict(manifest).to_dict() == manifest


@pytest.mark.parametrize("root", ROOTS)
def test_the_indexed_job_is_valid(root: str) -> None:
    service, job = manifests("kubernetes", root)
    kubernetes(service)
    kubernetes(job)
    spec = job["spec"]["template"]["spec"]
    assert [c["env"][0]["value"] for c in spec["initContainers"] + spec["containers"]] == [root, root]
    assert service["metadata"]["name"] == spec["subdomain"]  # or train-0.train is no name
    (rule, *_) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == spec["initContainers"][0]["name"]


@pytest.mark.parametrize("root", ROOTS)
def test_the_volcano_job_is_valid(root: str) -> None:
    (job,) = manifests("volcano", root)
    jsonschema.validate(job, VOLCANO)
    kubernetes(pod(job["spec"]["tasks"][0]["template"]))


@pytest.mark.parametrize("root", ROOTS)
def test_the_train_job_is_valid(root: str) -> None:
    (job,) = manifests("kubeflow", root)
    whole(job)
    (patch,) = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    spec = patch["template"]["spec"]["template"]["spec"]
    trainer = {k: job["spec"]["trainer"][k] for k in ("env", "command", "args", "image")}
    kubernetes(pod({"spec": {**spec, "containers": [{**spec["containers"][0], **trainer}]}}))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("kubernetes", "parallelsm: 2"), ("volcano", "minAvailabel: 2"), ("kubeflow", "runtimReff: {}")],
)
def test_a_misspelt_field_is_seen(name: str, wrong: str) -> None:
    """The checks above can fail."""
    job = manifests(name)[-1]
    job["spec"] |= yaml.safe_load(wrong)
    checks = {"kubernetes": kubernetes, "volcano": lambda j: jsonschema.validate(j, VOLCANO), "kubeflow": whole}  # fmt: skip
    with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError, AssertionError)):
        checks[name](job)


# ---- the shell inside


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "plans").mkdir()
    return Job(tmp_path)


def run(job: Job, container: Manifest, index: int, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What a container of pod ``index`` runs: its command with its arguments, in its environment."""
    decision = job.tmp / f"pod-{index}"
    decision.mkdir(exist_ok=True)
    own = {e["name"]: e["value"] for e in container["env"] if "value" in e}
    must = "args" if "{ckpt.args}" in str(container["args"]) else "path"
    own |= {"MUST_RESUME": must} if job.exists else {}
    words = [*container["command"], *container["args"]]
    words = [w.replace("/plans", str(job.tmp / "plans")).replace("/decision", str(decision)) for w in words]
    for word in words[2:]:
        subprocess.run(["bash", "-n"], input=word, text=True, check=True)
    full = job.env("torchrun", **own, **env)
    return subprocess.run(words, cwd=job.cwd, env=full, capture_output=True, text=True, timeout=1000)


def pods(job: Job, name: str) -> list[list[int]]:
    """The exit codes of the containers of two pods, one after the other; none is started after one that
    fails.
    """
    *_, manifest = manifests(name, job.root)
    codes: list[list[int]] = [[], []]
    for i in range(2):
        if name == "kubernetes":
            spec = manifest["spec"]["template"]["spec"]
            containers = spec["initContainers"] + spec["containers"]
            env = {"JOB_UID": "1c6e", "JOB_COMPLETION_INDEX": str(i)}
        elif name == "volcano":
            containers = manifest["spec"]["tasks"][0]["template"]["spec"]["containers"]
            env = {"GROUP": "train-1c6e", "VERSION": "0", "VC_TASK_INDEX": str(i), "VK_TASK_INDEX": str(i)}
            env |= {"VC_WORKER_NUM": "2", "VC_WORKER_HOSTS": "train-worker-0.train,train-worker-1.train"}
        else:
            containers = [manifest["spec"]["trainer"]]
            env = {"JOB_UID": "1c6e", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": str(i)}
            env |= {"PET_MASTER_ADDR": "train-node-0-0.train", "PET_MASTER_PORT": "29400"}
        for container in containers:
            done = run(job, container, i, env)
            codes[i].append(done.returncode)
            if done.returncode:
                break
    return codes


ALL = ["kubernetes", "volcano", "kubeflow"]


@pytest.mark.share(4)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("holds", "step"), [("older", "10"), ("none", "")])
def test_both_pods_start_from_one_decision(job: Job, name: str, holds: str, step: str) -> None:
    job.holds(holds)
    assert pods(job, name) == ([[0, 0]] * 2 if name == "kubernetes" else [[0]] * 2)
    told = job.resumed(2, step)
    assert len({t["CKPT_PLAN"] for t in told}) == 1  # the second pod read what the first one wrote
    if name != "kubernetes":
        args = ["--load", str(job.root), "--ckpt-step", "10"] if step else []
        assert all(t["args"] == args for t in told)
    if name == "volcano":
        first, second = (t["TORCHRUN_OPTIONS"] for t in told)
        assert "--master-addr=train-worker-0.train" in first and "--nnodes=2 --node-rank=1" in second


@pytest.mark.share(3)
@pytest.mark.parametrize("name", ALL)
def test_no_pod_starts_when_none_is_usable(job: Job, name: str) -> None:
    job.holds("unusable")
    assert pods(job, name) == [[4], [4]]  # the code that podFailurePolicy and Volcano's policies name
    assert job.told == []


def test_a_file_replaced_between_the_containers_stops_the_pod(job: Job) -> None:
    job.holds("found")
    *_, manifest = manifests("kubernetes", job.root)
    spec = manifest["spec"]["template"]["spec"]
    env = {"JOB_UID": "1c6e", "JOB_COMPLETION_INDEX": "0"}
    assert run(job, spec["initContainers"][0], 0, env).returncode == 0
    next(job.root.glob("iter_0000020/*/*.pt")).touch()
    assert run(job, spec["containers"][0], 0, env).returncode == 5
    assert job.told == []


@pytest.mark.exhaustive
def test_replaced_pods_decide_anew(job: Job) -> None:
    """The pods of a Job that failed are replaced under the same uid: what was saved meanwhile counts."""
    for step in (10, 20):
        megatron(job.root, steps=(step,))
        assert pods(job, "kubernetes") == [[0, 0]] * 2
    assert [t["CKPT_STEP"] for t in job.told] == ["10", "10", "20", "20"]
