"""Sampled edges per second of one thread, numbering of nodes included: ours against torch-sparse's bare native call.

Both sample 1,024 seeds at fanouts [10, 5] without replacement on one power-law graph, the same batches, in seconds of
processor time of one thread. torch-sparse runs in the environment that ``make bench-peers`` builds.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.frame import Outcome, alternate, main, medians
from tests.benchmarks.power_law_graph import power_law_edges
from tests.benchmarks.side_process import SideProcess
from workers.mqgnn.sampling import numba_kernels
from workers.mqgnn.sampling.csc import Csc
from workers.mqgnn.sampling.memory import Kernels
from workers.mqgnn.sampling.native_kernels import sampler_kernels
from workers.mqgnn.sampling.neighbors import NeighborOptions, NeighborSampler

FANOUTS, BATCH_SIZE, NUM_BATCHES, ROUNDS = (10, 5), 1024, 20, 5
RATIO_NATIVE_LIMIT = 50.0
PEERS = Path(".venv-peers/bin/python")


class Ours:
    """One form of our inner loops, called once per round for edges per second."""

    def __init__(self, csc: Csc, seeds: np.ndarray, *, kernels: Kernels, **options: bool) -> None:
        self._sampler = NeighborSampler(csc, fanouts=FANOUTS, options=NeighborOptions(**options), kernels=kernels)
        self._seeds = seeds
        self()

    def __call__(self) -> float:
        """All batches, once."""
        begin, num_edges = time.thread_time(), 0
        for key, seeds in enumerate(self._seeds):
            num_edges += sum(self._sampler.sample(seeds, key=key).num_edges_per_hop)
        return num_edges / (time.thread_time() - begin)


def measure() -> Outcome:
    """Ours (C++, numba, C++ with the last hop left as it is) and torch-sparse by turns."""
    if not PEERS.exists():
        raise SystemExit(f"{PEERS} is not there: run `make bench-peers` first")
    indptr, indices = power_law_edges()
    csc = Csc(indptr, indices, num_sources=len(indptr) - 1)
    seeds = np.random.default_rng(1).permutation(csc.num_targets)[: BATCH_SIZE * NUM_BATCHES]
    seeds = seeds.reshape(NUM_BATCHES, BATCH_SIZE)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "graph.npz", indptr=indptr, indices=indices.astype(np.int64), seeds=seeds)
        with SideProcess([str(PEERS), "-m", "tests.benchmarks.peer_sampler", folder]) as peer:
            peer.ask({})  # the first round does not count
            sides: dict[str, Any] = {
                "native": Ours(csc, seeds, kernels=sampler_kernels()),
                "numba": Ours(csc, seeds, kernels=numba_kernels),
                "native, last hop not numbered": Ours(csc, seeds, kernels=sampler_kernels(), relabel_last_hop=False),
                "torch-sparse": lambda: float(peer.ask({})["edges_per_s"]),
            }
            found = medians(alternate(sides, rounds=ROUNDS))
    ratio = found["native"] / found["torch-sparse"]
    return Outcome(
        figures={"ratio_native": ratio, "ratio_numba": found["numba"] / found["torch-sparse"]},
        verdicts={"ratio_native": ratio >= RATIO_NATIVE_LIMIT},
        details={"edges_per_s": found, "is_native": sampler_kernels() is not numba_kernels},
    )


if __name__ == "__main__":
    sys.exit(main("mqgnn_sampler", measure))
