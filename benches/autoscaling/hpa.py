"""The HorizontalPodAutoscaler of Kubernetes, with the behaviour of deploy/kubernetes/components/hpa."""

import math

TOLERANCE = 0.1
DOWN_STABILISATION_S = 300
UP_PERIOD_S, UP_FACTOR = 60, 2  # at most doubles in a minute
DOWN_PERIOD_S, DOWN_PODS = 60, 1  # at most one pod less in a minute


def desired(replicas, values, target):
    """ceil(replicas * mean / target); pods without a value yet count against the direction of the change."""
    if not values:
        return replicas
    missing = replicas - len(values)
    ratio = sum(values) / len(values) / target
    if missing and ratio != 1:
        assumed = 0.0 if ratio > 1 else target
        with_missing = (sum(values) + missing * assumed) / replicas / target
        if (with_missing > 1) != (ratio > 1):
            return replicas
        ratio = with_missing
    return replicas if abs(ratio - 1) <= TOLERANCE else math.ceil(ratio * replicas)


class Autoscaler:
    def __init__(self, target, least, most):
        self.target, self.least, self.most = target, least, most
        self.recommended = []  # (time, replicas)
        self.sizes = []  # (time, replicas)

    def decide(self, now, replicas, values):
        wanted = min(max(desired(replicas, values, self.target), self.least), self.most)
        self.recommended = [r for r in self.recommended if r[0] > now - DOWN_STABILISATION_S] + [(now, wanted)]
        self.sizes = [s for s in self.sizes if s[0] > now - max(UP_PERIOD_S, DOWN_PERIOD_S)] + [(now, replicas)]
        # Down only to the highest recommendation of the window; up at once.
        if wanted < replicas:
            wanted = min(replicas, max(size for _, size in self.recommended))
        sizes = [size for _, size in self.sizes]
        return max(min(wanted, min(sizes) * UP_FACTOR), max(sizes) - DOWN_PODS)
