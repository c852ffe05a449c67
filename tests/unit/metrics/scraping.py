"""What a scrape says, as Prometheus' own parser reads it."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


@dataclass(frozen=True)
class Scrape:
    """One scrape; `types` are those of the families by name."""

    samples: tuple[Sample, ...]
    types: Mapping[str, str]

    @classmethod
    def of(cls, text: str) -> Scrape:
        found = [*text_string_to_metric_families(text)]
        return cls(tuple(each for family in found for each in family.samples), {each.name: each.type for each in found})

    def series(self, metric: str, /, **labels: str) -> Iterator[Sample]:
        """Those of a metric with at least these labels."""
        for each in self.samples:
            if each.name == metric and labels.items() <= each.labels.items():
                yield each

    def value(self, metric: str, /, **labels: str) -> float | None:
        """The value of the only such series; None where there is none."""
        found = [*self.series(metric, **labels)]
        assert len(found) <= 1, found
        return found[0].value if found else None

    def labels(self) -> Mapping[str, frozenset[str]]:
        """The names of the labels by the name of the series: of a histogram those of its parts."""
        return {each.name: frozenset(each.labels) for each in self.samples}


def scrape(port: int, path: str = "/metrics", accept: str = "") -> Scrape:
    """Ask a listener on this machine."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return Scrape.of(answer.read().decode())
