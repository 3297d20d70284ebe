"""torch-sparse's side of ``mqgnn_sampler``: run by the Python of ``.venv-peers``, so it imports nothing of ours."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch_sparse  # noqa: F401  (registers torch.ops.torch_sparse)

FANOUTS = [10, 5]


def serve(folder: Path) -> None:
    """Sample all batches once for every line that comes in."""
    torch.set_num_threads(1)
    with np.load(folder / "graph.npz") as graph:
        indptr, indices, seeds = (torch.from_numpy(graph[name]) for name in ("indptr", "indices", "seeds"))
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        begin, num_edges = time.process_time(), 0
        for batch in seeds:
            sampled = torch.ops.torch_sparse.neighbor_sample(indptr, indices, batch, FANOUTS, False, True)
            num_edges += len(sampled[1])
        print(json.dumps({"edges_per_s": num_edges / (time.process_time() - begin)}), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
