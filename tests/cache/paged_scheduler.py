"""The scheduler of a small paged engine: it publishes block hashes at schedule time and recycles blocks at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from row_oracle import START, next_state

from prefix_cache import NewRequest


@dataclass(eq=False)
class SimRequest:
    """A request, whose prompt is `tokens` behind the tokens that `states` already names.

    Parameters:
        emits: whether steps with this request emit the per-request key.
        states: names each token together with its prefix.
        live: whether the cache knows the request.
        reannounced: more of its prompt has arrived, and the cache has not been told.
    """

    id: str
    tokens: Sequence[int]
    emits: bool = False
    states: list[int] = field(default_factory=list)
    prompt_len: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    live: bool = False
    reannounced: bool = False

    def __post_init__(self) -> None:
        self.extend(self.tokens)
        self.prompt_len = len(self.states)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.states.append(next_state(self.states[-1] if self.states else START, token))

    @property
    def left(self) -> int:
        return len(self.states) - self.computed


@dataclass(frozen=True)
class Plan:
    """One step: who computes how many tokens, and what the cache is told about it."""

    batch: list[tuple[SimRequest, int]]
    new: list[NewRequest]
    finished: set[str]
    resumed: set[str]
    hits: dict[str, int]
    continued: set[str] = field(default_factory=set)

    @property
    def scheduled(self) -> dict[str, int]:
        return {request.id: count for request, count in self.batch}


class PagedScheduler:
    """Continuous batching over `num_blocks` blocks with prefix matching by whole blocks.

    Parameters:
        lifo: a block freed last is taken first, so that it has a new tenant at once.
    """

    def __init__(self, num_blocks: int, block_size: int, *, lifo: bool = False) -> None:
        self.block_size, self._lifo = block_size, lifo
        self._free = deque(range(num_blocks))
        self._refs = [0] * num_blocks
        self._state_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}
        self.waiting: deque[SimRequest] = deque()
        self.running: list[SimRequest] = []
        self._gone: set[str] = set()
        self.preempted = 0

    @property
    def requests(self) -> list[SimRequest]:
        return [*self.running, *self.waiting]

    def arrive(self, request: SimRequest) -> None:
        self.waiting.append(request)

    def finish(self, request: SimRequest) -> None:
        """Ends a request, computed to its end or aborted anywhere, before its first step too."""
        (self.running if request in self.running else self.waiting).remove(request)
        self._gone.add(request.id)
        self._release(request)

    def preempt(self, request: SimRequest) -> None:
        """Takes a request's blocks; the cache is told that it ended, and later that it is new."""
        self.finish(request)
        request.live = request.reannounced = False
        self.waiting.appendleft(request)
        self.preempted += 1

    def suspend(self, request: SimRequest) -> None:
        """Takes a request's blocks; to the cache it lives on, and later resumes with others."""
        self.running.remove(request)
        self._release(request)
        self.waiting.appendleft(request)
        self.preempted += 1

    def continue_with(self, request: SimRequest, tokens: Sequence[int]) -> None:
        """More of a running request's prompt arrives: it is announced as new again, with what it has computed."""
        request.extend(tokens)
        request.reannounced = True

    def schedule(self, budget: int) -> Plan:
        batch: list[tuple[SimRequest, int]] = []
        new: list[NewRequest] = []
        resumed: set[str] = set()
        hits: dict[str, int] = {}
        continued: set[str] = set()
        for request in list(self.running):
            if request not in self.running:
                continue
            count = min(request.left, budget)
            if count and self._make_room(request, count, batch):
                if request.reannounced:
                    new.append(NewRequest(request.id, request.computed, list(request.blocks)))
                    request.reannounced = False
                    continued.add(request.id)
                batch.append((request, count))
                budget -= count
        while self.waiting and budget:
            request = self.waiting[0]
            self._match(request)
            count = min(request.left, budget)
            if not self._allocate(request, count):
                self._release(request)
                break
            self.running.append(self.waiting.popleft())
            self._announce(request, new, resumed, hits)
            batch.append((request, count))
            budget -= count
        finished, self._gone = self._gone, set()
        return Plan(batch, new, finished, resumed, hits, continued)

    def announce(self) -> Plan:
        """A step without tokens: the next waiting request is admitted with what it hits, and computes nothing yet."""
        new: list[NewRequest] = []
        hits: dict[str, int] = {}
        if self.waiting and not self.waiting[0].live:
            request = self.waiting.popleft()
            self._match(request)
            self.running.append(request)
            self._announce(request, new, set(), hits)
        finished, self._gone = self._gone, set()
        return Plan([], new, finished, set(), hits)

    def computed(self, plan: Plan) -> None:
        """The forward has run: who has no token left samples one."""
        for request, count in plan.batch:
            request.computed += count
            if not request.left:
                request.extend([request.states[-1] % 2])

    def _announce(self, request: SimRequest, new: list[NewRequest], resumed: set[str], hits: dict[str, int]) -> None:
        if request.live:
            resumed.add(request.id)
            return
        request.live = True
        new.append(NewRequest(request.id, request.computed, list(request.blocks)))
        if request.computed:
            hits[request.id] = request.computed

    def _match(self, request: SimRequest) -> None:
        size = self.block_size
        for end in range(size, len(request.states), size):
            block = self._block_of.get(request.states[end - 1])
            if block is None:
                break
            if self._refs[block] == 0:
                self._free.remove(block)
            self._refs[block] += 1
            request.blocks.append(block)
        request.computed = len(request.blocks) * size

    def _make_room(self, request: SimRequest, count: int, batch: list[tuple[SimRequest, int]]) -> bool:
        placed = {id(other) for other, _ in batch}
        while not self._allocate(request, count):
            victims = [other for other in self.running if other is not request and id(other) not in placed]
            victim = victims[-1] if victims else request
            (self.suspend if self.preempted % 2 else self.preempt)(victim)
            if victim is request:
                return False
        return True

    def _allocate(self, request: SimRequest, count: int) -> bool:
        size, end = self.block_size, request.computed + count
        need = -(-end // size) - len(request.blocks)
        if len(self._free) < need:
            return False
        for _ in range(need):
            block = self._free.pop() if self._lifo else self._free.popleft()
            state = self._state_of.pop(block, None)
            if state is not None and self._block_of.get(state) == block:
                del self._block_of[state]
            self._refs[block] = 1
            request.blocks.append(block)
        for index in range(end // size):
            block = request.blocks[index]
            if block not in self._state_of:
                state = request.states[(index + 1) * size - 1]
                self._state_of[block] = state
                self._block_of.setdefault(state, block)
        return True

    def _release(self, request: SimRequest) -> None:
        for block in reversed(request.blocks):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free.append(block)
        request.blocks = []
        request.computed = 0
