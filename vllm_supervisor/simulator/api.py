"""What vLLM's OpenAI-compatible server answers, as far as the simulator knows it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from vllm_supervisor.simulator.log import Log
from vllm_supervisor.simulator.start import Start
from vllm_supervisor.simulator.web import Request, Response

_WORDS = ("the", "model", "answers", "and", "the", "operator", "sleeps", "while")
_DEFAULT_MAX_TOKENS = 16  # of a completion request that does not say


class Api:
    """The routes of one server. `dead` is set when the engine has died.

    Args:
        start: what is being served.
        log: where requests are logged.
    """

    def __init__(self, start: Start, log: Log) -> None:
        self.dead = False
        self._start = start
        self._log = log
        self._served = 0
        self._generated = 0
        self.routes: dict[str, tuple[str, Callable[[Request], Response]]] = {
            "/load": ("GET", lambda _: _json({"server_load": 0})),
            "/version": ("GET", lambda _: _json({"version": start.settings.vllm_version})),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
            "/v1/models": ("GET", self._models),
            "/ping": ("GET", self._health),
        }
        if start.service.pooling:
            self.routes["/v1/embeddings"] = ("POST", self._embed)
        else:
            self.routes["/v1/chat/completions"] = ("POST", self._chat)
            self.routes["/v1/completions"] = ("POST", self._complete)

    def answer(self, request: Request) -> Response:
        """Answer any request, bad ones included."""
        if request.path.startswith("/v1") and not self._may(request):
            return _json({"error": "Unauthorized"}, 401)
        method, handler = self.routes.get(request.path, ("", None))
        if handler is None:
            return _json({"detail": "Not Found"}, 404)
        if request.method != method:
            return _json({"detail": "Method Not Allowed"}, 405)
        return handler(request)

    def _may(self, request: Request) -> bool:
        keys = self._start.service.api_keys
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return not keys or (scheme.lower() == "bearer" and token in keys)

    def _health(self, _request: Request) -> Response:
        return Response(self._start.generation.dead_core_status if self.dead else 200)

    def _models(self, _request: Request) -> Response:
        created = int(time.time())
        shared = {"object": "model", "created": created, "owned_by": "vllm", "root": self._start.service.model}
        length = self._start.service.max_model_len
        data = [
            {"id": name, **shared, "parent": None, "max_model_len": length} for name in self._start.service.served_names
        ]
        return _json({"object": "list", "data": data})

    def _complete(self, request: Request) -> Response:
        def shape(text: str) -> dict[str, Any]:
            return {"index": 0, "text": text, "logprobs": None, "finish_reason": "length", "stop_reason": None}

        return self._generate(request, "cmpl", "text_completion", lambda body: str(body["prompt"]), shape)

    def _chat(self, request: Request) -> Response:
        def shape(text: str) -> dict[str, Any]:
            message = {"role": "assistant", "content": text}
            return {"index": 0, "message": message, "finish_reason": "length", "stop_reason": None}

        def last(body: dict[str, Any]) -> str:
            return str(body["messages"][-1]["content"])

        return self._generate(request, "chatcmpl", "chat.completion", last, shape)

    def _generate(
        self,
        request: Request,
        prefix: str,
        kind: str,
        prompt_of: Callable[[dict[str, Any]], str],
        shape: Callable[[str], dict[str, Any]],
    ) -> Response:
        body = self._body(request)
        if isinstance(body, Response):
            return body
        try:
            prompt, wanted = prompt_of(body), int(body.get("max_tokens") or _DEFAULT_MAX_TOKENS)
        except (LookupError, TypeError, ValueError):
            return _error(400, "BadRequestError", "the request has no prompt, or one of the wrong form")
        identifier = f"{prefix}-{os.urandom(8).hex()}"
        self._log_request(identifier, prompt, wanted)
        words = [_WORDS[index % len(_WORDS)] for index in range(wanted)]
        asked = len(prompt.split())
        self._served += 1
        self._generated += wanted
        return _json({
            "id": identifier, "object": kind, "created": int(time.time()), "model": body["model"],
            "choices": [shape(" " + " ".join(words))],
            "usage": {"prompt_tokens": asked, "total_tokens": asked + wanted, "completion_tokens": wanted},
        })  # fmt: skip

    def _embed(self, request: Request) -> Response:
        body = self._body(request)
        if isinstance(body, Response):
            return body
        self._served += 1
        data = [{"index": 0, "object": "embedding", "embedding": [0.5, -0.5, 0.5, -0.5]}]
        return _json({"object": "list", "model": body["model"], "data": data, "usage": {"prompt_tokens": 1}})

    def _body(self, request: Request) -> dict[str, Any] | Response:
        """The request's JSON object with the model it means, or the answer to a bad one."""
        if self.dead:
            text = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            return _error(500, "InternalServerError", text)
        try:
            body = json.loads(request.body)
        except ValueError as error:
            return _error(400, "BadRequestError", f"JSON decode error: {error}")
        if not isinstance(body, dict):
            return _error(400, "BadRequestError", "Input should be a valid dictionary")
        names = self._start.service.served_names
        body.setdefault("model", names[0])
        if body["model"] not in names:
            return _error(404, "NotFoundError", f"The model `{body['model']}` does not exist.")
        return body

    def _log_request(self, identifier: str, prompt: str, max_tokens: int) -> None:
        if self._start.service.log_requests or self._start.settings.log_requests:
            params = (
                f"SamplingParams(n=1, temperature=1.0, top_p=1.0, top_k=0, seed=None, stop=[], max_tokens={max_tokens})"
            )
            tokens = list(range(1, len(prompt.split()) + 1))
            self._log.write("request", request_id=f"{identifier}-0", prompt=prompt, params=params, token_ids=tokens)

    def _metrics(self, _request: Request) -> Response:
        labels = f'engine="0",model_name="{self._start.service.served_names[0]}"'
        samples = {
            "num_requests_running": ("gauge", 0),
            "num_requests_waiting": ("gauge", 0),
            "kv_cache_usage_perc": ("gauge", 0),
            "num_preemptions_total": ("counter", 0),
            "generation_tokens_total": ("counter", self._generated),
            "request_success_total": ("counter", self._served),
        }
        lines = [
            f"# TYPE vllm:{name} {kind}\nvllm:{name}{{{labels}}} {float(value)}\n"
            for name, (kind, value) in samples.items()
        ]
        return Response(200, "".join(lines).encode(), "text/plain; version=0.0.4; charset=utf-8")


def _json(value: Any, status: int = 200) -> Response:
    return Response(status, json.dumps(value, separators=(",", ":")).encode())


def _error(status: int, kind: str, message: str) -> Response:
    return _json({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)
