"""Keep strings in the YAML as strings. Dagster renders every string of a component as a Jinja template and evaluates
the result as a Python literal. As a result, `'{"id": 7}'` would become a mapping, and `'"abc"'` would lose its quotes.
With this module, a string without a template stays unchanged, and the result of a template is never evaluated: it keeps
the type of the template's expression."""

from __future__ import annotations

import re
import sys
import traceback
from typing import Any, Final

from dagster.components.resolved.context import ResolutionContext
from dagster.components.resolved.errors import ResolutionException
from dagster_shared.record import as_dict_for_new
from jinja2 import Environment, StrictUndefined, Undefined
from jinja2.exceptions import UndefinedError

_EXPRESSION: Final = re.compile(r"\{\{(?!-)((?:(?!\{\{|\}\}).)*)(?<!-)\}\}\n?", re.DOTALL)
"""Pattern for a string that consists of a single template expression."""
_ENVIRONMENT: Final = Environment(undefined=StrictUndefined)


def has_template(value: object) -> bool:
    """Return True if a YAML value contains a template, at any depth."""
    if isinstance(value, dict):
        return any(has_template(each) for each in value.values())
    if isinstance(value, list | tuple):
        return any(has_template(each) for each in value)
    return isinstance(value, str) and ("{{" in value or "{%" in value)


class TextContext(ResolutionContext):
    """A Dagster context that leaves strings unchanged."""

    @classmethod
    def of(cls, context: ResolutionContext) -> TextContext:
        """Return a copy of the context that leaves strings unchanged."""
        return cls(**as_dict_for_new(context))

    def _resolve_inner_value(self, val: Any) -> Any:
        if not has_template(val):
            return val
        try:
            found = self._rendered(val)
        except UndefinedError as e:
            raise self._invalid_scope_exc(str(e.message)) from None
        except ResolutionException:
            raise
        except Exception:  # noqa: BLE001  whatever a template calls
            raise self._scope_threw_exc(traceback.format_exception(*sys.exc_info())) from None
        if isinstance(found, Undefined):
            raise self._invalid_scope_exc(found._undefined_message) from None
        return found

    def _rendered(self, text: str) -> Any:
        if expression := _EXPRESSION.fullmatch(text):
            return _ENVIRONMENT.compile_expression(expression[1], undefined_to_none=False)(**self.scope)
        return _ENVIRONMENT.from_string(text).render(**self.scope)
