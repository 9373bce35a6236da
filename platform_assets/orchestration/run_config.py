"""Run configuration of the platform's own jobs: values alone.

Wherever Dagster's `Config` takes a text, a number or a flag, it also takes `{env: NAME}`, and reads that variable in the code
location. Whoever may launch a run could so have any of its secrets written into a log, an error or the ledger.
"""

from __future__ import annotations

from typing import Any, TypeVar

import dagster as dg
from dagster._config import ConfigType

C = TypeVar("C", bound=dg.Config)


def values_of(config: type[dg.Config]) -> dg.Field:
    """The schema of an op's config, for `config_schema`: that of `config`, less the environment.

    Raises:
        TypeError: a field has a type that this module does not know.
    """
    return _field(config.to_config_schema().as_field())


def read(config: type[C], context: dg.OpExecutionContext) -> C:
    """The config of a step whose op has the schema `values_of(config)`."""
    return config(**context.op_config)


def _field(given: Any) -> dg.Field:
    default = {"default_value": given.default_value} if given.default_provided else {}
    return dg.Field(_values(given.config_type), is_required=given.is_required, description=given.description, **default)


def _values(given: ConfigType) -> Any:
    if isinstance(given, dg.ScalarUnion):
        return given.scalar_type
    if isinstance(given, dg.Array):
        return dg.Array(_values(given.inner_type))
    if isinstance(given, dg.Noneable):
        return dg.Noneable(_values(given.inner_type))
    if isinstance(given, dg.Map):
        return dg.Map(_values(given.key_type), _values(given.inner_type))  # type: ignore[no-untyped-call]
    if isinstance(given, dg.Shape):
        return dg.Shape({name: _field(field) for name, field in given.fields.items()})  # type: ignore[no-untyped-call]
    if given.key in ("String", "Int", "Bool", "Float"):
        return given
    raise TypeError(f"config of the type {given.key} may read the environment: add it to {__name__} if it does not.")
