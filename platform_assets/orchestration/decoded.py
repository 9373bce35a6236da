"""What a topic that is decoded becomes in Dagster beside its raw table: two more tables, made by one step."""

# No postponed annotations here: Dagster reads those of the functions below.
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from platform_assets.decoding.formats import decoder_of
from platform_assets.lake import dead_letter_table, decoded_table
from platform_assets.lake.schema_change import is_required, type_name
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration
from platform_assets.model.untrusted import markdown
from platform_assets.orchestration import decode_runs, metadata
from platform_assets.orchestration.names import decode_op, table_key
from platform_assets.orchestration.partitions import partition_keys
from platform_assets.orchestration.resources import LakeResource, SparkResource


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
            description=markdown(f"Records of Kafka topic {topic} as typed rows, one for each that could be decoded."),
            metadata=_table_metadata(declaration.decoded_table.name, columns, _lineage(raw, columns)),
            **common,
        ),
        dg.AssetSpec(
            table_key(declaration.dead_letter_table),
            description=markdown(
                f"Records of Kafka topic {topic} that could not be decoded, as they were sent, with the reason."
            ),
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
        name=decode_op(topic),
        backfill_policy=dg.BackfillPolicy.single_run(),
        op_tags={"platform_assets/topic": topic},
    )
    def _decode(
        context: dg.AssetExecutionContext, lake: LakeResource, spark: SparkResource
    ) -> Iterator[dg.MaterializeResult[Any]]:
        keys = partition_keys(context, declaration.decoded_table, declaration.first_edge)
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
                description=markdown((f.metadata or {}).get(b"comment", b"").decode()) or None,
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
