"""mpirun and mpiexec: Open MPI, MPICH's Hydra (Intel MPI too), PMIx alone. None tells the number of nodes.

OMPI_COMM_WORLD_NODE_RANK counts processes on a node, over several jobs. PMIX_RANK has no size beside it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ckpt_tools.launchers.launcher import HINT, Launcher, Started, clear, read, settled, show
from ckpt_tools.model.plan import Known

_WORDS = "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE"
_OPEN_MPI = tuple(_WORDS.split())
_HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_PMIX = ("PMIX_RANK",)
_JOB = "OMPI_MCA_orte_precondition_transports"
"""128 random bits per mpirun. PMIX_NAMESPACE and OMPI_MCA_ess_base_jobid are made from a process id, so that
later jobs have them again.
"""


def _detect(env: Mapping[str, str]) -> Started | None:
    """Return what mpirun tells a rank by variables; None if no MPI started this process."""
    names = next((names for names in (_OPEN_MPI, _HYDRA, _PMIX) if names[0] in env), None)
    if names is None:
        return None
    fields = dict(zip(("rank", "world_size", "local_rank", "local_world_size"), names, strict=False))
    started = read(env, "mpi", () if names is _PMIX else (_JOB,), **fields)
    world, local = started.world_size, started.local_world_size
    started = replace(started, start=started.job)
    if world and local and world.value == local.value:
        provenance = f"{names[1]} = {names[3]} (mpi)"
        started = replace(started, node=Known(0, provenance), nodes=Known(1, provenance))
    if started.rank is None or (world is None and names is not _PMIX):
        started = clear(started, f"{show(env, *names)}: the numbers of a rank are not all there", HINT)
    return settled(started)


LAUNCHER = Launcher(
    name="mpi",
    variables=(*_OPEN_MPI, *_HYDRA, *_PMIX, _JOB),
    detect=_detect,
    reference=(
        "Open MPI 4.1.4 and Hydra of MPICH 4.0.2 run here; PMIx standard 4.1: PMIX_RANK, PMIX_NAMESPACE"
    ),
)
