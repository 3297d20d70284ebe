"""What a model asks to know of a graph, and how rows of a graph meet in it. Values only, no tensor library."""

from pydantic import Field, model_validator

from planner.frozen import Frozen
from planner.profiles import Mixing


class Needs(Frozen):
    """What a model asks to know of every graph, besides features and degrees; None, 0 or False where it does not."""

    max_distance: int | None = Field(default=None, ge=1, le=250)  # hops up to so many, one bucket more for the rest
    near_pairs: bool = False  # of the distances only those of pairs within reach; else a byte for every pair
    pair_dropout: bool = False  # ids of all nodes of a graph: dropout of pairs is a function of both
    edge_paths: bool = False  # the types of the edges on one shortest path of every pair, up to max_distance of them
    edges: bool = False  # edges into own rows
    edge_types: int = Field(default=0, ge=0, le=254)  # kinds of edges that are told apart; 0: all are alike
    expander_degree: int = Field(default=0, ge=0, le=64)  # edges of a random regular graph beside those of the graph
    num_global: int = Field(default=0, ge=0, le=64)  # global nodes, joined to every node of their graph
    laplacian_size: int = Field(default=0, ge=0, le=512)  # eigenvectors of the Laplacian
    walk_length: int = Field(default=0, ge=0, le=512)  # return probabilities of walks of 1 … so many steps
    num_hops: int | None = Field(default=None, ge=0, le=64)  # features summed over 0 … so many hops

    @model_validator(mode="after")
    def _near_pairs_have_distances(self) -> "Needs":
        if self.near_pairs and (self.max_distance is None or self.edge_paths):
            raise ValueError(
                "near_pairs are those within max_distance hops, and edge_paths are of all pairs; found max_distance"
                f" {self.max_distance}, edge_paths {self.edge_paths}: give a max_distance, and one of the two"
            )
        return self


def mixes_of(needs: Needs, *, has_sums: bool) -> tuple[Mixing, ...]:
    """How rows of a graph meet in a model with these needs."""
    ways: dict[Mixing, bool] = {
        "dense": needs.max_distance is not None,
        "edges": needs.edges or needs.expander_degree > 0,
        "sums": has_sums or needs.num_global > 0,
    }
    return tuple(way for way, is_used in ways.items() if is_used)
