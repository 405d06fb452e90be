"""The calls of vLLM-Omni's manager over a dictionary of rows: the simplest peer that does equal work.

NAIVE_PEER_FAULT makes it unequal: `rows` changes one returned value, `die` ends the process in its first save.
"""

import os
from types import SimpleNamespace

import torch

from . import controller
from .interface import HIDDEN_KEY

__all__ = ["FullAttentionGroupView", "OmniPrefixCacheManager", "PrefixCacheConfig", "controller"]


class PrefixCacheConfig(SimpleNamespace):
    pass


class FullAttentionGroupView:
    def __init__(self, input_batch, block_size):
        self.batch, self.block_size = input_batch, block_size

    def step_slots_cpu(self, ids, scheduled):
        table = self.batch.block_table.block_tables[0].block_table.cpu
        slots = []
        for request in ids:
            row = self.batch.req_id_to_index[request]
            start = int(self.batch.num_computed_tokens_cpu[row])
            for position in range(start, start + scheduled[request]):
                block = int(table[row, position // self.block_size])
                slots.append(block * self.block_size + position % self.block_size)
        return torch.tensor(slots)


class OmniPrefixCacheManager:
    def __init__(self, config, view, *, eager):
        self.config, self.view = config, view
        self.pool = controller.StagingBufferPool()
        if not eager:
            self.stream = torch.cuda.Stream()
        self.store = {}
        self.steps = {}

    def new_step_starts(self, output):
        self.scheduled = output.num_scheduled_tokens
        size = self.config.block_size
        self.hits = {
            new.req_id: [block * size + offset for block in new.block_ids[0] for offset in range(size)][
                : new.num_computed_tokens
            ]
            for new in output.scheduled_new_reqs
        }

    def save_outputs(self, hidden, others, *, num_tokens_unpadded, num_tokens_padded):
        assert num_tokens_unpadded == num_tokens_padded == len(hidden)
        if os.environ.get("NAIVE_PEER_FAULT") == "die":
            os._exit(7)
        rows = {key: value.clone() for key, value in {HIDDEN_KEY: hidden, **others}.items()}
        ids = self.view.batch.req_ids
        for index, slot in enumerate(self.view.step_slots_cpu(ids, self.scheduled).tolist()):
            for key, value in rows.items():
                self.store[key, slot] = value[index]
        self.steps[len(self.steps)] = (rows, dict(self.scheduled), self.hits)
        return len(self.steps) - 1

    def materialize(self, step, ids):
        rows, scheduled, hits = self.steps[step]
        merged = {key: {} for key in rows}
        start = 0
        for request, count in scheduled.items():
            for key, value in rows.items():
                prefix = [self.store[key, slot] for slot in hits.get(request, ())]
                merged[key][request] = torch.stack([*prefix, *value[start : start + count]])
            start += count
        if os.environ.get("NAIVE_PEER_FAULT") == "rows":
            merged[HIDDEN_KEY][ids[-1]][-1, -1] += 1
        return SimpleNamespace(hidden_states=merged.pop(HIDDEN_KEY), mm_outputs=merged)

    def discard_step(self, step):
        self.steps[step] = None

    def shutdown(self):
        self.store.clear()
