"""Why sampling or search stopped for a target: the values of the column `stopped`, each with one sentence."""

from __future__ import annotations

from enum import Enum


class StopReason(str, Enum):
    """Why sampling or search stopped for a target: a value of the column `stopped`.

    Your own estimator may give other texts in this column.

    >>> print(StopReason.BUDGET, "-", StopReason.BUDGET.sentence)
    budget used up - The budget ended before all was drawn or searched.
    >>> StopReason("all starts") is StopReason.ALL_STARTS
    True
    """

    sentence: str

    def __new__(cls, value: str, sentence: str) -> StopReason:
        """A reason whose value is the text in tables and stored runs, with a sentence that explains it."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.sentence = sentence
        return member

    ALL_BLOCKS = "all blocks", "All blocks were drawn."
    NARROW = "interval is narrow enough", "The interval of the score became as narrow as the tolerance asks."
    AT_RADIUS = "score is the radius", "The whole interval of the score lies at the radius or above."
    EXACT = "constant gradient", "The gradient is the same everywhere in the ball, so that one is enough."
    SETTLED = "more starts change little", "The search met the same nearest crossing often enough."
    ALL_STARTS = "all starts", "The search used all its starts."
    BUDGET = "budget used up", "The budget ended before all was drawn or searched."
    UNFINISHED = "unfinished", "The run was interrupted; repeating it draws the rest."
    DECIDED = "threshold is decided", "It became clear on which side of the threshold the score is."
    ELIMINATED = "cannot be the smallest", "The score stays above that of another class, so this one was eliminated."
    PREFILTERED = (
        "cannot be the smallest, by a few points",
        "At a few points its gradients are so small that another class is nearer, so this one was eliminated.",
    )
    SKETCHED = (
        "cannot be the smallest, by random projections",
        "Random projections of its gradient are so small that another class is nearer, so this one was eliminated.",
    )

    def __str__(self) -> str:
        """Return the value, as it appears in tables."""
        return str.__str__(self)


def is_eliminated(reason: str) -> bool:
    """Whether a stop reason says that the target was eliminated because it could not have the smallest score."""
    return reason in (StopReason.ELIMINATED, StopReason.PREFILTERED, StopReason.SKETCHED)


def sentence_of(reason: str) -> str:
    """The sentence of a stop reason; for the text of a user's own estimator, a sentence that contains it.

    >>> sentence_of("all blocks"), sentence_of("one gradient")
    ('All blocks were drawn.', 'The work ended: one gradient.')
    """
    return next((known.sentence for known in StopReason if known == reason), f"The work ended: {reason}.")
