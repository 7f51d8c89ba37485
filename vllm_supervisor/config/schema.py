"""The JSON Schema of the file, for editors and for checks before a merge."""

from __future__ import annotations

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema

from vllm_supervisor.config.model import Settings
from vllm_supervisor.config.values import SERVICE_NAMES

_SETTINGS = "#/$defs/Settings"


class _WithoutTitles(GenerateJsonSchema):
    """A title made of a key's name tells an editor's user nothing."""

    def field_title_should_be_set(self, schema: CoreSchema) -> bool:  # noqa: ARG002 - pydantic's signature
        """Never."""
        return False


def json_schema() -> dict[str, object]:
    """The schema of `config.yaml`; a file under conf.d is the same without `defaults`.

    It knows keys, types, patterns and bounds. What takes two values to see (ports, GPU memory) only `load` tells.
    """
    settings = Settings.model_json_schema(schema_generator=_WithoutTitles)
    definitions = settings.pop("$defs")
    required = settings.pop("required")
    required.remove("executable")  # it is nearly always among the defaults
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vllm-supervisor configuration",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "defaults": {
                "description": "Values that hold for every service unless it sets its own; mappings are merged.",
                "anyOf": [{"$ref": _SETTINGS}, {"type": "null"}],
            },
            "services": {
                "description": "The services by name; NAME becomes the unit vllm-NAME.service.",
                "type": ["object", "null"],
                "propertyNames": SERVICE_NAMES,
                "additionalProperties": {"$ref": _SETTINGS, "required": required},
            },
        },
        "$defs": {**definitions, "Settings": settings},
    }
