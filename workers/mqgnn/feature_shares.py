"""Features dealt out to the ranks of a job: each holds a run of rows and serves it, and caches the hottest of others.

    plan.features    local: the graph as it is      remote: rank i of P holds the rows iN/P … (i + 1)N/P − 1

The stages, the evaluation and the probe ask the graph for features as ever and do not know.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from planner.caching import CacheRule
from planner.plan import MQGNNPlan
from workers.comm.axis import Axis
from workers.data.feature_server import FeatureServer
from workers.data.features import windows
from workers.data.graph import TRAIN, Graph
from workers.data.remote_features import Holder, RemoteFeatures
from workers.mqgnn.feature_cache import CachedFeatures, count_hot_rows, fill_cache, rank_rows
from workers.mqgnn.sampling.preference import Preference

_ADDRESS_BYTES = 64
_PORT_BYTES = 4


@dataclass(frozen=True, eq=False)
class FeatureShares:
    """``graph`` to train on, whose features may lie on other ranks, the preference of its sampler if it shall have one,
    and what was measured.
    """

    graph: Graph
    remote: RemoteFeatures | None = None
    cached: CachedFeatures | None = None
    preference: Preference | None = None

    def figures(self) -> dict[str, float]:
        """Since the start: bytes that came from other ranks, and rows of theirs that were found here or asked for."""
        if self.remote is None:
            return {}
        figures = {"features_received_bytes": float(self.remote.received_bytes)}
        if self.cached is not None:
            figures |= {
                "cache_feature_hits": float(self.cached.hits),
                "cache_feature_misses": float(self.cached.misses),
            }
        return figures


@contextmanager
def open_features(
    graph: Graph, *, plan: MQGNNPlan, axis: Axis, device: torch.device, address: str
) -> Iterator[FeatureShares]:
    """The features of ``graph`` as ``plan`` wants them, for as long as the block runs. Collective over ``axis``.

    Others reach this rank at ``address``. Raises ``FeaturesUnreachableError``.
    """
    if plan.features == "local":
        yield FeatureShares(graph)
        return
    with deal_out(graph, axis=axis, device=device, address=address) as remote:
        cached, preference = None, None
        if plan.cache.feature_bytes:
            hottest = rank_rows(
                graph,
                policy=plan.cache.policy,
                seeds=np.flatnonzero(graph.split == TRAIN),
                batch_size=plan.batch_size,  # of all ranks, so that all find the same, however many they are
                fanouts=plan.fanouts,
            )
            cached = fill_cache(remote, hottest=hottest, max_bytes=plan.cache.feature_bytes)
            preference = _prefer_hot(graph, rule=plan.cache, hottest=hottest)
        yield FeatureShares(
            replace(graph, features=cached or remote), remote=remote, cached=cached, preference=preference
        )


def _prefer_hot(graph: Graph, *, rule: CacheRule, hottest: np.ndarray) -> Preference | None:
    """The rows that every rank holds or caches, the same on all, so that replicas draw what one process would."""
    if rule.prefer == 1:
        return None
    feature_bytes = sum(array.nbytes for array in graph.features.arrays().values())
    num_hot = count_hot_rows(rule.feature_bytes or 0, num_rows=graph.num_nodes, feature_bytes=feature_bytes)
    preferred = np.zeros(graph.num_nodes, dtype=bool)
    preferred[hottest[:num_hot]] = True
    return Preference(preferred, factor=rule.prefer)


@contextmanager
def deal_out(graph: Graph, *, axis: Axis, device: torch.device, address: str) -> Iterator[RemoteFeatures]:
    """The features of ``graph``, of which each rank on ``axis`` holds and serves a run. Collective."""
    bounds = [graph.num_nodes * place // axis.size for place in range(axis.size + 1)]
    own = list(windows(graph.features, offsets=np.array(bounds)))[axis.index]
    server = FeatureServer(own, first=bounds[axis.index], address=address)
    try:
        holders = _introduce(server, address=address, bounds=bounds, axis=axis, device=device)
        remote = RemoteFeatures(own, first=bounds[axis.index], holders=holders, server=server)
        try:
            yield remote
            axis.barrier()  # nobody leaves while others may ask
        finally:
            remote.close()
    finally:
        server.stop()


def _introduce(
    server: FeatureServer, *, address: str, bounds: list[int], axis: Axis, device: torch.device
) -> list[Holder]:
    """All other ranks on ``axis`` as holders of their rows. Collective."""
    card = address.encode().ljust(_ADDRESS_BYTES) + server.port.to_bytes(_PORT_BYTES, "little") + server.token
    cards = torch.zeros(axis.size, len(card), dtype=torch.int32, device=device)
    cards[axis.index] = torch.tensor(list(card), dtype=torch.int32, device=device)
    axis.sum_in_place(cards)
    holders = []
    for place, rank in enumerate(axis.ranks):
        said = bytes(cards[place].tolist())
        if place != axis.index:
            holders.append(
                Holder(
                    name=f"rank {rank}",
                    first=bounds[place],
                    end=bounds[place + 1],
                    address=said[:_ADDRESS_BYTES].decode().strip(),
                    port=int.from_bytes(said[_ADDRESS_BYTES : _ADDRESS_BYTES + _PORT_BYTES], "little"),
                    token=said[_ADDRESS_BYTES + _PORT_BYTES :],
                )
            )
    return holders
