"""One front for one model or several: which gateway answers a request, and the totals of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.metrics import HISTORY, Metrics
from strata_pack.gateway.service import Gateway

SHOWN_NAMES = 50


class Fleet:
    """The gateways behind one address, all with the same settings but for what is served.

    A single one answers whatever name a request has; of several the name decides, and none means the first.
    ``metrics`` are those of requests that reached no model.
    """

    def __init__(self, gateways: Sequence[Gateway]) -> None:
        self.gateways = tuple(gateways)
        self.first = self.gateways[0]
        self.several = len(self.gateways) > 1
        self.metrics = Metrics() if self.several else self.first.metrics
        self._by_name = {gateway.served.model: gateway for gateway in self.gateways}

    def named(self, name: str | None) -> Gateway:
        """Return the gateway of the model that a request names; raises 404 with the names there are."""
        if not self.several or not name:
            return self.first
        return self.exactly(name)

    def exactly(self, name: str) -> Gateway:
        """Return the gateway of the model ``name``; raises 404 with the names there are."""
        found = self._by_name.get(name)
        if found is None:
            names = ", ".join(list(self._by_name)[:SHOWN_NAMES])
            raise ApiError(
                404, f"there is no model {name[:100]!r} here; there are: {names}", kind="no_model", param="model",
                code="model_not_found",
            )  # fmt: skip
        return found

    @property
    def draining(self) -> bool:
        """Whether the gateway takes no new requests."""
        return self.first.draining

    def drain(self) -> None:
        """Say to all that the end has come."""
        for gateway in self.gateways:
            gateway.draining = True

    async def ready(self) -> bool:
        """Return whether a request would be answered: of several models each one is loaded when it is asked for."""
        return self.first.host is not None or await self.first.ready()

    async def status(self) -> dict[str, Any]:
        """Return the answer of ``GET /v1/status``: that of the one model, or of the first with all ``models``."""
        shown = await self.first.status()
        if not self.several:
            return shown
        return {**shown, "models": [await gateway.status() for gateway in self.gateways]}

    def totals(self) -> dict[str, Any]:
        """Return the totals of all models, and of the requests that reached none."""
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
        """Return the answer of ``GET /metrics``: that of the one model, or of all with each one's totals."""
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
