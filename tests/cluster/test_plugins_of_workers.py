"""Workers of an engine know plug-ins, or the answer says that they have others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dask_cluster import Cluster
from own_plugins import install, saved
from places import ROOT
from run_helpers import megatron

pytest.importorskip("distributed")


@pytest.mark.exhaustive
def test_workers_of_dask_have_the_same_plugins_or_none(tmp_path: Path) -> None:
    place = install(tmp_path / "site")
    cluster = Cluster(tmp_path, workers=1, PYTHONPATH=f"{place}:{ROOT}")
    try:
        run = saved(tmp_path / "run")
        code, out, err = cluster.run("verify", str(run), "--json", "--no-cache")
        assert code == 0, err
        assert {(f["format"], f["verdict"]) for f in json.loads(out)["files"]} == {("own", "ok")}
        assert any(cluster.reads().values())
        other = str(megatron(tmp_path / "other"))
        assert cluster.run("verify", other, "--no-cache")[0] == 0
        code, _, err = cluster.run("verify", other, "--no-cache", "--no-plugins")
        assert code == 5
        assert "with own-parts 1.0, this is" in err
    finally:
        cluster.close()
