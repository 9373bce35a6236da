"""The ledger: which offsets belong to which window, and what each load committed.

`store` reads and writes the two ledgers, and `decisions` those of operators. `entries` has the values, `recording`,
`appending`, `folding`, `pruning`, `rollback` and `version` maintain the tables, and the others derive something:
`unloaded`, `position`, `erasure_rules`.

Each process keeps these caches, all derived from logs that only grow:

| cache | key | may be stale |
|---|---|---|
| `newest_cuts` | ledger of cuts | no: each look-up reads newer commits |
| `known_files` | ledger; its files by topic or table | no; earlier damaged files are noticed only after `doubt` |
| `followed` | ledger of loads | up to 5 s for `newest_lately`; no for `newest` and `entries_since` |
| `unloaded` | lake and table | up to 5 s, because it asks `followed.newest_lately` |
| `erasure_rules` | lake and topic | no: the versions of its sources are compared |
"""
