"""From a service and its cap to the text of its unit. Same input, same bytes."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import jinja2

from vllm_supervisor import __version__
from vllm_supervisor.config import Service
from vllm_supervisor.config.model import DEFAULT_USER
from vllm_supervisor.units.argv import Cap, effective, serve_words
from vllm_supervisor.units.argv import fingerprint as fingerprint_of
from vllm_supervisor.units.quoting import comment, environment_assignment, exec_word, literal
from vllm_supervisor.units.text import RUN_PLACEHOLDER, marked

FLOOR = 249  # the oldest systemd supported

# Settings newer than that, by the version that brought them (systemd.service(5)).
SINCE: Mapping[str, int] = {"RestartMaxDelaySec": 254, "RestartSteps": 254}

_START_LIMIT_BURST = 5
_RESTART_S = 10  # after a crash the driver takes a few seconds to hand the memory back
_RESTART_STEPS = 4  # 10, 20, 40, 80, 160 s: fabric managers and other tenants of a GPU can take minutes
_RESTART_MAX_S = 160
# Above vLLM's own timers on a stop: 5 s for the engine, 4 s for the workers, then its SIGKILL (vLLM 0.8 to 0.32).
_STOP_S = 30
_SYSTEM_PATH = "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Variables by which the dynamic loader takes in code, or writes files. `Environment=` would give them to ExecStartPre=
# as well, which is root's; given by env(1) they reach the service's own process only.
_LOADER = re.compile("LD_.*|GCONV_PATH|GLIBC_TUNABLES")
_HOMES = re.compile(r"(?<![\w.-])/(?:home|root|run/user)(?![\w.-])")


@dataclass(frozen=True, slots=True)
class Host:
    """What a unit depends on besides its service.

    Attributes:
        systemd_version: such as 252.
        program: the words that run this program, the first an absolute path.
    """

    systemd_version: int
    program: tuple[str, ...]


def unit_name(service_name: str) -> str:
    """The name of a service's unit."""
    return f"vllm-{service_name}.service"


def service_name(unit: str) -> str:
    """The service of a unit; the inverse of `unit_name`."""
    return unit.removeprefix("vllm-").removesuffix(".service")


def render_all(
    services: Mapping[str, Service],
    caps: Mapping[str, Cap],
    host: Host,
    vllm_versions: Mapping[str, str | None],
) -> dict[str, str]:
    """The units of all services: file name -> text, sorted by name.

    Args:
        services: by name.
        caps: by service name; only those that hold now.
        host: where the units will run.
        vllm_versions: by service name; None, or no entry, where it is not known.
    """
    texts, after = {}, ordering(services, services)
    for name in sorted(services):
        print_ = fingerprint_of(services[name], vllm_versions.get(name))
        text = render(services[name], caps.get(name), host, fingerprint=print_, after=after[name])
        texts[unit_name(name)] = text
    return texts


def ordering(services: Mapping[str, Service], names: Iterable[str]) -> dict[str, list[str]]:
    """For each of these services, the units that must have started before its own: those it shares a GPU with.

    Args:
        services: all there are, by name.
        names: those that are asked for; a remedy asks for one, and sixty-four of them in the same moment.
    """
    fills = {name: frozenset(service.devices) for name, service in sorted(services.items())}
    return {
        name: [unit_name(other) for other, gpus in fills.items() if other < name and not gpus.isdisjoint(fills[name])]
        for name in names
    }


def render(service: Service, cap: Cap | None, host: Host, *, fingerprint: str, after: Sequence[str]) -> str:
    """The text of one unit.

    Args:
        service: what to run.
        cap: the learned bound that holds for it.
        host: where it will run.
        fingerprint: of the service; stamped on every line it logs.
        after: units that must have started (or failed to) before this one starts.

    Raises:
        ConfigError: a value cannot be put into a unit.
    """
    text = _template().render(
        **_who(service, cap),
        **_limits(service, host),
        after=after,
        environment=[
            f"Environment={environment_assignment(name, value)}"
            for name, value in sorted(_environment(service).items())
            if not _LOADER.fullmatch(name)
        ],
        credentials=[
            f"LoadCredential={name}:{literal(str(path))}" for name, path in sorted(service.credentials.items())
        ],
        run=RUN_PLACEHOLDER,
        exec_start=_exec_start(service, cap),
        exec_start_post=_gate(service, host),
        log_fields=[f"LogExtraFields=VLLM_SUPERVISOR_{k}={v}" for k, v in _log_fields(service, cap, fingerprint)],
        protect_home="no" if _lives_in_a_home(service, host) else "read-only",
    )
    return marked(_loosened(_without_newer(text, host.systemd_version), service.hardening))


def _without_newer(text: str, systemd_version: int) -> str:
    lines = text.split("\n")
    return "\n".join(line for line in lines if SINCE.get(line.partition("=")[0], FLOOR) <= systemd_version)


def _loosened(text: str, hardening: Mapping[str, object]) -> str:
    lines = [(line, hardening.get(line.partition("=")[0])) for line in text.split("\n")]
    return "\n".join(line if to is None else f"{line.partition('=')[0]}={to}" for line, to in lines if to is not False)


