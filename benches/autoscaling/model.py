"""Model of a worker's load and queue: prefill and decode share its steps; seats and KV cache limit it."""

import collections
import heapq
import itertools

PREFILL_TOKENS_PER_S = 8_000
STEP_S, STEP_S_EACH = 0.020, 0.000_5  # a decode step, and what each sequence adds to it
SHARED = 0.5  # decode's part of the time while a prompt is prefilled
SEATS = 32
KV_TOKENS = 120_000

Request = collections.namedtuple("Request", "arrives uncached prompt output")
_numbers = itertools.count()


class Worker:
    def __init__(self, ready_at):
        self.ready_at = ready_at
        self.waiting = collections.deque()  # no seat or no KV blocks
        self.prefilling = collections.deque()  # [request, tokens left]
        self.running = []  # heap of (decoded tokens at its end, number, request)
        self.decoded = 0.0  # tokens that a sequence that is always there would have got
        self.kv_tokens = 0
        self.queued_tokens = 0.0  # of `prefilling`
        self.cpu = 0.0

    def __hash__(self):
        return id(self)

    def is_busy(self):
        return bool(self.waiting or self.prefilling or self.running)

    def sequences(self):
        return len(self.prefilling) + len(self.running)

    def backlog(self):
        return self.queued_tokens + sum(request.uncached for request in self.waiting)

    def predicted_first_token(self, request):
        without_seat = max(0, self.sequences() + len(self.waiting) + 1 - SEATS)
        step = STEP_S + STEP_S_EACH * len(self.running)
        return (self.backlog() + request.uncached) / PREFILL_TOKENS_PER_S + step * (1 + 256 * without_seat / SEATS)

    def pressure(self):
        """skein_worker_pressure: the fullest of seats, KV cache and one second of prefill; 1 = full."""
        seats = (self.sequences() + len(self.waiting)) / SEATS
        return max(seats, self.kv_tokens / KV_TOKENS, self.backlog() / PREFILL_TOKENS_PER_S)

    def advance(self, now, seconds):
        """Advances the worker; returns the TTFT of each request whose first token came."""
        self.admit()
        self.cpu = 1.0 if self.is_busy() else 0.0  # the loop of steps keeps a core busy
        given, budget = [], seconds * PREFILL_TOKENS_PER_S
        is_shared = bool(self.prefilling)
        while self.prefilling and budget > 0:
            entry = self.prefilling[0]
            done = min(budget, entry[1])
            entry[1], budget, self.queued_tokens = entry[1] - done, budget - done, self.queued_tokens - done
            if entry[1] <= 0:
                self.prefilling.popleft()
                request = entry[0]
                used = seconds - budget / PREFILL_TOKENS_PER_S
                given.append(now + used + STEP_S - request.arrives)
                heapq.heappush(self.running, (self.decoded + request.output, next(_numbers), request))
        step = STEP_S + STEP_S_EACH * len(self.running)
        self.decoded += seconds / step * (SHARED if is_shared else 1.0)
        while self.running and self.running[0][0] <= self.decoded:
            request = heapq.heappop(self.running)[2]
            self.kv_tokens -= request.prompt + request.output
        return given

    def admit(self):
        while self.waiting and self.sequences() < SEATS:
            request = self.waiting[0]
            if self.kv_tokens + request.prompt + request.output > KV_TOKENS and self.is_running():
                return
            self.waiting.popleft()
            self.kv_tokens += request.prompt + request.output
            self.queued_tokens += request.uncached
            self.prefilling.append([request, request.uncached])

    def is_running(self):
        return self.sequences() > 0
