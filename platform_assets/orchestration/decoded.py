"""What a topic that is decoded becomes in Dagster beside its raw table: two more tables, made by one step, and their checks."""

# No postponed annotations here: Dagster reads those of the functions below.
from collections.abc import Iterator, Sequence
from typing import Any, Final

import dagster as dg

from platform_assets.checks import decoded as checks
from platform_assets.checks.findings import Verdict
from platform_assets.checks.report.worst import remedies, worst_windows
from platform_assets.decoding.formats import decoder_of
from platform_assets.lake import dead_letter_table, decoded_table
from platform_assets.lake.schema_change import is_required, type_name
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration
from platform_assets.orchestration import decode_runs, metadata, runs
from platform_assets.orchestration.names import identifier, table_key
from platform_assets.orchestration.resources import LakeResource, SparkResource

_SEVERITIES: Final = {
    "passed": dg.AssetCheckSeverity.WARN,
    "warning": dg.AssetCheckSeverity.WARN,
    "error": dg.AssetCheckSeverity.ERROR,
}
_MOST: Final = 20


def build_tables(
    declaration: TopicDeclaration,
    declared: DecodeDeclaration,
    partitions: dg.PartitionsDefinition[str],
    group: str,
    owners: Sequence[str],
) -> dg.AssetsDefinition:
    """The two assets. Their code version is the digest of what is declared, so that a change makes older windows stale."""
    topic, raw = declaration.topic, table_key(declaration.raw_table)
    common: dict[str, Any] = {
        "deps": [raw],
        "partitions_def": partitions,
        "group_name": group,
        "kinds": {"delta", "pyspark"},
        "owners": list(owners),
        "code_version": declared.digest,
    }
    key_fields = None if declared.key is None else decoder_of(declared.key).fields
    columns = decoded_table.columns(key_fields, decoder_of(declared.value).fields)
    specs = [
        dg.AssetSpec(
            table_key(declaration.decoded_table),
            description=f"Records of Kafka topic {topic} as typed rows, one for each that could be decoded.",
            metadata=_table_metadata(declaration.decoded_table.name, columns, _lineage(raw, columns)),
            **common,
        ),
        dg.AssetSpec(
            table_key(declaration.dead_letter_table),
            description=f"Records of Kafka topic {topic} that could not be decoded, as they were sent, with the reason.",
            metadata=_table_metadata(
                declaration.dead_letter_table.name,
                dead_letter_table.columns(),
                {n: [dg.TableColumnDep(raw, n)] for n in dead_letter_table.RAW_COLUMNS},
            ),
            **common,
        ),
    ]

    @dg.multi_asset(
        specs=specs,
        name=f"{identifier(topic)}_decode",
        backfill_policy=dg.BackfillPolicy.single_run(),
        op_tags={"platform_assets/topic": topic},
    )
    def _decode(
        context: dg.AssetExecutionContext, lake: LakeResource, spark: SparkResource
    ) -> Iterator[dg.MaterializeResult[Any]]:
        keys = list(context.partition_keys)
        done = decode_runs.decode(context, declaration, keys, lake, spark)
        for table in (declaration.decoded_table, declaration.dead_letter_table):
            of_table = {
                k: (w.decoded if table.kind == "decoded" else w.dead_letters, w.outcome) for k, w in done.items()
            }
            path = str(lake.lake().table(table))
            if len(keys) == 1:
                receipt, outcome = of_table[keys[0]]
                yield dg.MaterializeResult(
                    asset_key=table_key(table),
                    metadata=metadata.of_decoded(receipt, outcome, path),
                    data_version=dg.DataVersion(metadata.data_version(receipt)),
                )
                continue
            for key, (receipt, outcome) in of_table.items():
                context.add_asset_metadata(
                    metadata.of_decoded(receipt, outcome, path), asset_key=table_key(table), partition_key=key
                )
            yield dg.MaterializeResult(asset_key=table_key(table))

    return _decode


