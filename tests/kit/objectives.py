"""The objective that most tests train for."""

from workers.training.losses import Loss, build_loss
from workers.training.objective import Objective


def classify(num_classes: int) -> Objective:
    """Cross-entropy, and accuracy to choose the best model."""
    return Objective("classes", num_classes, loss="cross_entropy", metric="accuracy")


CROSS_ENTROPY: Loss = build_loss(classify(2))  # the loss does not depend on the number of classes
