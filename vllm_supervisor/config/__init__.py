"""The operator's YAML: read, checked, and turned into services."""

from vllm_supervisor.config.checks import Complaint
from vllm_supervisor.config.load import Configuration, load
from vllm_supervisor.config.model import Remediation, Service
from vllm_supervisor.config.problem import Problem
from vllm_supervisor.config.schema import json_schema

__all__ = ["Complaint", "Configuration", "Problem", "Remediation", "Service", "json_schema", "load"]
