"""Code that runs inside Spark's Python workers: it decodes some shares of one or more windows.

Memory is bounded by a few blocks, however large a row group or a window is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.decoder import Decoder
from platform_assets.decoding.expectations import failing
from platform_assets.decoding.formats import decoder_of
from platform_assets.engines.decoding.digests import measured
from platform_assets.engines.decoding.rows import RAW_COLUMNS, RowMaker, by_partition, order_of
from platform_assets.engines.decoding.work import Piece, Report, Share, Work
from platform_assets.engines.shared.files import CONSTANT, FileSeries, not_written
from platform_assets.errors import FilesLostError, LoadError, PlatformError
from platform_assets.lake import parquet
from platform_assets.lake.field_ids import FieldIds
from platform_assets.lake.files import files_at, files_below
from platform_assets.lake.parquet import WINDOW, leaves, python_values
from platform_assets.model.expectations import MOST_SAMPLES, Expectation, FailingRow, Figures
from platform_assets.model.untrusted import shown_value


class Measurer:
    """Counter of the rows that fail expectations. It keeps the first few failing rows. It does not check `unique`,
    which does not apply to single rows: see `uniqueness`.

    `layout` describes the columns of the rows. `figures` also contains the expectations that no row fails.
    """

    def __init__(self, expectations: Sequence[Expectation], layout: pa.Schema) -> None:
        self._each = [
            (e.digest, e.columns[0], failing(e, layout.field(e.columns[0]).type))
            for e in expectations
            if e.kind != "unique"
        ]
        self._columns = list(dict.fromkeys(["kafka_partition", "kafka_offset", *(name for _, name, _ in self._each)]))
        self.figures = {digest: Figures() for digest, _, _ in self._each}

    def add(self, rows: pa.RecordBatch) -> None:
        """Count the failing rows among `rows`, which are about to be written and are in order of partition and offset."""
        if not self._each:
            return
        judged = rows.select(self._columns)
        if rows["tombstone"].true_count:
            judged = judged.filter(pc.invert(rows["tombstone"]))
        for digest, column, fails in self._each:
            mask = fails(judged[column])
            self.figures[digest] += Figures(judged.num_rows, mask.true_count, _first(judged, column, mask))


def _first(rows: pa.RecordBatch, column: str, mask: pa.BooleanArray) -> tuple[FailingRow, ...]:
    if not mask.true_count:
        return ()
    places = pa.array(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[:MOST_SAMPLES])
    found = (python_values(rows[name].take(places)) for name in ("kafka_partition", "kafka_offset", column))
    return tuple(FailingRow(p, o, shown_value(value)) for p, o, value in zip(*found, strict=True))


_TOPIC_ID: Final = pa.dictionary(pa.int32(), pa.string())
BLOCK_BYTES: Final = 16 << 20
BLOCK_ROWS: Final = 32_768
"""Maximum number of bytes of column data, and maximum number of rows, to decode at a time."""


def reports(work: Work, numbers: Iterable[int]) -> Iterator[Report]:
    """Run the shares with these numbers. Yield a report for each file of a share or, after a failure, one report with
    the share's error. After success, also yield a final report."""
    decoders: tuple[Decoder, Decoder | None] | None = None
    window = ""
    for number in numbers:
        share = work.shares[number]
        if share.window != window:
            # Decoders remember which schemas the registry lacks, up to a limit. Each window gets new decoders, because
            # its dead letters must not depend on other windows.
            decoders, window = None, share.window
        try:
            decoders = decoders or _decoders(work)
            maker = _maker(work, window, *decoders)
            measurer = Measurer(work.declaration.expect, work.layout)
            decoded, dead = _written(work, share, maker, measurer)
        except PlatformError as error:
            yield Report(number, error=error)
            continue
        yield from (Report(number, "decoded", file) for file in decoded.written)
        yield from (Report(number, "dead_letters", file) for file in dead.written)
        yield Report(number, figures=measurer.figures)


def _decoders(work: Work) -> tuple[Decoder, Decoder | None]:
    """Return the decoder for the value and, if keys are decoded, the decoder for the key."""
    d, schemas = work.declaration, files_below(work.schemas)
    return (
        decoder_of(d.value, schemas, work.registry),
        None if d.key is None else decoder_of(d.key, schemas, work.registry),
    )


def _maker(work: Work, window: str, value: Decoder, key: Decoder | None) -> RowMaker:
    d = work.declaration
    return RowMaker(value, key, work.layout, work.dead_layout, d.digest_of(window), d.repairs_of(window))