def _who(service: Service, cap: Cap | None) -> dict[str, object]:
    directory = _directory(service)
    return {
        "version": __version__,
        "source": comment(str(service.source)),
        "name": service.name,
        "learned": _learned(service, cap),
        "description": literal(comment(f"{service.model} ({service.name})")),
        "user": service.user,
        "group": service.group,
        "dedicated": service.user == DEFAULT_USER,
        "directory": directory,
        "state_directory": f"/var/lib/{directory}",
    }


def _learned(service: Service, cap: Cap | None) -> str | None:
    if cap is None:
        return None
    default = "vLLM's default"
    changed = [
        f"--{flag}" if value is True else f"--{flag} {value} instead of {service.arguments.get(flag, default)}"
        for flag, value in sorted(cap.others.items())
    ]
    if (seqs := effective(service, cap)) != service.max_num_seqs:
        changed.append(f"--max-num-seqs {seqs} instead of {service.max_num_seqs or default}")
    return f"Runs with {', '.join(changed)}: {comment(cap.reason)}" if changed else None


def _limits(service: Service, host: Host) -> dict[str, object]:
    """Times in seconds, and a start limit that a loop of the slowest failing starts still runs into."""
    stop_s = _STOP_S + math.ceil(service.number("shutdown-timeout", 0))
    delay_s = _RESTART_MAX_S if host.systemd_version >= SINCE["RestartSteps"] else _RESTART_S
    slowest_s = service.start_timeout + stop_s + delay_s
    return {
        "restart_s": _RESTART_S,
        "restart_steps": _RESTART_STEPS,
        "restart_max_s": _RESTART_MAX_S,
        "start_timeout_s": service.start_timeout,
        "stop_timeout_s": stop_s,
        "start_limit_burst": _START_LIMIT_BURST,
        "start_limit_interval_s": (_START_LIMIT_BURST + 1) * slowest_s,
    }


def _directory(service: Service) -> str:
    """The directory under /var/lib and /var/cache; one per user, since systemd hands it over to the unit's user."""
    return "vllm" if service.user == DEFAULT_USER else f"vllm-{service.user}"


def _environment(service: Service) -> dict[str, str]:
    """What the process sees: what vLLM needs under systemd, then the operator's own, then what only we may set."""
    state, cache_ = f"/var/lib/{_directory(service)}", f"/var/cache/{_directory(service)}"
    variables = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order of nvidia-smi; CUDA's own is by speed
        "HF_HOME": f"{state}/huggingface",
        "HOME": state,
        "NO_COLOR": "1",
        "PATH": f"{service.executable.parent}:{_SYSTEM_PATH}",  # ninja and nvcc are looked up here at warm-up
        "PYTHONUNBUFFERED": "1",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache_}/torchinductor",
        "TRITON_CACHE_DIR": f"{cache_}/triton",
        "VLLM_CACHE_ROOT": f"{cache_}/vllm",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(service.start_timeout),  # its default of 600 ends long loads
        "XDG_CACHE_HOME": cache_,
    }
    if "HF_TOKEN" in service.credentials:
        variables["HF_TOKEN_PATH"] = f"/run/credentials/{unit_name(service.name)}/HF_TOKEN"
    variables |= service.environment
    if service.gpus is not None:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, service.gpus))
    return variables


def _exec_start(service: Service, cap: Cap | None) -> str:
    """One flag a line, so that a diff of the unit reads like one of the YAML."""
    first = next(words := serve_words(service, cap))
    if heeded := [f"{name}={value}" for name, value in sorted(service.environment.items()) if _LOADER.fullmatch(name)]:
        first = ["/usr/bin/env", *heeded, *first]
    program, *first = first
    head = " ".join([literal(program), *map(exec_word, first)])
    return "ExecStart=" + " \\\n    ".join([head, *(" ".join(map(exec_word, group)) for group in words)])


def _gate(service: Service, host: Host) -> str:
    program, *words = host.program
    gate = " ".join([literal(program), *map(exec_word, words), "gate"])
    return f"ExecStartPost={gate} --pid $MAINPID --url {exec_word(base_url(service))}"


def base_url(service: Service) -> str:
    """Where the service answers on its own host, such as `http://127.0.0.1:8000`."""
    secure = "ssl-certfile" in service.arguments or "ssl-keyfile" in service.arguments
    return f"{'https' if secure else 'http'}://{_reachable(service.host)}:{service.port}"


def _reachable(host: str | None) -> str:
    try:
        address = ipaddress.ip_address(host or "0.0.0.0")  # noqa: S104 - compared, not bound
    except ValueError:
        return str(host)
    if address.version == 6:
        return "[::1]" if address.is_unspecified else f"[{address}]"
    return "127.0.0.1" if address.is_unspecified else str(address)


def _log_fields(service: Service, cap: Cap | None, fingerprint: str) -> Iterator[tuple[str, str]]:
    yield "SERVICE", service.name
    yield "MAX_NUM_SEQS", str(effective(service, cap) or "default")
    yield "FINGERPRINT", fingerprint


def _lives_in_a_home(service: Service, host: Host) -> bool:
    """Whether anything the process is told of lies where `ProtectHome=` would hide it."""
    told = [*host.program, *service.environment.values(), *(word for g in serve_words(service, None) for word in g)]
    return any(_HOMES.search(text) for text in told)


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(  # noqa: S701 - units are no HTML
        loader=jinja2.PackageLoader("vllm_supervisor"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("service.j2")
