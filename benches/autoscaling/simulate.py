#!/usr/bin/env python3
"""Simulates a day of requests to workers that an autoscaler adds and removes, to compare scaling signals.

    benches/autoscaling/simulate.py                    # synthetic: quiet night, busy day, three bursts
    benches/autoscaling/simulate.py --trace FILE       # sizes and prefixes from a trace in Mooncake's format
    benches/autoscaling/simulate.py --only pressure --target 0.3

Workers are a small model (model.py); the autoscaler follows Kubernetes' algorithm (hpa.py). Prints a table of
replicas, the cost, and TTFT, the clients' latency. Standard library only; takes minutes.
"""

import argparse
import collections
import math

import hpa
import model
import requests_of_a_day

TICK_S = 0.25
SYNC_S = 15  # of the HorizontalPodAutoscaler
START_S = 120  # from a pod's creation to its first request: scheduling, loading
AVERAGED_S = 60  # of the metric's window
LIMIT_S = 2.0  # a first token later than this is late

SIGNALS = {
    # name: (reading of a worker, target)
    "CPU, 80%": (lambda worker: worker.cpu, 0.8),
    "waiting requests, 5": (lambda worker: float(len(worker.waiting)), 5.0),
    "pressure": (lambda worker: worker.pressure(), None),
}


class Average:
    """A worker's signal over the last minute, as a query over its scrapes returns it."""

    def __init__(self):
        self.values = collections.deque(maxlen=round(AVERAGED_S / SYNC_S * 3))

    def add(self, value):
        self.values.append(value)

    def get(self):
        return sum(self.values) / len(self.values)


def place(request, workers):
    """The worker with the earliest predicted first token, as the router places requests."""
    return min(workers, key=lambda worker: (worker.predicted_first_token(request), len(worker.running)))


def simulate(day, signal, least, most):
    """Runs a day; returns replica-hours, the highest number of replicas, and the TTFT of every request."""
    read, target = signal or (None, None)
    workers = [model.Worker(ready_at=0.0) for _ in range(least if signal else most)]
    averages = {worker: Average() for worker in workers}
    scaler = hpa.Autoscaler(target, least, most) if signal else None
    leaving, first_tokens, held_s, peak = [], [], 0.0, len(workers)
    now, at, end = 0.0, 0, day[-1].arrives + 600
    while now < end:
        ready = [worker for worker in workers if worker.ready_at <= now]
        while at < len(day) and day[at].arrives <= now:
            place(day[at], ready).waiting.append(day[at])
            at += 1
        for worker in ready + leaving:
            first_tokens += worker.advance(now, TICK_S)
        leaving = [worker for worker in leaving if worker.is_busy()]
        held_s += TICK_S * (len(workers) + len(leaving))
        now += TICK_S
        if scaler and now % (SYNC_S / 3) < TICK_S:  # a scrape
            for worker in ready:
                averages[worker].add(read(worker))
        if scaler and now % SYNC_S < TICK_S:
            values = [averages[worker].get() for worker in ready if averages[worker].values]
            wanted = scaler.decide(now, len(workers), values)
            for _ in range(wanted - len(workers)):
                workers.append(model.Worker(ready_at=now + START_S))
                averages[workers[-1]] = Average()
            while wanted < len(workers):  # a StatefulSet removes its last pod
                leaving.append(workers.pop())
            peak = max(peak, len(workers))
    return held_s / 3600, peak, sorted(first_tokens)


def row(name, day, outcome):
    hours, peak, first_tokens = outcome
    at = lambda q: first_tokens[min(len(first_tokens) - 1, math.floor(q * len(first_tokens)))]
    late = sum(1 for seconds in first_tokens if seconds > LIMIT_S) / len(first_tokens)
    assert len(first_tokens) == len(day), f"{name}: {len(day) - len(first_tokens)} requests had no first token"
    print(f"| {name} | {hours:.0f} | {peak} | {at(0.5):.2f} | {at(0.99):.2f} | {100 * late:.2f}% |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", help="JSON lines with input_length, output_length and hash_ids")
    parser.add_argument("--target", type=float, default=0.4, help="of pressure")
    parser.add_argument("--peak", type=float, default=12.0, help="requests a second at the busiest hour")
    parser.add_argument("--only", help="a part of the name of one signal")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=int, default=2)
    parser.add_argument("--most", type=int, default=12)
    chosen = parser.parse_args()
    day = requests_of_a_day.make(chosen.seed, chosen.peak, chosen.trace)
    print(f"{len(day)} requests, {chosen.least} to {chosen.most} replicas, a replica starts in {START_S} s\n")
    print("| scaled on | replica-hours | most replicas | TTFT p50, s | p99, s | later than 2 s |")
    print("|---|---|---|---|---|---|")
    if not chosen.only:
        row(f"nothing: always {chosen.most}", day, simulate(day, None, chosen.most, chosen.most))
    for name, (read, target) in SIGNALS.items():
        if chosen.only and chosen.only not in name:
            continue
        target = target or chosen.target
        label = f"{name}, {target}" if name == "pressure" else name
        row(label, day, simulate(day, (read, target), chosen.least, chosen.most))


if __name__ == "__main__":
    main()
