"""A day's requests: a curve of rates, and sizes drawn at random or taken from a trace."""

import json
import math
import random

from model import KV_TOKENS, Request

DAY_S = 86_400
NIGHT = 0.12  # of the busiest hour's rate
BURSTS = [(9.5, 15, 1.8), (13.0, 5, 2.5), (20.25, 20, 1.7)]  # hour, minutes, factor
BLOCK_TOKENS = 512  # of the trace


def rate(second, peak):
    """Requests per second: lowest at 4 a.m., highest at 4 p.m."""
    hour = second / 3600
    day = NIGHT + (1 - NIGHT) * (0.5 - 0.5 * math.cos((hour - 4) / 24 * 2 * math.pi)) ** 1.5
    factor = max([f for start, minutes, f in BURSTS if start <= hour < start + minutes / 60], default=1.0)
    return peak * day * factor


def drawn(rng):
    """Random sizes: prompts of about a thousand tokens, usually more than half of it cached."""
    while True:
        prompt = min(16_000, max(20, round(rng.lognormvariate(6.6, 1.0))))
        cached = rng.choice([0.0, 0.3, 0.6, 0.8, 0.9])
        yield max(1, round(prompt * (1 - cached))), prompt, min(2_000, max(1, round(rng.lognormvariate(5.0, 0.8))))


def traced(path):
    """Sizes in the trace's order, repeated. A block seen before counts as cached on every worker."""
    seen, sizes = set(), []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            prompt, output = entry["input_length"], max(1, entry["output_length"])
            hits = 0
            for block in entry["hash_ids"]:
                if block not in seen:
                    break
                hits += 1
            seen.update(entry["hash_ids"])
            if prompt + output < KV_TOKENS:
                sizes.append((max(1, prompt - hits * BLOCK_TOKENS), prompt, output))
    while True:
        yield from sizes


def make(seed, peak, trace):
    rng, second, day = random.Random(seed), 0.0, []
    sizes = traced(trace) if trace else drawn(rng)
    most = peak * max(factor for _, _, factor in BURSTS)
    while True:
        second += rng.expovariate(most)
        if second >= DAY_S:
            return day
        if rng.random() < rate(second, peak) / most:  # thinning
            uncached, prompt, output = next(sizes)
            day.append(Request(second, uncached, prompt, output))