def _written(work: Work, share: Share, maker: RowMaker, measurer: Measurer) -> tuple[FileSeries, FileSeries]:
    """Write the files of a share and close the files; `measurer` counts the rows.

    After any failure, delete the files and raise one of the platform's errors.
    """
    (in_decoded, in_dead), (ids, dead_ids) = work.window_columns, work.field_ids
    decoded = _series(work.decoded, work.layout, share, work.rows_apart, ids, window_column=in_decoded)
    dead = _series(work.dead_letters, work.dead_layout, share, work.rows_apart, dead_ids, window_column=in_dead)
    try:
        for piece in share.pieces:
            for records, whole in _blocks(work, share.window, piece, maker.needed):
                rows, letters = maker.rows(records, whole)
                measurer.add(rows)
                for part in by_partition(rows):
                    decoded.add(part)
                for part in by_partition(letters):
                    dead.add(part)
        decoded.close()
        dead.close()
    except BaseException as error:
        decoded.discard()
        dead.discard()
        if not isinstance(error, Exception):
            raise
        raise _named(error, work, share.window) from error
    return decoded, dead


def _series(
    table: str, layout: pa.Schema, share: Share, rows_apart: int, ids: FieldIds, *, window_column: bool
) -> FileSeries:
    dictionaries, deltas = encodings(layout)
    return FileSeries(
        files_at(table),
        share.below,
        f"{share.number:05d}",
        rows_apart,
        measure=measured,
        dictionaries=(*dictionaries, WINDOW) if window_column else dictionaries,
        deltas=deltas,
        window=share.window if window_column else None,
        field_ids=ids,
    )


def encodings(layout: pa.Schema) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return two groups of leaves: leaves with dictionary encoding, and leaves with delta encoding. The second group
    contains the whole numbers and times.

    For whole numbers, delta encoding takes less time and less space than a dictionary.
    """
    found = [leaf for field in layout for leaf in leaves(field.name, field.type)]
    deltas = tuple(path for path, kind in found if _is_whole(kind) and path not in CONSTANT)
    return tuple(path for path, _ in found if path not in deltas), deltas


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _blocks(
    work: Work, window: str, piece: Piece, needed: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, Callable[[], pa.RecordBatch]]]:
    """Yield the records of a row group in blocks, ordered by partition and offset, with at least the columns `needed`.

    Each block comes with a function that returns the same records with all columns, because dead letters need all
    columns. The iterator and the function raise FilesLostError if the row group cannot be read.
    """
    most = max(min(BLOCK_BYTES * piece.rows // max(piece.bytes, 1), BLOCK_ROWS), 1)
    # The other columns are read for a whole row group at once. For a large row group, they are therefore read together
    # with its blocks.
    columns = list(needed if piece.bytes <= BLOCK_BYTES else RAW_COLUMNS)
    rest = [name for name in RAW_COLUMNS if name not in columns]
    # All rows of a window have the same topic id. One number per row is cheaper than the string.
    with (
        _reading(work, window, piece),
        files_at(work.raw).open(piece.path) as opened,
        parquet.opened(opened, read_dictionary=["topic_id"]) as file,
    ):
        whole_schema = _with_topic_numbers(parquet.plain_schema(file))
        wanted = [*columns, WINDOW] if WINDOW in whole_schema.names else columns

        @cache
        def others() -> pa.Table:
            with _reading(work, window, piece):
                found = file.read_row_group(piece.group, rest, use_threads=False)
                return found.cast(parquet.among(whole_schema, found.schema))

        def whole(
            block: pa.RecordBatch, begin: int, read: int, own: pa.BooleanArray | None, order: pa.Array | None
        ) -> pa.RecordBatch:
            found = {name: block[name] for name in columns}
            if rest:
                more = others().slice(begin, read)
                more = (more if own is None else more.filter(own)).combine_chunks()
                found |= {name: more[name].combine_chunks() for name in rest}
            records = pa.RecordBatch.from_pydict({name: found[name] for name in RAW_COLUMNS})
            return records if order is None else records.take(order)

        begin = 0
        for read in file.iter_batches(most, [piece.group], wanted, use_threads=False):
            block = read.cast(parquet.among(whole_schema, read.schema))
            own = None
            if wanted is not columns:
                # A shared file has rows of other windows too.
                own = pc.fill_null(pc.equal(block[WINDOW], window), False)
                block = block.filter(own).select(columns)
            if block.num_rows:
                order = order_of(block)
                rows = partial(whole, block, begin, read.num_rows, own, order)
                yield block if order is None else block.take(order), rows
            begin += read.num_rows


def _with_topic_numbers(whole: pa.Schema) -> pa.Schema:
    return pa.schema([f.with_type(_TOPIC_ID) if f.name == "topic_id" else f for f in whole])


@contextmanager
def _reading(work: Work, window: str, piece: Piece) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise FilesLostError(f"raw/{work.topic}", window, f"{piece.path}: {error}") from error


def _named(error: Exception, work: Work, window: str) -> PlatformError:
    if isinstance(error, PlatformError):
        return error
    if isinstance(error, OSError) and error.errno is not None:
        return not_written(error, work.decoded)
    return LoadError(
        f"window {window} of topic {work.topic!r} could not be decoded: {type(error).__name__}: {error}. The tables "
        "were not changed. Report this as a defect."
    )
