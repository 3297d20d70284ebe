"""Errors that training code raises to users: data, specs, checkpoints, runs that went wrong."""

from planner.errors import GraphmillError


class DatasetNotFoundError(GraphmillError):
    """No reader or no file for the asked data set; the message says what was looked for and where."""

    code = "dataset_not_found"


class DatasetInvalidError(GraphmillError):
    """A data set breaks a rule; the message names the file and row, or the node."""

    code = "dataset_invalid"


class ObjectiveInvalidError(GraphmillError):
    """The loss, the metric or the class weights do not fit the labels of the data set; the message says which do."""

    code = "objective_invalid"


class ModelInvalidError(GraphmillError):
    """A user's own model cannot be built as its spec says; the message names what was found instead."""

    code = "model_invalid"


class KernelUnavailableError(GraphmillError):
    """The attention kernel that was asked for does not run here; the message names what it needs."""

    code = "kernel_unavailable"


class CheckpointInvalidError(GraphmillError):
    """A checkpoint is missing, incomplete or belongs to another job."""

    code = "checkpoint_invalid"


class ExportMismatchError(GraphmillError):
    """A trained model is to be used on data of another shape, or under another model spec than it was trained with."""

    code = "export_mismatch"


class TrainingDivergedError(GraphmillError):
    """The loss became NaN or infinite; the message names step and rank."""

    code = "training_diverged"


class VersionMismatchError(GraphmillError):
    """A node runs another version of graphmill than the driver."""

    code = "version_mismatch"


class RankUnresponsiveError(GraphmillError):
    """A rank has stopped answering while others wait for it; the message names it, its node and where it was."""

    code = "worker_unresponsive"


class StageFailedError(GraphmillError):
    """A stage of a pipeline failed or stopped answering; the message names the stage."""

    code = "stage_failed"


class SeedsInvalidError(GraphmillError):
    """Seeds that cannot be sampled for: repeated, or no nodes of the graph; the message names the first."""

    code = "seeds_invalid"


class FeaturesUnreachableError(GraphmillError):
    """A holder of remote features gave no rows; the message names it."""

    code = "features_unreachable"


class SamplingActorsError(GraphmillError):
    """The actors that sample for a job found no place, or did not get ready; the message says what was asked."""

    code = "sampling_actors_failed"


class ProbeFailedError(GraphmillError):
    """The ranks of a probe did not answer in time."""

    code = "probe_failed"
