"""What ``ckpt watch`` goes with, by the programs that read it: Prometheus and its promtool, systemd, and the
schema of Kubernetes.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import kubernetes_validate
import pytest
import yaml
from hook_job import free_port, printed
from places import DOCS
from run_helpers import CKPT, broken_body, ckpt, megatron
from slurm_cluster import needs
from watching import env, watching

ROOTS = ("/data/run-7", "/data/a b$HOME%h\"c'd")
PAGE = (DOCS / "guarding.md").read_text()


def dashboard() -> list[str]:
    """The expressions of the dashboard, for all directories."""
    panels = json.loads(printed("watch-grafana"))["panels"]
    return [target["expr"].replace("$root", ".*") for panel in panels for target in panel["targets"]]


def rules() -> list[dict[str, Any]]:
    return yaml.safe_load(printed("watch-alerts"))["groups"][0]["rules"]


def asked_of(tmp: Path, name: str, *words: object) -> subprocess.CompletedProcess[str]:
    needs(name)
    return subprocess.run([name, *map(str, words)], cwd=tmp, capture_output=True, text=True, check=False)


# -- alert rules ---------------------------------------------------------------------------------------------

LABEL = '{root="/r"}'
FIRES = {
    "CkptNoNewCheckpoint": ({"ckpt_last_good_timestamp_seconds": "0x90", "ckpt_save_interval_seconds": "600x90"}, "1h", {}),
    "CkptDamaged": ({'ckpt_checkpoints{root="/r",state="bad"}': "0x5 1x90"}, "10m", {"state": "bad"}),
    "CkptCannotResume": ({"ckpt_plan_exit_code": "4x90"}, "15m", {}),
    "CkptTrackerWrong": ({"ckpt_tracker_agrees": "0x90"}, "20m", {}),
    "CkptRestartLoop": ({"ckpt_restarts_from_same_step": "0 1 2 3x90"}, "10m", {}),
    "CkptCannotLook": ({"ckpt_watch_up": "0x90"}, "15m", {}),
    "CkptCommandFails": ({'ckpt_watch_hooks_total{root="/r",result="timeout"}': "0x5 1x90"}, "10m", {"result": "timeout"}),
    "CkptWatchGone": ({"ckpt_last_good_step": "1x90"}, "15m", None),
}  # fmt: skip
"""Alert -> (series, when it fires, labels beside root; None for no label)."""
QUIET = {
    "ckpt_last_good_timestamp_seconds": "0+60x90", "ckpt_save_interval_seconds": "600x90", 'ckpt_checkpoints{root="/r",state="bad"}': "0x90",
    "ckpt_plan_exit_code": "3x90", "ckpt_tracker_agrees": "1x90", "ckpt_restarts_from_same_step": "2x90", "ckpt_watch_up": "1x90",
    'ckpt_watch_hooks_total{root="/r",result="ok"}': "0+1x90", "ckpt_watch_last_pass_timestamp_seconds": "0+60x90",
}  # fmt: skip
"""A run that goes well, and no alert fires."""


def rule_test(series: dict[str, str], at: str, alert: str, labels: dict[str, str] | bool | None) -> dict:
    named = [{"series": name if "{" in name else f"{name}{LABEL}", "values": v} for name, v in series.items()]
    expected = []
    if labels is not False:
        (rule,) = [r for r in rules() if r["alert"] == alert]
        own = {} if labels is None else {"root": "/r", **labels}
        expected = [{"exp_labels": {**rule["labels"], **own}}]
    test = {"eval_time": at, "alertname": alert, "exp_alerts": expected}
    return {"interval": "1m", "input_series": named, "alert_rule_test": [test]}


def verdict(tmp: Path, tests: list[dict]) -> subprocess.CompletedProcess[str]:
    """promtool's verdict; the texts of alerts, which it compares too, are taken away."""
    text = yaml.safe_load(printed("watch-alerts"))
    for rule in text["groups"][0]["rules"]:
        del rule["annotations"]
    (tmp / "alerts.yaml").write_text(yaml.safe_dump(text))
    file = {"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp / "tests.yaml").write_text(yaml.safe_dump(file))
    return asked_of(tmp, "promtool", "test", "rules", "tests.yaml")


def test_the_rules_are_valid_and_each_is_tried(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(printed("watch-alerts"))
    done = asked_of(tmp_path, "promtool", "check", "rules", "rules.yaml")
    assert done.returncode == 0 and f"{len(FIRES)} rules found" in done.stdout, done.stderr
    assert {rule["alert"] for rule in rules()} == set(FIRES)


@pytest.mark.exhaustive
def test_each_alert_fires_and_none_where_all_is_well(tmp_path: Path) -> None:
    fire = [rule_test(series, at, alert, labels) for alert, (series, at, labels) in FIRES.items()]
    quiet = [rule_test(QUIET, at, alert, False) for alert in FIRES for at in ("5m", "80m")]
    done = verdict(tmp_path, fire + quiet)
    assert done.returncode == 0, done.stdout + done.stderr
    done = verdict(tmp_path, [rule_test(QUIET, "80m", "CkptDamaged", {"state": "bad"})])
    assert done.returncode != 0 and "CkptDamaged" in done.stdout + done.stderr, "it can fail"


def test_the_expressions_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    recorded = [{"record": f"r{i}", "expr": expr} for i, expr in enumerate(dashboard())]
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": recorded}]}))
    done = asked_of(tmp_path, "promtool", "check", "rules", "r.yaml")
    assert done.returncode == 0 and len(recorded) > 10, done.stderr


# -- a real Prometheus ---------------------------------------------------------------------------------------


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[int]:
    """The port of a Prometheus that scrapes what ``targets.json`` names."""
    port, home = free_port(), tmp_path / "prometheus"
    home.mkdir()
    (home / "alerts.yaml").write_text(printed("watch-alerts"))
    scraped = {"job_name": "ckpt", "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}]}
    known = {"rule_files": ["alerts.yaml"], "scrape_configs": [scraped]}
    known |= {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}}
    (home / "prometheus.yml").write_text(yaml.safe_dump(known))
    needs("prometheus")
    words = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    words.append(f"--web.listen-address=127.0.0.1:{port}")
    with (tmp_path / "prometheus.log").open("w") as log:
        process = subprocess.Popen(words, cwd=home, stderr=log)
        yield port
        process.terminate()
        process.wait()


def asked(port: int, expr: str) -> list[dict[str, Any]]:
    """What Prometheus answers to an expression; nothing while it does not answer."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={quote(expr)}") as answer:
            return json.load(answer)["data"]["result"]
    except OSError:
        return []


def until(port: int, expr: str) -> list[dict[str, Any]]:
    while not (found := asked(port, expr)):
        threading.Event().wait(0.2)
    return found


@pytest.mark.exhaustive
def test_a_real_prometheus_scrapes_it(prometheus: int, tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10, 20, 30))
    broken_body(root)
    with watching(tmp_path, root, "--settle", "0s", "--metrics-port", 0) as watcher:
        port = watcher.until(lambda e: e["type"] == "started")["metrics_port"]
        targets = [{"targets": [f"127.0.0.1:{port}"]}]
        (tmp_path / "prometheus/targets.json").write_text(json.dumps(targets))
        (step,) = until(prometheus, "ckpt_last_good_step")
        assert step["value"][1] == "30" and step["metric"]["root"] == str(root)
        for expr in dashboard():
            assert until(prometheus, expr), expr
        (alert,) = until(prometheus, 'ALERTS{alertname="CkptDamaged",alertstate="firing"}')
        assert alert["metric"]["root"] == str(root)
        names = {row["metric"]["__name__"] for row in asked(prometheus, '{__name__=~"ckpt_.+"}')}
        assert watcher.end() == 143
    used = set(re.findall(r"ckpt_[a-z_]+", " ".join([*dashboard(), *(r["expr"] for r in rules())])))
    assert used - {"ckpt_watch_hooks_total"} <= names, "what alerts and panels name is there"
    told = set(re.findall(r"`(ckpt_[a-z_]+)", PAGE)) - {"ckpt_watch_hooks_total", "ckpt_watch_problems_total"}
    assert told <= names | {"ckpt_verification_seconds_sum"}, "what the page names is there"


# -- where it runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ROOTS)
def test_the_unit_is_valid(root: str, tmp_path: Path) -> None:
    unit = printed("watch-systemd", root)
    for text, is_valid in (
        (unit, True),
        (unit.replace("StateDirectory", "StateDirectroy"), False),
    ):  # it can fail
        (tmp_path / "ckpt-watch.service").write_text(text)
        done = asked_of(tmp_path, "systemd-analyze", "verify", "./ckpt-watch.service")
        assert ("ckpt-watch.service" not in done.stderr) is is_valid, done.stderr
        assert done.returncode == 0 and ("StateDirectroy" in done.stderr) is not is_valid


@pytest.mark.parametrize("root", ROOTS)
def test_the_sidecar_is_valid(root: str) -> None:
    (job,) = yaml.safe_load_all(printed("watch-kubernetes", root))
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
    pod = job["spec"]["template"]["spec"]
    (sidecar,) = pod["initContainers"]
    assert sidecar["restartPolicy"] == "Always" and sidecar["env"][0]["value"] == root
    mounted = {m["name"]: m for m in sidecar["volumeMounts"]}
    assert mounted["training"] == {"name": "training", "mountPath": root, "readOnly": True}


def test_the_sidecar_runs(tmp_path: Path) -> None:
    root = megatron(tmp_path / "run")
    (job,) = yaml.safe_load_all(printed("watch-kubernetes", root))
    sidecar = job["spec"]["template"]["spec"]["initContainers"][0]
    state, port = tmp_path / "pod", free_port()
    state.mkdir(mode=0o777)
    state.chmod(0o777)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ckpt").write_text(f'#!/bin/sh\nexec {" ".join(CKPT)} "$@"\n')
    (tmp_path / "bin/ckpt").chmod(0o755)
    own = {e["name"]: e["value"].replace("/state", str(state)) for e in sidecar["env"]}
    own |= {"METRICS_ADDRESS": "127.0.0.1", "PATH": f"{tmp_path / 'bin'}:{env(tmp_path)['PATH']}"}
    words = [w.replace("/state", str(state)).replace("9478", str(port)) for w in sidecar["args"]]
    line, full = [*sidecar["command"], *words], env(tmp_path, own)
    with subprocess.Popen(line, stdout=subprocess.PIPE, env=full, text=True) as process:
        assert process.stdout
        seen = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [e["type"] for e in seen] == ["started", "pass"]
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"ckpt_watch_up" in answer.read()
        process.terminate()
        assert process.wait() == 143
    assert list((state / "watched").glob("run-*/watch.lock"))


def test_the_page_names_each() -> None:
    lines = ckpt("hook", "install").stdout.splitlines()
    names = [line.split()[0] for line in lines if line.startswith("watch-")]
    assert len(names) == 4 and all(f"`{name}`" in PAGE for name in names)
