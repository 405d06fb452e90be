"""What `inject_faults.py` puts into the cache: one-line faults, and the tests that must notice each."""

from __future__ import annotations

from dataclasses import dataclass

MACHINE_INLINE = "test_cache_machine.py::TestInline::runTest"
MACHINE_THREADED = "test_cache_machine.py::TestThreaded::runTest"
MACHINE_DELAYED = "test_cache_machine.py::TestDelayed::runTest"


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of one file.

    Parameters:
        file: inside `prefix_cache/`.
        old, new: the text that stands there once, and what replaces it.
        why: what would go wrong in an engine.
        tests: node ids inside `tests/cache/`, each of which must fail; a name without its parameters means any of them.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]


FAULTS = (
    Fault(
        "gather before the step's write",
        "cache.py",
        "                hit.read = self._read(hit.read.blocks, hit.read.room)\n",
        "                hit.read._cancelled = False\n",
        "A request that hits rows computed in the same step reads them before they are there.",
        ("test_cache.py::test_a_hit_on_rows_of_the_same_step_reads_them", MACHINE_INLINE, MACHINE_THREADED),
    ),
    Fault(
        "the cancelled read is handed out",
        "cache.py",
        "                hit.read = self._read(hit.read.blocks, hit.read.room)\n",
        "                self._read(hit.read.blocks, hit.read.room)\n",
        "The superseded read of a same-step hit is the one the consumer asks.",
        ("test_cache.py::test_a_hit_on_rows_of_the_same_step_reads_them", MACHINE_INLINE),
    ),
    Fault(
        "forget the presence clear",
        "store.py",
        "        self._present.reshape(-1)[slots] = bits\n",
        "        self._present.reshape(-1)[slots] |= bits\n",
        "A recycled block serves an old tenant's row of a key that its new tenant does not emit.",
        (
            "test_cache.py::test_a_recycled_block_forgets_the_keys_its_new_tenant_does_not_emit",
            MACHINE_INLINE,
            MACHINE_THREADED,
        ),
    ),
    Fault(
        "skip the copy out of a reused buffer",
        "staging.py",
        "        return cls._land(held, layout, count, copier, pool)\n",
        "        return cls._land(rows, layout, count, copier, pool)\n",
        "The engine's next step overwrites rows that are still on their way.",
        ("test_cache.py::test_rows_are_copied_out_before_save_returns", MACHINE_INLINE, MACHINE_DELAYED),
    ),
    Fault(
        "flush after begin's registrations",
        "cache.py",
        "        self._flush()\n        self._live.difference_update(finished)\n",
        "        self._live.difference_update(finished)\n",
        "A new request's read stands in the log before the parked rows that it hits.",
        ("test_cache.py::test_parked_rows_are_hit_like_any_other", MACHINE_INLINE, MACHINE_DELAYED),
    ),
    Fault(
        "drop partial blocks at a flush",
        "cache.py",
        "        rows = ParkedRows(segment, 0, segment.used)\n        slots = segment.slots[: segment.used]\n",
        "        whole = max(1, segment.used - segment.used % self.config.block_size)\n"
        "        rows = ParkedRows(segment, 0, whole)\n        slots = segment.slots[:whole]\n",
        "Rows of a block that fills across a flush are never written.",
        ("test_cache.py::test_pure_decode_steps_become_one_write", MACHINE_INLINE, MACHINE_THREADED),
    ),
    Fault(
        "off-by-one slots",
        "slots.py",
        "    slots += position\n",
        "    slots += position + 1\n",
        "Every row lands beside its token.",
        ("test_cache.py::test_slots_follow_the_block_table", MACHINE_INLINE),
    ),
    Fault(
        "a hit's blocks are one too few",
        "cache.py",
        "request.blocks[:whole]",
        "request.blocks[: whole - 1]",
        "The last block of a prefix is missing from what is handed out.",
        ("test_cache.py::test_a_hit_stands_in_front_of_the_first_step_only", MACHINE_INLINE),
    ),
    Fault(
        "lose an aborted request's rows",
        "cache.py",
        "        self._flush()\n        self._live.difference_update(finished)\n",
        "        self._buffer.take() if finished and not new else self._flush()\n"
        "        self._live.difference_update(finished)\n",
        "An aborted request's hashes stay published and are hit: its parked rows are somebody's prefix.",
        ("test_cache_edges.py::test_rows_parked_before_an_end_are_hit_later", MACHINE_INLINE),
    ),
    Fault(
        "double release of the budget",
        "budget.py",
        "        budget, self._budget = self._budget, None\n",
        "        budget = self._budget\n",
        "The bound on device memory drifts upwards until there is none.",
        ("test_cache.py::test_a_budget_grants_one_step_larger_than_itself",),
    ),
    Fault(
        "a ticket is never released",
        "operations.py",
        "        self._rows.written()\n        self._ticket.release()\n",
        "        self._rows.written()\n",
        "The budget runs full and the engine stops.",
        ("test_cache_threads.py::test_a_consumer_that_dies_stops_nobody", MACHINE_INLINE, MACHINE_DELAYED),
    ),
    Fault(
        "an abandoned write keeps its ticket",
        "operations.py",
        "is the log's to report\n        self._ticket.release()\n",
        "is the log's to report\n        pass\n",
        "After a failure the engine waits for the budget until its timeout instead of learning why.",
        ("test_cache_threads.py::test_a_failure_wakes_an_engine_that_waits_for_the_budget",),
    ),
    Fault(
        "an abandoned read wakes nobody",
        "operations.py",
        "            self._error = self._error or error\n        self._end()\n",
        "            self._error = self._error or error\n",
        "After a failure a consumer waits for its hit until its timeout instead of learning why.",
        ("test_cache_threads.py::test_a_failure_wakes_a_consumer_that_waits_for_a_hit",),
    ),
    Fault(
        "parked rows are not charged",
        "staging.py",
        "self._budget.reserve(row_bytes(layout, capacity),",
        "self._budget.reserve(1,",
        "Parked rows and copies in flight together exceed the one bound on device memory.",
        ("test_cache_edges.py::test_parked_rows_and_rows_in_flight_share_one_budget",),
    ),
    Fault(
        "a step's landing is not waited for",
        "staging.py",
        "            self._landing.wait(timeout)\n",
        "            pass\n",
        "Rows are read and stored before they have arrived from the device.",
        (MACHINE_DELAYED, "test_cache_threads.py::test_a_failure_of_the_device_path_is_sticky"),
    ),
    Fault(
        "a segment's landing is not waited for",
        "staging.py",
        "                landing.wait(timeout)\n",
        "                pass\n",
        "The same for parked rows.",
        (MACHINE_DELAYED,),
    ),
    Fault(
        "what has landed lands again",
        "staging.py",
        "            done = self._landings[-1][0] if self._landings else 0\n",
        "            done = 0\n",
        "Rows that a consumer asked for cross from the device twice.",
        ("test_cache_edges.py::test_parked_rows_land_once",),
    ),
    Fault(
        "a segment is reused while a handle needs it",
        "staging.py",
        "        segment, self._filling = self._filling, None\n",
        "        segment = self._filling\n"
        "        if segment is not None:\n"
        "            self._filling = __import__('copy').copy(segment)\n"
        "            self._filling.used = self._filling.steps = 0\n"
        "            self._filling.slots = segment.slots.copy()\n",
        "A step consumed late reads rows of a later one.",
        ("test_cache_edges.py::test_an_open_handle_keeps_its_parked_rows", MACHINE_INLINE),
    ),
    Fault(
        "finished requests are not forgotten",
        "cache.py",
        "        self._live.difference_update(finished)\n",
        "",
        "A preempted request that comes back is taken for a continuation and loses what it hits.",
        ("test_cache_edges.py::test_a_request_that_ended_may_come_back_under_its_name", MACHINE_INLINE),
    ),
    Fault(
        "a continuation is taken for a hit",
        "cache.py",
        "            if request.id in self._live:\n",
        "            if False:\n",
        "A streaming request is handed rows again that it was handed before.",
        ("test_cache.py::test_a_live_request_that_comes_again_is_a_continuation", MACHINE_INLINE),
    ),
    Fault(
        "a resume does not flush",
        "schedule.py",
        "            and not resumed\n",
        "",
        "Rows of a request's old blocks are parked beside rows of its new ones, in one write without an order.",
        ("test_cache.py::test_whatever_is_not_pure_decode_flushes_first[threaded-resume]",),
    ),
    Fault(
        "another set of requests does not flush",
        "schedule.py",
        "            and scheduled.keys() == self._previous\n",
        "",
        "A preempted request's parked rows stay behind while others go on.",
        ("test_cache.py::test_whatever_is_not_pure_decode_flushes_first[threaded-fewer requests]",),
    ),
    Fault(
        "a change of keys does not flush",
        "staging.py",
        " and segment.layout == layout)",
        ")",
        "A key that a decode step omits is stored with whatever the memory held.",
        ("test_cache_edges.py::test_a_key_that_a_decode_step_omits_is_absent_there", MACHINE_INLINE),
    ),
    Fault(
        "zeros for absent required rows",
        "store.py",
        "            if len(absent[key]):\n",
        "            if False:\n",
        "A prefix that was never computed here is served as data.",
        ("test_cache.py::test_a_hit_over_rows_never_written_is_an_error_for_good",),
    ),
    Fault(
        "absent optional rows are not zeroed",
        "gather.py",
        "            self.rows[key][torch.from_numpy(positions)] = 0\n",
        "            pass\n",
        "An old tenant's row, or a pool buffer's last content, is served as an optional row.",
        ("test_cache.py::test_a_recycled_block_forgets_the_keys_its_new_tenant_does_not_emit", MACHINE_INLINE),
    ),
    Fault(
        "the failure is forgotten",
        "log.py",
        "        if self._failure is not None:\n            raise CacheFailed(f",
        "        failure, self._failure = self._failure, None\n"
        "        if failure is not None:\n            raise CacheFailed(f",
        "One call learns of a failed write and the next ones serve what is left.",
        ("test_cache.py::test_a_failed_write_is_raised_by_every_later_call",),
    ),
    Fault(
        "a step without a save leaks its hits",
        "cache.py",
        "            hit.read.cancel()\n        self._hits = {}\n",
        "            pass\n",
        "A prefix stands in front of the rows of a later step.",
        ("test_cache.py::test_a_step_without_a_save_leaks_no_hit", MACHINE_INLINE),
    ),
    Fault(
        "the pool takes memory back while a view lives",
        "pool.py",
        "        finalizer = weakref.finalize(view, self._returned.append, buffer)\n"
        "        finalizer.atexit = False\n"
        "        return torch.from_numpy(view)\n",
        "        lease = torch.from_numpy(view)\n"
        "        finalizer = weakref.finalize(lease, self._returned.append, buffer)\n"
        "        finalizer.atexit = False\n"
        "        return lease\n",
        "Rows that somebody still reads are overwritten by a later step.",
        (MACHINE_INLINE, "test_cache_machine.py::test_a_short_walk_hands_out_true_rows_and_reaches_the_hard_cases"),
    ),
    Fault(
        "the room behind a hit is one row short",
        "cache.py",
        "self._read(blocks, count))",
        "self._read(blocks, count - 1))",
        "The request's own rows overwrite the end of its prefix.",
        ("test_cache.py::test_a_hit_stands_in_front_of_the_first_step_only", MACHINE_INLINE),
    ),
    Fault(
        "padding is kept",
        "keys.py",
        "            taken[key] = value[:total]\n",
        "            taken[key] = value\n",
        "Rows of a padded batch are taken for rows of tokens.",
        (MACHINE_INLINE,),
    ),
    Fault(
        "owned rows are copied",
        "cache.py",
        "            take = StepRows.adopt if owned else StepRows.hold\n",
        "            take = StepRows.hold\n",
        "A step that gives its memory away pays for a copy all the same.",
        ("test_cache_edges.py::test_owned_rows_are_copied_no_further",),
    ),
    Fault(
        "the log runs two operations out of order",
        "log.py",
        "self._pending.popleft()",
        "self._pending.pop()",
        "A read sees writes that came after it, or misses those before.",
        (MACHINE_DELAYED,),
    ),
    Fault(
        "the engine's slots are kept",
        "cache.py",
        "Write(self._store, slots.copy(), staged,",
        "Write(self._store, slots, staged,",
        "The worker writes a step to the slots of the engine's next one.",
        (MACHINE_THREADED, MACHINE_DELAYED),
    ),
    Fault(
        "the engine's list of requests is kept",
        "cache.py",
        "SavedStep(tuple(ids), planned,",
        "SavedStep(ids, planned,",
        "A step consumed late is cut by the requests of the batch that the engine runs by then.",
        ("test_cache_edges.py::test_an_engine_may_use_its_arguments_again", MACHINE_INLINE),
    ),
    Fault(
        "the worker is not in inference mode",
        "log.py",
        "        with torch.inference_mode():\n",
        "        with torch.no_grad():\n",
        "The mode belongs to a thread, and rows of an engine are inference tensors.",
        (MACHINE_DELAYED,),
    ),
    Fault(
        "a consumer is not in inference mode",
        "cache.py",
        "    @inference\n    def _merge(",
        "    def _merge(",
        "The same for whoever assembles outputs on another thread.",
        (MACHINE_DELAYED,),
    ),
    Fault(
        "a copy that fails keeps its ticket",
        "cache.py",
        "            except BaseException:\n                ticket.release()\n                raise\n",
        "            except BaseException:\n                raise\n",
        "A device that was full for a moment leaves less room for the cache for good.",
        ("test_cache_edges.py::test_a_copy_that_fails_gives_its_budget_back",),
    ),
    Fault(
        "open handles hold device memory",
        "staging.py",
        "        self._segment.let_go()\n",
        "        pass\n",
        "Consumers that come late keep parked rows on the device, charged to nobody.",
        ("test_cache_edges.py::test_device_memory_is_charged_for_as_long_as_it_is_held",),
    ),
    Fault(
        "a failure drops no parked rows",
        "cache.py",
        "        self._log.fail(error)\n        self._drop_parked()\n",
        "        self._log.fail(error)\n",
        "After an error the accounting names memory that nobody will ever write.",
        ("test_cache_edges.py::test_a_copy_that_fails_gives_its_budget_back",),
    ),
    Fault(
        "a step that was never saved goes on",
        "schedule.py",
        "        if unsaved:\n",
        "        if False:\n",
        "Its tokens stand in the KV cache and its rows nowhere: a later hit is served the last tenant's.",
        ("test_cache.py::test_a_step_that_was_never_saved_ends_the_cache",),
    ),
    Fault(
        "an interrupted helper keeps its piece",
        "gather.py",
        "                    self._pieces.append(piece)\n",
        "                    pass\n",
        "Ctrl-C in a consumer stops the log until its timeout, and then for good.",
        ("test_gather.py::test_a_helper_that_is_interrupted_leaves_its_piece_to_the_first_thread",),
    ),
    Fault(
        "a consumer that comes early sleeps through the gather",
        "operations.py",
        "        self._begun.set()\n        zeroed",
        "        zeroed",
        "A hit behind its step's WRITE is gathered by one core while another waits for it.",
        ("test_gather.py::test_a_consumer_that_comes_before_the_read_helps",),
    ),
    Fault(
        "a gather ends before its helpers do",
        "gather.py",
        "        while self._unfinished:\n",
        "        while self._pieces:\n",
        "A hit is merged, and its blocks overwritten, while another thread still copies them.",
        ("test_gather.py::test_finish_waits_for_the_helper_and_zeroes_what_is_absent",),
    ),
)
