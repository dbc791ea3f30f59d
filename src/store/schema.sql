-- The layout of run.db, version 1. From these comments scripts/trace-doc writes the page about it.
--
-- Columns are only ever added; PRAGMA user_version counts the versions. Times are nanoseconds of the
-- device's clock since the run began (a dry run's clock is its forecast). Bytes are what was asked
-- for; reserved_bytes what the arena gave. `seq` is a per-rank counter of allocations, frees, range
-- begins and range ends, from 1: something is alive at s when alloc_seq <= s and (free_seq is NULL
-- or s < free_seq).

-- Facts about the run, as text: schema_version, upipe_version (that wrote it), run_id,
-- config_hash (what the event list depends on), config (JSON), command, model, device, as, dtype,
-- ranks, cp, dp, seq_len, batch, accum, started (UTC), complete
-- (1 once the run has ended in order), outcome (ok, out of memory, failed), events_written,
-- recorder_ns, recorder_bytes, ring_waits, steps_planned; out_of_memory (JSON: the first allocation
-- that failed, of which rank, and the state of the memory it was looked for in); recorded_by
-- (injection: of a program that is not upipe's; its ranks are GPUs, its tensors the driver's
-- allocations, named after the library that asked, its ranges those of NVTX); process and processes: of
-- a run in several each has a file of its own, in which `ranks` counts those of all and the table rank
-- has its own.
CREATE TABLE meta (
  key TEXT PRIMARY KEY,          -- one of the above; more may come
  value TEXT
) WITHOUT ROWID;

-- One row per rank that is traced. A dry run simulates rank 0 alone.
CREATE TABLE rank (
  rank INTEGER PRIMARY KEY,
  node TEXT,                     -- host name
  device_name TEXT,
  capacity_bytes INTEGER,        -- of the device; NULL where unbounded
  baseline_used_bytes INTEGER    -- used on the device before the run; NULL where unknown
);

-- One row per tensor lifetime. Two names of the same bytes (in place, views) share a storage_id and
-- count once.
CREATE TABLE tensor (
  id INTEGER PRIMARY KEY,
  rank INTEGER NOT NULL,
  space TEXT NOT NULL,           -- device, host
  storage_id INTEGER NOT NULL,   -- the id of the first name of these bytes
  name TEXT NOT NULL,            -- layers.12.attn.q
  category TEXT NOT NULL,        -- parameter gradient optimizer checkpoint attention norm mlp loss comm workspace data
  layer INTEGER,                 -- NULL outside layers
  phase TEXT NOT NULL,           -- init forward backward optimizer; in which it was allocated
  dtype TEXT NOT NULL,           -- fp32 bf16 fp64 i32 u8
  shape TEXT NOT NULL,           -- [4096,32,128]
  bytes INTEGER NOT NULL,        -- asked for
  reserved_bytes INTEGER NOT NULL, -- given
  offset INTEGER NOT NULL,       -- in the rank's arena of that space
  stream TEXT NOT NULL,          -- compute, copy-out, copy-in, comm: the one that uses it first
  step INTEGER,                  -- NULL: outlives steps
  free_step INTEGER,             -- NULL: still alive, or freed outside steps
  range_id INTEGER,              -- the innermost range it was allocated in; NULL where that has no row
  alloc_seq INTEGER NOT NULL,
  free_seq INTEGER,              -- NULL: still alive
  alloc_ns INTEGER NOT NULL,
  free_ns INTEGER
);

-- Named stretches of the step, nested; the same names as the NVTX ranges.
CREATE TABLE range (
  id INTEGER PRIMARY KEY,
  rank INTEGER NOT NULL,
  parent INTEGER,                -- the enclosing range
  name TEXT NOT NULL,            -- layers.12.attn
  step INTEGER,
  layer INTEGER,
  phase TEXT NOT NULL,
  begin_ns INTEGER NOT NULL,     -- on the host
  end_ns INTEGER,                -- NULL: still open when the trace ended
  device_begin_ns INTEGER,       -- of the work in it and in ranges within, where that is known (cuda,
                                 -- --trace-level kernels); written when the run ends
  device_end_ns INTEGER,
  stream TEXT NOT NULL,
  begin_seq INTEGER NOT NULL,
  end_seq INTEGER
);

-- One row per step and rank, steps from 0, written when the step begins.
CREATE TABLE step (
  step INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  loss REAL,                     -- token-weighted mean over all ranks, the same on each
  grad_norm REAL,                -- before clipping
  tokens INTEGER,                -- counted tokens over all ranks
  begin_ns INTEGER NOT NULL,
  end_ns INTEGER,                -- NULL: the step did not end
  peak_bytes INTEGER,            -- largest sum of bytes alive in device space
  peak_seq INTEGER,              -- the allocation that reached it, in this step or the one it repeats;
                                 -- NULL where neither has rows
  event_hash TEXT,               -- 16 hex digits, over the step's allocations and frees
  same_as_step INTEGER,          -- this step repeated that one event for event; its rows are not kept
  PRIMARY KEY (step, rank)
) WITHOUT ROWID;

-- Work that ran on a device stream, one row per operation, which on a GPU may be several kernels. On
-- cuda begin_ns and end_ns are when the GPU ran it with --trace-level kernels, else both are when it
-- was given to the stream. What libraries run in a step beside the operations has rows under the
-- kernel's own name.
CREATE TABLE kernel (
  id INTEGER PRIMARY KEY,
  rank INTEGER NOT NULL,
  name TEXT NOT NULL,
  step INTEGER,
  stream TEXT NOT NULL,
  range_id INTEGER,
  begin_ns INTEGER NOT NULL,
  end_ns INTEGER NOT NULL,
  flops REAL
);

