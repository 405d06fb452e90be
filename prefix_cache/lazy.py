"""Rows that are merged when somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from torch import Tensor

Merge = Callable[[Sequence[str]], Mapping[str, Mapping[str, Tensor]]]
"""From requests to their rows by key and request."""


class LazyStep:
    """A consumed step, merged as far as it is read. Read by one thread at a time.

    Requests that hit nothing are merged together, by the first one that is asked for; one that hits is merged by
    itself, so that nobody waits for a hit that nobody reads.

    Parameters:
        ids: the requests that may be asked for.
        hits: those of them, perhaps among others, that hit something.
    """

    def __init__(self, ids: Sequence[str], hits: Collection[str], merge: Merge) -> None:
        self.ids = dict.fromkeys(ids)
        self._hits = hits
        self._merge = merge
        self._merged: dict[str, dict[str, Tensor]] = {}

    def by_key(self, keys: Collection[str]) -> dict[str, Mapping[str, Tensor]]:
        """A mapping from request to rows for each key."""
        return {key: LazyRows(self, key) for key in keys}

    def rows(self, key: str, request: str) -> Tensor:
        """Rows of one request.

        Raises:
            KeyError: it is not among the step's.
            CacheTimeout, CacheFailed: as of `materialize`.
        """
        if request not in self.ids:
            raise KeyError(request)
        done = self._merged.get(key)
        if done is None or request not in done:
            together = [request] if request in self._hits else [each for each in self.ids if each not in self._hits]
            for name, by_id in self._merge(together).items():
                self._merged.setdefault(name, {}).update(by_id)
        return self._merged[key][request]


class LazyRows(Mapping[str, Tensor]):
    """One key's rows by request."""

    __slots__ = ("_key", "_step")

    def __init__(self, step: LazyStep, key: str) -> None:
        self._step, self._key = step, key

    def __getitem__(self, request: str) -> Tensor:
        return self._step.rows(self._key, request)

    def __iter__(self) -> Iterator[str]:
        return iter(self._step.ids)

    def __len__(self) -> int:
        return len(self._step.ids)

    def __contains__(self, request: object) -> bool:
        return request in self._step.ids
