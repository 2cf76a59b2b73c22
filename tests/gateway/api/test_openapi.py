"""The schema at ``/openapi.json``: valid, true of the replies, and no request made from it gets a 500."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from strata_pack.gateway.api.openapi import openapi
from tests.gateway.conftest import IMPLICIT, LIST_JOBS, House
from tests.gateway.replay import Replay

SCHEMA = openapi()


@pytest.fixture(scope="module")
def served() -> Iterator[House]:
    with House() as house:
        house.replay.default = Replay(["Hm", "</think>", "\n\n", "Hello"])
        yield house


def check(name: str, value: Any) -> None:
    jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", **SCHEMA}).validate(value)


def test_every_reference_leads_somewhere() -> None:
    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for inner in value.values():
                yield from walk(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from walk(inner)

    names = {reference.removeprefix("#/components/schemas/") for reference in walk(SCHEMA)}
    assert names <= set(SCHEMA["components"]["schemas"])


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "tools": [LIST_JOBS]},
            "ChatCompletion",
        ),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}, "Message"),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]}, "TokenCount"),
        ("/v1/responses", {"input": "x"}, "Response"),
        ("/v1/chat/completions", {}, "OpenAIError"),
        ("/v1/messages", {}, "AnthropicError"),
    ],
)
def test_replies_are_what_the_schema_says(path: str, body: dict[str, Any], name: str, house: House) -> None:
    if "Error" not in name and "count" not in path:
        house.says(IMPLICIT)
    check(name, house.post(body, path).json())


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/models", "Models"),
        ("/v1/status", "Status"),
        ("/v1/live", "Live"),
        ("/metrics", "Metrics"),
        ("/health", "Health"),
        ("/nothing", "OpenAIError"),
    ],
)
def test_answers_are_what_the_schema_says(path: str, name: str, house: House) -> None:
    check(name, house.get(path).json())


def examples(house: House, count: int) -> None:
    """Send ``count`` requests per operation, fit and unfit ones, and look for a server error or an untrue answer."""
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.config import SchemathesisConfig

    config = SchemathesisConfig.from_dict({"generation": {"codec": "utf-8"}})
    schema = schemathesis.openapi.from_dict(SCHEMA, config=config)
    schema.config.update(base_url=house.url)
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        for result in schema.get_all_operations():
            operation = result.ok()
            if mode is GenerationMode.NEGATIVE and operation.method.upper() in ("GET", "DELETE"):
                continue

            @settings(
                max_examples=count,
                derandomize=True,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def send(case: Any) -> None:
                answer = case.call(timeout=120)
                case.validate_response(
                    answer,
                    checks=[
                        schemathesis.checks.not_a_server_error,
                        schemathesis.checks.status_code_conformance,
                        schemathesis.checks.content_type_conformance,
                        schemathesis.checks.response_schema_conformance,
                    ],
                )

            send()


def test_no_request_from_the_schema_gets_a_500(served: House) -> None:
    examples(served, 6)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_request_of_many_from_the_schema_gets_a_500(served: House) -> None:
    examples(served, 300)
