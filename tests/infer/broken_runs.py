"""Runs of particles that break off where they have written so many checkpoints."""

import itertools

from probtorch.infer.sequential.saved_particles import SavedParticles

__all__ = ["broken_off", "broken_off_often"]


class Broken(BaseException):
    """The run was broken off."""


def broken_off(run, after, monkeypatch):
    """Make a run that breaks off where it has written so many checkpoints; whether it did."""
    update, left = SavedParticles.update, itertools.count(1)

    def counting(self, *args, **kwargs):
        update(self, *args, **kwargs)
        if next(left) == after:
            raise Broken

    with monkeypatch.context() as m:
        m.setattr(SavedParticles, "update", counting)
        try:
            return run(), False
        except Broken:
            return None, True


def broken_off_often(run, after, monkeypatch):
    """Make a run again and again, each broken off after ``after()`` checkpoints, to its end.

    Returns what it returned, and how often it was broken off.
    """
    for breaks in itertools.count():
        found, broken = broken_off(run, after(), monkeypatch)
        if not broken:
            return found, breaks
    raise AssertionError("counting has no end")
