"""Which rank has stopped answering: a pure judgement of what was heard, and when.

    silent   no beat for ``limit_s``: the process is stopped, its machine or the way to it is gone
    still    beats, and others have waited for ``limit_s``, but its training reaches nothing, does not itself wait, and
             uses no processor: it is locked, or in a call that does not return
    busy     as still, but it computes: a loop without end, or honest work that is larger than before. Once it has taken
             all steps of an epoch the largest work is known: it has ``limit_s`` then, or ten times the longest time
             between two signs of progress in this run; in its first epoch ten times ``limit_s`` as well, and
             ``patient_s`` in its first step

Only steps and evaluations are judged for going on (``workers.watch.progress``), and one that computes in an evaluation
has ``patient_s``, too. While data are made ready, silence may be a library that keeps the interpreter to itself: that
has ``patient_s`` as well. A judge that was itself away (its machine was suspended) holds that against nobody. What
one has found, all take over, so that all say the same.
"""

from dataclasses import dataclass

from workers.watch.beats import Beat

# Chosen: an idle process of Ray takes about a hundredth of a core, a computing one on a crowded machine a tenth.
_IDLE_SHARE = 0.05
# Chosen: a crowded machine makes the same step several times as long; ten times is no spread any more. In a first
# epoch the graphs of a step may be larger than those before.
_LONGER = 10.0
# Chosen: a judge that is late by this share of the limit was suspended, or kept from its interpreter.
_AWAY_SHARE = 0.25
_JUDGED = ("step", "evaluation")


@dataclass
class _Heard:
    """A rank as this one knows it; times of this rank's clock."""

    beat: Beat
    at: float  # of the last beat
    reached_at: float  # of the last progress
    reached_cpu_s: float
    waits_since: float | None


class HungRanks:
    """Hears beats, the own ones among them, and names whoever has stopped answering. All times in seconds."""

    def __init__(self, rank: int, *, limit_s: float, patient_s: float, interval_s: float) -> None:
        self._rank, self._limit_s, self._patient_s, self._interval_s = rank, limit_s, patient_s, interval_s
        self._heard: dict[int, _Heard] = {}
        self._longest_s = 0.0  # between two signs of progress of any rank, in a step
        self._looked_at: float | None = None

    def hear(self, beat: Beat, *, now: float) -> None:
        """A beat has arrived."""
        known = self._heard.get(beat.rank)
        if known is None:
            self._heard[beat.rank] = _Heard(beat, now, now, beat.cpu_s, now if beat.waits else None)
            return
        if beat.count != known.beat.count:
            if known.beat.phase == beat.phase == "step":
                self._longest_s = max(self._longest_s, now - known.reached_at)
            known.reached_at, known.reached_cpu_s, known.waits_since = now, beat.cpu_s, None
        if not beat.waits:
            known.waits_since = None
        elif known.waits_since is None:
            known.waits_since = now
        known.beat, known.at = beat, now

    def look(self, *, now: float) -> str | None:
        """Who has stopped answering, in words; None while all is well. To be asked once per interval."""
        if self._looked_at is not None:
            self._forgive(now - self._looked_at - self._interval_s)
        self._looked_at = now
        found = next((heard.beat.verdict for heard in self._heard.values() if heard.beat.verdict), "")
        return found or "; ".join(self._silent(now) or self._standing(now)) or None

    def _forgive(self, away_s: float) -> None:
        """Of the time since the last look, ``away_s`` are this rank's own doing."""
        if away_s <= _AWAY_SHARE * self._limit_s:  # a crowded machine; the others' beats wait in the socket meanwhile
            return
        for heard in self._heard.values():
            heard.at += away_s
            heard.reached_at += away_s
            if heard.waits_since is not None:
                heard.waits_since += away_s

    def _silent(self, now: float) -> list[str]:
        return [
            self._words_of_silence(heard)
            for rank, heard in sorted(self._heard.items())
            if rank != self._rank and not heard.beat.left and now - heard.at > self._may_be_silent_s(heard)
        ]

    def _may_be_silent_s(self, heard: _Heard) -> float:
        return self._patient_s if heard.beat.phase == "preparation" else self._limit_s

    def _standing(self, now: float) -> list[str]:
        return [
            self._words_of_standing(heard)
            for heard in self._heard.values()
            if not heard.beat.left
            and heard.beat.phase in _JUDGED
            and not heard.beat.waits
            and now - heard.reached_at > self._may_stand_s(heard, now)
            and self._is_waited_for(heard, now)
        ]

    def _may_stand_s(self, heard: _Heard, now: float) -> float:
        used_s = heard.beat.cpu_s - heard.reached_cpu_s
        if used_s < _IDLE_SHARE * (now - heard.reached_at):
            return self._limit_s
        if heard.beat.phase != "step" or heard.beat.num_steps == 1:
            return self._patient_s
        if heard.beat.num_steps <= heard.beat.steps_per_epoch:
            return _LONGER * max(self._limit_s, self._longest_s)
        return max(self._limit_s, _LONGER * self._longest_s)

    def _is_waited_for(self, heard: _Heard, now: float) -> bool:
        since = (other.waits_since for other in self._heard.values() if other is not heard and not other.beat.left)
        return any(start is not None and now - start > self._limit_s for start in since)

    def _words_of_silence(self, heard: _Heard) -> str:
        return (
            f"{_name(heard.beat)} has given no sign of life for more than {self._may_be_silent_s(heard):g} s, the last"
            f" one in {_place(heard.beat)}: its process is stopped or dead, or its machine cannot be reached; look"
            " there"
        )

    def _words_of_standing(self, heard: _Heard) -> str:
        return (
            f"{_name(heard.beat)} has reached nothing new for more than {self._limit_s:g} s while others wait for it,"
            f" in {_place(heard.beat)}, at {heard.beat.where}: look there for a call that does not return, or give it"
            " longer by limits.max_rank_silence_s"
        )


def _name(beat: Beat) -> str:
    return f"rank {beat.rank} (pid {beat.pid} on {beat.node})"


def _place(beat: Beat) -> str:
    unit = f", unit {beat.unit}" if beat.unit else ""
    if beat.phase == "step":
        return f"step {beat.step}{unit}"
    return f"the {beat.phase} after step {beat.step}{unit}" if beat.step else f"the {beat.phase}{unit}"