def build_checks(declaration: TopicDeclaration, declared: DecodeDeclaration) -> dg.AssetChecksDefinition:
    """Both checks, in one step."""
    asset = table_key(declaration.decoded_table)
    specs = [
        dg.AssetCheckSpec(
            checks.CONSERVATION,
            asset=asset,
            blocking=True,
            description="Decoded rows and dead letters of a window are just its raw rows, by their digests, and of one declaration.",
        ),
        dg.AssetCheckSpec(
            checks.SHARE,
            asset=asset,
            blocking=True,
            description=f"Of a window's records, at most {declared.warn_share:g} are dead letters without a warning, and at most "
            f"{declared.fail_share:g} without an error.",
        ),
    ]

    @dg.multi_asset_check(specs=specs, name=f"{identifier(declaration.topic)}_decoded_checks", can_subset=True)
    def _evaluate(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> Iterator[dg.AssetCheckResult]:
        ledger = Ledger(lake.lake())
        sealed = ledger.edges(declaration.topic)[:-1]
        of_run = sorted(runs.named_by(context.run, sealed))
        wanted = {key.name for key in context.selected_asset_check_keys}
        for found in results(declaration, declared, ledger, of_run or None):
            if found.check_name in wanted:
                yield found

    return _evaluate


def results(
    declaration: TopicDeclaration, declared: DecodeDeclaration, ledger: Ledger, keys: Sequence[str] | None
) -> Iterator[dg.AssetCheckResult]:
    """Both checks of the windows `keys` and the newest ones; of all where there are none."""
    windows = checks.windows_of(declaration, ledger, keys)
    yield _conservation(declaration, checks.conserved(windows))
    found = checks.shares(windows, declared, ledger, keys or windows.keys[-1:])
    yield dg.AssetCheckResult(
        asset_key=table_key(declaration.decoded_table),
        check_name=checks.SHARE,
        passed=found.level == "passed",
        severity=_SEVERITIES[found.level],
        description=_share_text(declaration, found),
        metadata={
            "dead_letters": found.dead,
            "records": found.of,
            "largest_share": found.worst_share,
            **({"samples": _samples(found)} if found.groups else {}),
        },
    )


def evaluation(found: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """The same as an event that belongs to no step of assets."""
    if found.asset_key is None or found.check_name is None:
        raise AssertionError("unreachable: results name both")
    return dg.AssetCheckEvaluation(
        found.asset_key,
        found.check_name,
        found.passed,
        found.metadata,
        severity=found.severity,
        description=found.description,
    )


def _conservation(declaration: TopicDeclaration, verdict: Verdict) -> dg.AssetCheckResult:
    values: dict[str, Any] = {**dict(verdict.figures), "findings": len(verdict.findings)}
    if verdict.findings:
        worst = worst_windows(verdict.findings)
        columns = [dg.TableColumn("window", "string"), dg.TableColumn("found", "string")]
        records = [dg.TableRecord({"window": w.window, "found": w.found}) for w in worst[:_MOST]]
        values["anomalies"] = dg.MetadataValue.table(records, dg.TableSchema(columns))
        values["remedy"] = " ".join(str(r) for r in remedies(worst)[:_MOST])
    return dg.AssetCheckResult(
        asset_key=table_key(declaration.decoded_table),
        check_name=checks.CONSERVATION,
        passed=verdict.passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=verdict.headline,
        metadata=values,
    )


def _share_text(declaration: TopicDeclaration, found: checks.Shares) -> str:
    if found.worst is None or not found.dead:
        return f"No dead letters among {found.of:,} records."
    reasons = ", ".join(f"{g.count:,} {g.reason}" + (f" at {g.place}" if g.place else "") for g in found.groups[:3])
    more = f" and {len(found.groups) - 3} more kinds" if len(found.groups) > 3 else ""
    return (
        f"{found.dead:,} of {found.of:,} records are dead letters: {reasons}{more}. The largest share is {found.worst_share:.2%}, of "
        f"window {found.worst}. See `platform-assets dead-letters {declaration.dead_letter_table}`; correct `decode:` in the topic's "
        "YAML and materialise the windows again, and what can be decoded then moves over."
    )


def _samples(found: checks.Shares) -> dg.TableMetadataValue:
    names = ("reason", "place", "count", "side", "window", "partition", "offset", "detail", "value")
    records = [
        dg.TableRecord(
            {
                "reason": group.reason,
                "place": group.place or "",
                "count": group.count,
                "side": group.side,
                "window": sample.window,
                "partition": sample.partition,
                "offset": sample.offset,
                "detail": sample.detail,
                "value": (sample.key if group.side == "key" else sample.value) or "",
            }
        )
        for group in found.groups
        for sample in group.samples
    ]
    ints = {"count", "partition", "offset"}
    columns = [dg.TableColumn(name, "int" if name in ints else "string") for name in names]
    return dg.MetadataValue.table(records[:_MOST], dg.TableSchema(columns))


def _lineage(raw: dg.AssetKey, columns: Any) -> dict[str, list[dg.TableColumnDep]]:
    """Each column with the raw one that it is made from."""
    own = {n: n for n in ("topic_id", "kafka_partition", "kafka_offset", "kafka_timestamp", "window")}
    of_key = dict.fromkeys((decoded_table.KEY, decoded_table.KEY_RESCUED), "key")
    return {n: [dg.TableColumnDep(raw, {**own, **of_key}.get(n, "value"))] for n in columns.names}


def _table_metadata(name: str, columns: Any, lineage: dict[str, list[dg.TableColumnDep]]) -> dict[str, Any]:
    schema = dg.TableSchema(
        [
            dg.TableColumn(
                f.name,
                type_name(f.type),
                description=(f.metadata or {}).get(b"comment", b"").decode() or None,
                constraints=dg.TableColumnConstraints(nullable=not is_required(f)),
            )
            for f in columns
        ]
    )
    return {
        "dagster/table_name": name,
        "dagster/storage_kind": "delta",
        "dagster/column_schema": schema,
        "dagster/column_lineage": dg.TableColumnLineage(lineage),
    }
