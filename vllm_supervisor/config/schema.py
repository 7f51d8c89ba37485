"""The JSON Schema of the file, for editors and for checks before a merge."""

from __future__ import annotations

from vllm_supervisor.config.model import MAX_NAME, Settings


def json_schema() -> dict[str, object]:
    """The schema of `config.yaml`; a file under conf.d is the same without `defaults`.

    It knows keys, types and bounds. What takes two values to see (ports, GPU memory) only `load` tells.
    """
    settings = Settings.model_json_schema()
    definitions = settings.pop("$defs")
    properties = settings["properties"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vllm-supervisor configuration",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "defaults": {
                "description": "Values that hold for every service unless it sets its own; mappings are merged.",
                "type": ["object", "null"],
                "additionalProperties": False,
                "properties": properties,
            },
            "services": {
                "description": "The services by name; NAME becomes the unit vllm-NAME.service.",
                "type": ["object", "null"],
                "propertyNames": {
                    "pattern": f"^[a-z0-9][a-z0-9-]{{0,{MAX_NAME - 1}}}$",
                    "not": {"const": "supervisor"},
                },
                "additionalProperties": {"$ref": "#/$defs/Service"},
            },
        },
        "$defs": {
            **definitions,
            "Service": {
                "description": settings["description"],
                "type": "object",
                "additionalProperties": False,
                "properties": properties,
                "required": ["model"],
            },
        },
    }