-- Copies between or within spaces.
CREATE TABLE copy (
  id INTEGER PRIMARY KEY,
  rank INTEGER NOT NULL,
  name TEXT NOT NULL,            -- the tensor copied
  step INTEGER,
  stream TEXT NOT NULL,
  range_id INTEGER,
  begin_ns INTEGER NOT NULL,
  end_ns INTEGER NOT NULL,
  from_space TEXT NOT NULL,
  to_space TEXT NOT NULL,
  bytes INTEGER NOT NULL
);

-- Collective operations between ranks.
CREATE TABLE collective (
  id INTEGER PRIMARY KEY,
  rank INTEGER NOT NULL,
  name TEXT NOT NULL,            -- all_to_all, all_gather, reduce_scatter, all_reduce, broadcast
  step INTEGER,
  stream TEXT NOT NULL,
  range_id INTEGER,
  begin_ns INTEGER NOT NULL,
  end_ns INTEGER NOT NULL,
  bytes INTEGER NOT NULL         -- sent by this rank
);

-- Memory taken from the driver, by whom. What was not seen taken but grew the use of the device while
-- a library was set up or first used is a row of the library's, taken when that ended. `async pool` is
-- what the pools of cudaMallocAsync keep of what was freed to them, or took beyond what was asked.
CREATE TABLE device_alloc (
  id INTEGER PRIMARY KEY,
  rank INTEGER NOT NULL,
  owner TEXT NOT NULL,           -- arena, nccl, cublas, cudnn, context, async pool, or a library's file name
  space TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  alloc_ns INTEGER NOT NULL,
  free_ns INTEGER                -- NULL: still held
);

-- What the system said was used, sampled about ten times a second (the device, on cuda, about four
-- times), and on cuda when each step ended.
CREATE TABLE usage (
  rank INTEGER NOT NULL,
  ns INTEGER NOT NULL,
  device_used_bytes INTEGER,     -- NULL where the device cannot tell, or was not asked
  host_rss_bytes INTEGER         -- of the whole process, all its ranks
);

-- Forecasts made from this run, to be held against the next.
CREATE TABLE prediction (
  id INTEGER PRIMARY KEY,
  options TEXT NOT NULL,         -- the change of options, as typed
  config_hash TEXT NOT NULL,     -- of the run it forecasts
  peak_bytes INTEGER NOT NULL,
  peak_phase TEXT,
  peak_owner TEXT,               -- category with most bytes at the peak
  step_s REAL,
  host_bytes INTEGER
);

-- Bytes at a forecast's peak, by category; 'beside' is what a device holds beside tensors: free arena, and what
-- libraries take.
CREATE TABLE prediction_category (
  prediction_id INTEGER NOT NULL,
  category TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  PRIMARY KEY (prediction_id, category)
) WITHOUT ROWID;

-- Whatever the recorder could not do, and why.
CREATE TABLE diagnostic (
  id INTEGER PRIMARY KEY,
  rank INTEGER,                  -- NULL: about the trace as a whole
  ns INTEGER,
  kind TEXT NOT NULL,            -- out_of_memory, step_too_long, disk, store, journal, index, run, cupti,
                                 -- cupti_dropped, observer, baseline
  text TEXT NOT NULL
);

-- Each rank's highest recorded moment: the step whose own rows were kept and whose peak is largest.
CREATE VIEW peak AS
  SELECT rank, step, peak_bytes, peak_seq FROM (
    SELECT *, row_number() OVER (PARTITION BY rank ORDER BY peak_bytes DESC, step) AS place
    FROM step WHERE peak_seq IS NOT NULL AND same_as_step IS NULL)
  WHERE place = 1;

-- What is alive on the device at each rank's peak, one row per storage, under its newest name.
CREATE VIEW live_at_peak AS
  SELECT rank, id, storage_id, name, category, layer, phase, dtype, shape, bytes, reserved_bytes, step
  FROM (
    SELECT t.*, row_number() OVER (PARTITION BY t.rank, t.storage_id ORDER BY t.alloc_seq DESC) AS place
    FROM tensor t JOIN peak p ON p.rank = t.rank
    WHERE t.space = 'device' AND t.alloc_seq <= p.peak_seq
      AND (t.free_seq IS NULL OR t.free_seq > p.peak_seq))
  WHERE place = 1;

-- The same summed by category.
CREATE VIEW peak_by_category AS
  SELECT rank, category, sum(bytes) AS bytes, count(*) AS tensors
  FROM live_at_peak GROUP BY rank, category;

-- Bytes alive on the device after each allocation and free, in order. Of names that share a storage
-- only the bytes not counted already appear.
CREATE VIEW timeline AS
  SELECT rank, seq, ns, step, sum(delta) OVER (PARTITION BY rank ORDER BY seq) AS live_bytes
  FROM (
    SELECT rank, min(alloc_seq) AS seq, min(alloc_ns) AS ns, min(step) AS step, max(bytes) AS delta
      FROM tensor WHERE space = 'device' GROUP BY rank, storage_id
    UNION ALL
    SELECT rank, max(free_seq), max(free_ns), max(free_step), -max(bytes)
      FROM tensor WHERE space = 'device' GROUP BY rank, storage_id
      HAVING count(*) = count(free_seq));

PRAGMA application_id = 0x75706970; -- "upip"
PRAGMA user_version = 1;
