"""One or several models at one address: choose the gateway of a request, and add up the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.metrics import HISTORY, Metrics
from strata_pack.gateway.service import Gateway

SHOWN_NAMES = 50


class Fleet:
    """The gateways at one address, with the same settings except for the served model.

    A single gateway answers every model name; of several, the name decides, and a missing name means the first.
    ``metrics`` count requests that reached no model.
    """

    def __init__(self, gateways: Sequence[Gateway]) -> None:
        self.gateways = tuple(gateways)
        self.first = self.gateways[0]
        self.several = len(self.gateways) > 1
        self.metrics = Metrics() if self.several else self.first.metrics
        self._by_name = {gateway.served.model: gateway for gateway in self.gateways}

    def named(self, name: str | None) -> Gateway:
        """Return the gateway of a request's model name. Raises ``ApiError`` 404 that lists the names."""
        if not self.several or not name:
            return self.first
        return self.exactly(name)

    def exactly(self, name: str) -> Gateway:
        """Return the gateway of the model ``name``. Raises ``ApiError`` 404 that lists the names."""
        found = self._by_name.get(name)
        if found is None:
            names = ", ".join(list(self._by_name)[:SHOWN_NAMES])
            raise ApiError(
                404, f"there is no model {name[:100]!r}; the models are: {names}", kind="no_model", param="model",
                code="model_not_found",
            )  # fmt: skip
        return found

    @property
    def draining(self) -> bool:
        """Whether the gateway takes no new requests."""
        return self.first.draining

    def drain(self) -> None:
        """Start draining all gateways."""
        for gateway in self.gateways:
            gateway.draining = True

    async def ready(self) -> bool:
        """Return whether requests can be answered; several models are loaded on demand, so they always can."""
        return self.first.host is not None or await self.first.ready()

    async def status(self) -> dict[str, Any]:
        """Return the body of ``GET /v1/status``: the one model's, or the first model's with all ``models``."""
        shown = await self.first.status()
        if not self.several:
            return shown
        return {**shown, "models": [await gateway.status() for gateway in self.gateways]}

    def totals(self) -> dict[str, Any]:
        """Return the sum of all models' totals and of requests that reached no model."""
        summed: dict[str, Any] = {}
        for metrics in self._all_metrics():
            for name, value in metrics.totals().items():
                if isinstance(value, dict):
                    before = summed.setdefault(name, {})
                    summed[name] = {**before, **{word: before.get(word, 0) + count for word, count in value.items()}}
                else:
                    summed[name] = summed.get(name, 0) + value
        return summed

    def metrics_dict(self) -> dict[str, Any]:
        """Return the body of ``GET /metrics``: the one model's, or the sum with each model's totals."""
        if not self.several:
            return self.first.metrics.to_dict()
        shown = [metrics.to_dict() for metrics in self._all_metrics()]
        requests = sorted((one for part in shown for one in part["requests"]), key=lambda one: -one["started_at"])
        return {
            "totals": self.totals(),
            "running": sum(part["running"] for part in shown),
            "requests": requests[:HISTORY],
            "models": {name: gateway.metrics.totals() for name, gateway in self._by_name.items()},
        }

    def _all_metrics(self) -> list[Metrics]:
        own = [self.metrics] if self.several else []
        return [*(gateway.metrics for gateway in self.gateways), *own]
